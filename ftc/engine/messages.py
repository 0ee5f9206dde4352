"""The contract between engine and server: versioned messages, one tagged msgpack object each.

The server sends Submit, Abort and Control; the engine sends Hello once it can serve, Progress before that (or Failed if
it never will), Tokens and Refused per request, and Stats when asked or once a second while it works. Positions and
counts are in tokens, times in seconds.
"""

from __future__ import annotations

from typing import Literal

import msgspec

VERSION = 1

Finish = Literal["stop", "length", "abort", "error"]


class Message(msgspec.Struct, tag_field="kind", tag=str.lower, forbid_unknown_fields=True):
    """Base of all messages; unknown fields are an error, so both sides must run the same VERSION."""


class Hello(Message):
    """The engine is ready. `context_tokens` is the longest prompt + output one request may ever have here."""

    version: int
    model: str
    vocab_size: int
    vocab_hash: str
    context_tokens: int
    max_running: int
    max_queued: int
    pid: int
    dtype: str
    target: str


class Progress(Message):
    """Loading or compiling: `phase` is a word for people, `done`/`total` in the phase's own units (0/0: unknown)."""

    phase: str
    done: int = 0
    total: int = 0


class Failed(Message):
    """It cannot start: `text` is the whole error for the user. The process itself prints nothing and exits 1."""

    text: str


class Sampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the next token is drawn. temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 switch the filters off.

    The random stream of a request depends only on `seed` and the position of the token.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    logit_bias: dict[int, float] = {}


class Grammar(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A constraint on the output: `syntax` names its language, `text` is the constraint."""

    syntax: Literal["json_schema", "regex", "lark", "choice"]
    text: str


class Anchor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A place in the prompt worth keeping a state snapshot at: after `position` tokens."""

    position: int
    label: str


class Submit(Message):
    """One request. `forced` are tokens that the output must begin with; `stop_ids` end it (and are not sent)."""

    id: str
    tokens: list[int]
    sampling: Sampling
    max_tokens: int
    min_tokens: int = 0
    stop_ids: list[int] = []
    forced: list[int] = []
    logprobs: int = -1  # -1: none; 0: of the drawn token; n: and of the n best
    grammar: Grammar | None = None
    anchors: list[Anchor] = []
    anchor_ids: list[int] = []
    salt: str = ""
    priority: int = 0
    deadline: float | None = None  # seconds from now; the request is aborted after it


class Logprob(msgspec.Struct, frozen=True):
    """Natural logarithms; `top` are (token, logprob), best first."""

    token: int
    logprob: float
    top: list[tuple[int, float]] = []


class Tokens(Message):
    """New tokens of a request. `cached`: how many prompt tokens were not computed again; the last one has `finish`."""

    id: str
    tokens: list[int]
    logprobs: list[Logprob] = []
    cached: int = 0
    finish: Finish | None = None
    stop_id: int | None = None
    error: str | None = None


class Refused(Message):
    """A request that was not taken. `code`: 'too_long' and 'invalid' will never succeed, 'overloaded' may later."""

    id: str
    code: Literal["too_long", "invalid", "overloaded"]
    message: str
    where: str | None = None


class Abort(Message):
    """Stop a request now; its pages are free within one step. Unknown ids are ignored.

    The answer is Tokens(finish='abort').
    """

    id: str


class Control(Message):
    """Something asked of the engine itself: 'stats', 'resize' (arguments: pool name -> live count), 'drain', 'stop'."""

    verb: Literal["stats", "resize", "drain", "stop"]
    arguments: dict[str, int] = {}


class Stats(Message):
    """What the engine holds. `pools`: name -> (used, live, reserved), in pages or slots."""

    running: int
    queued: int
    steps: int
    prefill_tokens: int
    decode_tokens: int
    pools: dict[str, tuple[int, int, int]]
    programs: str  # 'eager', 'compiling', 'compiled'
    compiled: int = 0  # regions compiled by this process; 0 with a warm artefact cache
    loaded: int = 0  # regions loaded from artefacts


ToEngine = Submit | Abort | Control
FromEngine = Hello | Progress | Failed | Tokens | Refused | Stats


def encode(message: Message) -> bytes:
    """A message as msgpack."""
    return _ENCODER.encode(message)


def decode_to_engine(data: bytes | memoryview) -> ToEngine:
    """Raises msgspec.ValidationError on anything that is no legal message for the engine."""
    return _TO_ENGINE.decode(data)


def decode_from_engine(data: bytes | memoryview) -> FromEngine:
    """Raises msgspec.ValidationError on anything that is no legal message from an engine."""
    return _FROM_ENGINE.decode(data)


_ENCODER = msgspec.msgpack.Encoder()
_TO_ENGINE = msgspec.msgpack.Decoder(ToEngine)
_FROM_ENGINE = msgspec.msgpack.Decoder(FromEngine)
