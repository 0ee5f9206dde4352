"""What the server knows of its model: names, tokenizer, template, dialect, end tokens and defaults, but no weights."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from ftc.errors import CheckpointError
from ftc.spec.chat import Chat, ToolSyntax
from ftc.spec.load import read_model
from ftc.text.template import Template
from ftc.text.tokenizer import Tokenizer


class Defaults(msgspec.Struct, frozen=True):
    """Sampling where a request says nothing: the checkpoint's generation_config.json, else the API's own values."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None


class ServedModel(msgspec.Struct, frozen=True):
    """A model as the routes see it. `names`: what a request may call it, the one it is listed under first.

    `mark_ids` are the dialect's marks, which the parser must see even where the vocabulary calls them special.
    """

    names: tuple[str, ...]
    folder: Path
    chat: Chat
    tokenizer: Tokenizer
    template: Template | None
    syntax: ToolSyntax | None
    context_tokens: int
    stop_ids: tuple[int, ...]
    mark_ids: tuple[int, ...]
    defaults: Defaults
    created: int

    @property
    def name(self) -> str:
        return self.names[0]


def load_model(folder: Path, *, spec: Path | None = None, names: tuple[str, ...] = ()) -> ServedModel:
    """Reads all but the weights of a checkpoint folder; torch is not needed. `names` come before the model's own.

    Raises SpecError and CheckpointError naming the file.
    """
    described = read_model(folder, spec)
    return assemble(folder, described.chat, described.context_tokens, (*names, described.name), described.end_tokens)


def assemble(
    folder: Path, chat: Chat, context_tokens: int, names: tuple[str, ...], end_tokens: tuple[int, ...] = ()
) -> ServedModel:
    """The served model of a folder whose spec says `chat`, `context_tokens` and `end_tokens`."""
    tokenizer = Tokenizer.load(folder)
    template = Template.load(folder)
    config = _read_generation_config(folder)
    stop_ids = dict.fromkeys(end_tokens)
    stop_ids |= dict.fromkeys(_end_ids(config, folder))
    stop_ids |= dict.fromkeys(_ids(tokenizer, chat.stop))
    syntax = chat.tool_syntax(template.source) if template else None
    marks = [*((chat.reasoning.open, chat.reasoning.close) if chat.reasoning else ()), *(syntax.marks if syntax else ())]
    return ServedModel(
        names=tuple(dict.fromkeys(names)),
        folder=folder,
        chat=chat,
        tokenizer=tokenizer,
        template=template,
        syntax=syntax,
        context_tokens=context_tokens,
        stop_ids=tuple(stop_ids),
        mark_ids=tuple(_ids(tokenizer, marks)),
        defaults=_defaults(config, folder),
        created=int(time.time()),
    )


def _ids(tokenizer: Tokenizer, texts: Iterable[str]) -> list[int]:
    """The ids of those texts that are single tokens."""
    return [id for text in texts if text and (id := tokenizer.token_id(text)) is not None]


def _read_generation_config(folder: Path) -> dict[str, Any]:
    path = folder / "generation_config.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return {}
    except (msgspec.DecodeError, UnicodeDecodeError, OSError) as error:
        raise CheckpointError(f"cannot be read: {error}", where=str(path)) from error


def _end_ids(config: dict[str, Any], folder: Path) -> list[int]:
    found = config.get("eos_token_id")
    ids = found if isinstance(found, list) else [] if found is None else [found]
    if not all(isinstance(id, int) for id in ids):
        raise CheckpointError("not a token id", where=f"{folder / 'generation_config.json'}: eos_token_id", value=found)
    return ids


def _defaults(config: dict[str, Any], folder: Path) -> Defaults:
    wanted = {
        "temperature": config.get("temperature"),
        "top_p": config.get("top_p"),
        "top_k": config.get("top_k"),
        "min_p": config.get("min_p"),
        "repetition_penalty": config.get("repetition_penalty"),
        "max_tokens": config.get("max_new_tokens"),
    }
    if config.get("do_sample") is False:
        wanted["temperature"] = 0.0
    try:
        return msgspec.convert({key: value for key, value in wanted.items() if value is not None}, Defaults)
    except msgspec.ValidationError as error:
        raise CheckpointError(str(error), where=str(folder / "generation_config.json")) from error
