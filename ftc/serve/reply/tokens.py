"""How a token and its probability are told: its text, its own bytes, and the best others."""

from __future__ import annotations

from ftc.engine.messages import Logprob
from ftc.serve.model import ServedModel
from ftc.serve.schema.chat import TokenLogprob, TopLogprob


def token_text(model: ServedModel, token: int) -> tuple[str, list[int]]:
    """A token's text, with U+FFFD for a part of a character, and its exact bytes."""
    data = model.tokenizer.token_bytes(token)
    return data.decode("utf-8", "replace"), list(data)


def logprob(model: ServedModel, entry: Logprob) -> TokenLogprob:
    """One drawn token as chat completions and responses tell it."""
    text, data = token_text(model, entry.token)
    top = []
    for token, value in entry.top:
        other, its = token_text(model, token)
        top.append(TopLogprob(other, value, its))
    return TokenLogprob(text, entry.logprob, data, top)
