"""The script of the scripted engine: which prompt gets which answer, how fast, and what goes wrong."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ftc.errors import FtcError

# `tail` looks at this many last characters of the prompt: the last turn, not the system prompt.
TAIL_CHARACTERS = 400


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What happens after so many output tokens: the process dies, stops answering, or the request fails."""

    die_after: int | None = None
    stall_after: int | None = None
    error_after: int | None = None


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An answer and the prompts it is given to: `tail` occurs near the prompt's end, `any` anywhere; neither: all.

    The answer is `tokens`, else `draw` tokens that follow the request's seed, else (with `echo`) the prompt's text,
    else `text`. `repeat` says it that many times; with `endless` it never stops by itself.
    """

    tail: str | None = None
    any: str | None = None
    tokens: list[int] | None = None
    text: str | None = None
    echo: bool = False
    draw: int = 0
    repeat: int = 1
    endless: bool = False
    fault: Fault = Fault()

    def matches(self, prompt: str) -> bool:
        """Whether this rule answers a prompt of this text."""
        near_end = self.tail is None or self.tail in prompt[-TAIL_CHARACTERS:]
        return near_end and (self.any is None or self.any in prompt)


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The start: `seconds` long with progress in `phases`, then ready, or `fail` as text, or `exit` as a code."""

    seconds: float = 0.0
    phases: tuple[str, ...] = ("weights",)
    fail: str | None = None
    exit: int | None = None


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole engine. `tokenizer` is a folder; rates are in tokens a second, 0 is as fast as possible."""

    rules: list[Rule]
    tokenizer: str | None = None
    vocab_size: int = 0
    context_tokens: int = 4096
    max_running: int = 16
    max_queued: int = 64
    decode_rate: float = 0.0
    prefill_rate: float = 0.0
    tokens_per_step: int = 1
    page_tokens: int = 16
    load: Load = Load()


def read_script(path: Path) -> Script:
    """Raises FtcError naming the file and the field."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Script)
    except OSError as error:
        raise FtcError(error.strerror or str(error), where=str(path)) from error
    except msgspec.DecodeError as error:
        raise FtcError(str(error), where=str(path)) from error
