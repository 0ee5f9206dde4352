"""From a conversation to prompt tokens, and whether they fit."""

from __future__ import annotations

from typing import Any

import msgspec

from ftc.engine.refusal import TooLongError
from ftc.serve.model import ServedModel
from ftc.text.conversation import normalize
from ftc.text.parser import starts_in_reasoning
from ftc.text.template import missing_template_error

# Text has 3 to 5 characters a token; only unusual text, such as long runs of blanks, has more than this.
LONG_CHARACTERS_PER_TOKEN = 8
SLICE_CHARACTERS = 1 << 14
# A word cut in two by a slice's end gives a few tokens more than it has.
CUT_TOKENS = 8


class Prompt(msgspec.Struct, frozen=True):
    """What the model is given. `in_reasoning`: the prompt ends inside an open reasoning block."""

    tokens: list[int]
    in_reasoning: bool


def build_prompt(
    model: ServedModel,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    variables: dict[str, Any],
    context_tokens: int,
) -> Prompt:
    """Renders and tokenizes. Safe to call from any thread.

    Raises RequestError naming the message or the missing template, TooLongError when no output token would fit.
    """
    if model.template is None:
        raise missing_template_error(model.folder)
    text = model.template.render(normalize(messages), tools, **variables)
    if len(text) > LONG_CHARACTERS_PER_TOKEN * context_tokens:
        _refuse_by_slices(model, text, context_tokens)
    tokens = model.tokenizer.encode(text)
    if len(tokens) >= context_tokens:
        raise _too_long(str(len(tokens)), context_tokens)
    return Prompt(tokens, starts_in_reasoning(model.chat, text))


def _refuse_by_slices(model: ServedModel, text: str, context_tokens: int) -> None:
    """Tokenizes a text that is surely too long only as far as is needed to be sure: 12 MiB as a whole take 30 s."""
    count = 0
    for end in range(SLICE_CHARACTERS, len(text), SLICE_CHARACTERS):
        count += len(model.tokenizer.encode(text[end - SLICE_CHARACTERS : end])) - CUT_TOKENS
        if count >= context_tokens:
            raise _too_long(f"about {count * len(text) // end}", context_tokens)


def _too_long(count: str, context_tokens: int) -> TooLongError:
    return TooLongError(
        f"the prompt has {count} tokens and the context here is {context_tokens} tokens",
        where="messages",
        hint="shorten the conversation",
    )
