"""The wire of text completions: the fields a request may have, their types and bounds, and the shape of the answers."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from ftc.serve.schema.chat import Penalty, StreamOptions, Text
from ftc.serve.schema.chat import Usage as Usage

# Fields that are taken and change nothing in the answer.
NO_EFFECT = frozenset({"user"})


class CompletionRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """A request; null means absent. `prompt` is one text or list of token ids, or a list of several."""

    model: str
    prompt: str | list[Any]
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    stop: Text | Annotated[list[Text], Meta(max_length=16)] | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[int, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    seed: int | None = None

    # Accepted without effect, as the standard allows.
    user: str | None = None

    # Honoured at the one value that this server can give, refused otherwise (admit/completions.py).
    best_of: int | None = None
    suffix: str | None = None

    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    ignore_eos: bool | None = None
    add_special_tokens: bool | None = None


class Logprobs(Struct):
    """Lists of one entry a token; `text_offset` counts characters of the choice's text."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class Choice(Struct):
    index: int
    text: str
    finish_reason: str | None = None
    logprobs: Logprobs | None = None


class Completion(Struct):
    """A whole answer, or one event of a stream."""

    id: str
    created: int
    model: str
    choices: list[Choice]
    object: str = "text_completion"
    usage: Usage | None | UnsetType = UNSET
