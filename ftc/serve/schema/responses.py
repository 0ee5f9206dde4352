"""The wire of responses: the fields a request may have, their types and bounds, and the shape of the answers."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from ftc.serve.schema.chat import StreamOptions, TokenLogprob

# Fields that are taken and change nothing in the answer: tags, hints for caches, accounting and speed.
NO_EFFECT = frozenset({
    "user", "safety_identifier", "metadata", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
    "service_tier", "client_metadata", "max_tool_calls", "background_options", "access_programs",
})  # fmt: skip


class ReasoningOptions(Struct, forbid_unknown_fields=True):
    """`summary` asks for one of the reasoning, which is given as it is instead."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None
    context: str | None = None
    mode: str | None = None


class TextOptions(Struct, forbid_unknown_fields=True):
    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ResponsesRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """A request; null means absent. Fields of the published schema first, then those that engines of this kind add."""

    model: str
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    include: list[str] | None = None

    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None

    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None

    # Accepted without effect, as the standard allows: tags, hints for caches, accounting and speed.
    user: str | None = None
    safety_identifier: str | None = None
    metadata: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    service_tier: str | None = None
    client_metadata: dict[str, Any] | None = None
    max_tool_calls: int | None = None
    background_options: Any = None
    access_programs: Any = None

    # Honoured at the one value that this server can give, refused otherwise (admit/responses.py).
    background: bool | None = None
    truncation: str | None = None
    conversation: Any = None
    prompt: Any = None
    moderation: Any = None
    image: Any = None
    context_management: Any = None

    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class InputDetails(Struct):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(Struct):
    reasoning_tokens: int


class Usage(Struct):
    """Counts in tokens."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class OutputText(Struct, tag="output_text"):
    text: str
    annotations: list[Any]
    logprobs: list[TokenLogprob]


class ReasoningText(Struct, tag="reasoning_text"):
    text: str


class MessageItem(Struct, tag="message"):
    id: str
    content: list[OutputText]
    status: str
    role: str = "assistant"


class ReasoningItem(Struct, tag="reasoning"):
    """`encrypted_content`, where it was asked for, lets clients that drop the text send it back all the same."""

    id: str
    content: list[ReasoningText]
    summary: list[Any]
    status: str
    encrypted_content: str | None | UnsetType = UNSET


class CallItem(Struct, tag="function_call"):
    id: str
    call_id: str
    name: str
    arguments: str
    status: str
    namespace: str | UnsetType = UNSET


Item = MessageItem | ReasoningItem | CallItem


class Incomplete(Struct):
    reason: str


class ErrorBody(Struct):
    code: str
    message: str


class Response(Struct, kw_only=True):
    """An answer, complete or in the making; what the request said comes back with it."""

    id: str
    created_at: int
    model: str
    status: str
    output: list[Item]
    tools: list[dict[str, Any]]
    tool_choice: str | dict[str, Any]
    parallel_tool_calls: bool
    store: bool
    object: str = "response"
    background: bool = False
    completed_at: int | None = None
    error: ErrorBody | None = None
    incomplete_details: Incomplete | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, Any] = {}
    previous_response_id: str | None = None
    reasoning: dict[str, Any] = {}
    service_tier: str = "default"
    temperature: float | None = None
    text: dict[str, Any] = {}
    top_logprobs: int = 0
    top_p: float | None = None
    truncation: str = "disabled"
    usage: Usage | None = None
    user: str | None = None
