"""The wire of chat completions: the fields a request may have, their types and bounds, and the shape of the answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

Penalty = Annotated[float, Meta(ge=-2, le=2)]
Text = Annotated[str, Meta(min_length=1)]


# Fields that are taken and change nothing in the answer: tags, hints for caches, accounting and speed.
NO_EFFECT = frozenset({
    "user", "safety_identifier", "metadata", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
    "prediction", "service_tier",
})  # fmt: skip


class StreamOptions(Struct, forbid_unknown_fields=True):
    """`include_obfuscation` pads chunks against listeners on the line; only false is honoured."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ChatRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """A request; null means absent. Fields of the published schema first, then those that engines of this kind add."""

    messages: Annotated[list[dict[str, Any]], Meta(min_length=1)]
    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    stop: Text | Annotated[list[Text], Meta(max_length=16)] | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[int, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    seed: int | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None

    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None

    # Accepted without effect, as the standard allows: tags, hints for caches, accounting and speed.
    user: str | None = None
    safety_identifier: str | None = None
    metadata: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    prediction: dict[str, Any] | None = None
    service_tier: str | None = None

    # Honoured at the one value that this server can give, refused otherwise (admit.py).
    store: bool | None = None
    modalities: list[str] | None = None
    response_format: dict[str, Any] | None = None
    verbosity: str | None = None
    audio: Any = None
    functions: Any = None
    function_call: Any = None
    moderation: Any = None
    web_search_options: Any = None

    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    ignore_eos: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None
    thinking: dict[str, Any] | None = None


class PromptDetails(Struct):
    cached_tokens: int


class CompletionDetails(Struct):
    reasoning_tokens: int


class Usage(Struct):
    """Counts in tokens, summed over the choices; the prompt counts once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class TopLogprob(Struct):
    """`bytes` are the token's own bytes: `token` alone cannot show half a character."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class Logprobs(Struct):
    content: list[TokenLogprob]
    refusal: None = None


class FunctionDelta(Struct):
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolCallDelta(Struct):
    """The first of an index has id, type and name, the later ones only more text of the arguments."""

    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class Delta(Struct):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChunkChoice(Struct):
    index: int
    delta: Delta
    logprobs: Logprobs | None = None
    finish_reason: str | None = None


class Chunk(Struct):
    """One event of a stream. `usage` is absent unless asked for; then null in all but the last."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    object: str = "chat.completion.chunk"
    service_tier: str | UnsetType = UNSET
    usage: Usage | None | UnsetType = UNSET


class Function(Struct):
    name: str
    arguments: str


class ToolCall(Struct):
    id: str
    function: Function
    type: str = "function"


class Message(Struct):
    content: str | None
    role: str = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class Choice(Struct):
    index: int
    message: Message
    finish_reason: str
    logprobs: Logprobs | None = None


class Completion(Struct):
    """A whole answer."""

    id: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    object: str = "chat.completion"
    service_tier: str | UnsetType = UNSET
