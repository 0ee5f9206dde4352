"""The wire of the messages API: the fields a request may have, their types and bounds, and the shape of the answers."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

Text = Annotated[str, Meta(min_length=1)]


# Fields that are taken and change nothing in the answer: hints for caches and speed, accounting, tags.
NO_EFFECT = frozenset({
    "cache_control", "speed", "user_profile_id", "workspace_id", "betas", "context_management", "metadata", "service_tier",
    "inference_geo", "diagnostics", "billing_policy", "fallbacks", "fallback_credit_token",
})  # fmt: skip


class CountRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """What counts towards the prompt; null means absent."""

    model: str
    messages: Annotated[list[dict[str, Any]], Meta(min_length=1)]
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None

    # Accepted without effect, as the standard allows: hints for caches and speed, accounting, tags.
    cache_control: dict[str, Any] | None = None
    speed: str | None = None
    user_profile_id: str | None = None
    workspace_id: str | None = None
    betas: list[str] | None = None
    context_management: dict[str, Any] | None = None

    # Honoured at the one value that this server can give, refused otherwise.
    mcp_servers: list[dict[str, Any]] | None = None

    chat_template_kwargs: dict[str, Any] | None = None


class MessagesRequest(CountRequest, kw_only=True, forbid_unknown_fields=True):
    """A request. Fields of the published schema first, then those that engines of this kind add."""

    max_tokens: Annotated[int, Meta(ge=1)]
    stream: bool | None = None
    stop_sequences: Annotated[list[Text], Meta(max_length=16)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None

    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    inference_geo: str | None = None
    diagnostics: dict[str, Any] | None = None
    billing_policy: Any = None
    fallbacks: Any = None
    fallback_credit_token: str | None = None

    container: Any = None
    compaction: Any = None
    thread: Any = None

    seed: int | None = None


class OutputDetails(Struct):
    thinking_tokens: int


class Usage(Struct):
    """Counts in tokens; `input_tokens` are those computed, without the ones read from the cache."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0
    output_tokens_details: OutputDetails | UnsetType = UNSET


class TextBlock(Struct, tag="text"):
    text: str


class ThinkingBlock(Struct, tag="thinking"):
    """`signature` proves nothing here; clients send it back with the block."""

    thinking: str
    signature: str = ""


class ToolUseBlock(Struct, tag="tool_use"):
    """`input` is the arguments' own JSON text: it may hold what no value can, such as half a character."""

    id: str
    name: str
    input: Raw


class Message(Struct, tag="message"):
    """A whole answer, or with null and empty fields the start of a stream."""

    id: str
    model: str
    content: list[TextBlock | ThinkingBlock | ToolUseBlock]
    usage: Usage
    role: str = "assistant"
    stop_reason: str | None = None
    stop_sequence: str | None = None
