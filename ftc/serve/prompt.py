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
    where: str = "messages",
) -> Prompt:
    """Renders and tokenizes. Safe to call from any thread. `where` is the request's own name of the conversation.

    Raises RequestError naming the message or the missing template, TooLongError when no output token would fit.
    """
    if model.template is None:
        raise missing_template_error(model.folder)
    text = model.template.render(normalize(messages), tools, **variables)
    if len(text) > LONG_CHARACTERS_PER_TOKEN * context_tokens:
        _refuse_by_slices(model, text, context_tokens, where)
    tokens = model.tokenizer.encode(text)
    check_length(len(tokens), context_tokens, where)
    return Prompt(tokens, starts_in_reasoning(model.chat, text))


def build_plain_prompt(model: ServedModel, text: str, context_tokens: int, where: str, special: bool = True) -> Prompt:
    """A text as it is; with `special` the vocabulary's own tokens go around it. Raises TooLongError naming `where`."""
    if len(text) > LONG_CHARACTERS_PER_TOKEN * context_tokens:
        _refuse_by_slices(model, text, context_tokens, where)
    tokens = model.tokenizer.encode(text, special=special)
    check_length(len(tokens), context_tokens, where)
    return Prompt(tokens, in_reasoning=False)


def check_length(count: int, context_tokens: int, where: str) -> None:
    """Raises TooLongError when no output token would fit behind `count` tokens."""
    if count >= context_tokens:
        raise _too_long(str(count), context_tokens, where)


def _refuse_by_slices(model: ServedModel, text: str, context_tokens: int, where: str) -> None:
    """Tokenizes a text that is surely too long only as far as is needed to be sure: 12 MiB as a whole take 30 s."""
    count = 0
    for end in range(SLICE_CHARACTERS, len(text), SLICE_CHARACTERS):
        count += len(model.tokenizer.encode(text[end - SLICE_CHARACTERS : end])) - CUT_TOKENS
        if count >= context_tokens:
            raise _too_long(f"about {count * len(text) // end}", context_tokens, where)


def _too_long(count: str, context_tokens: int, where: str) -> TooLongError:
    # Agents look for the first half or for "maximum context length" to know that they must shorten what they send.
    return TooLongError(
        f"prompt is too long: {count} tokens > {context_tokens} maximum; "
        f"this model's maximum context length is {context_tokens} tokens",
        where=where,
        hint="shorten the conversation",
    )
