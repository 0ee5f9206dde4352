"""The wire of tokenize and detokenize."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class TokenizeRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """A `prompt` as it is, or `messages` (and `tools`) as the chat template writes them."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Token ids; special tokens among them become their text."""

    model: str | None = None
    tokens: list[int]
