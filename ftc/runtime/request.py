"""One request inside the engine: its tokens, how far they are computed, what it holds, and which requests are refused."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ftc.engine.messages import Sampling, Submit
from ftc.errors import RequestError

# Given the output so far, the packed row [ceil(vocab / 32)] int32 of what may come next, or None for anything.
Mask = Callable[[list[int]], "np.ndarray | None"]


class Request:
    """`tokens` is prompt and output; the caches hold the first `computed` of them, in `pages` and `slot` (-1: none).

    What is pending is computed next: one token in a decode step, more in prefill chunks. A request that lost its pages
    starts again at computed = 0 and goes on where it was.
    """

    def __init__(self, submit: Submit, arrival: int, now: float, mask: Mask | None = None) -> None:
        self.id, self.sampling, self.logprobs = submit.id, submit.sampling, submit.logprobs
        self.tokens = list(submit.tokens)
        self.prompt_tokens = len(submit.tokens)
        self.max_tokens, self.min_tokens = submit.max_tokens, submit.min_tokens
        self.stop_ids = frozenset(submit.stop_ids)
        self.forced, self.mask = submit.forced, mask
        self.rank = (-submit.priority, arrival)
        self.limit = math.inf if submit.deadline is None else now + submit.deadline
        self.computed = 0
        self.pages: list[int] = []
        self.slot = -1

    @property
    def pending(self) -> int:
        """Tokens that are to be computed before the next one can be drawn."""
        return len(self.tokens) - self.computed

    @property
    def drawn(self) -> int:
        """Output tokens so far."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_tokens :]

    @property
    def state_in(self) -> int:
        """The slot that the next step reads; -1 while nothing is computed."""
        return self.slot if self.computed else -1

    def next_forced(self) -> int:
        """The token the output must go on with, or -1."""
        drawn = self.drawn
        return self.forced[drawn] if drawn < len(self.forced) else -1


def check(submit: Submit, vocab: int) -> None:
    """Raises RequestError, naming the field, for a request that makes no sense whatever the engine holds."""
    for where, tokens in (("tokens", submit.tokens), ("forced", submit.forced), ("stop_ids", submit.stop_ids)):
        # Two passes in C instead of one in Python: prompts may have a million tokens.
        if tokens and not (min(tokens) >= 0 and max(tokens) < vocab):
            bad = next(token for token in tokens if not 0 <= token < vocab)
            raise RequestError(f"not a token id: the vocabulary has {vocab}", where=where, value=bad)
    if not submit.tokens:
        raise RequestError("the prompt is empty", where="tokens")
    if submit.grammar is not None:
        raise RequestError("constrained output is not supported", where="grammar", value=submit.grammar.syntax)
    _between("max_tokens", submit.max_tokens, 1, math.inf)
    _between("min_tokens", submit.min_tokens, 0, math.inf)
    _between("logprobs", submit.logprobs, -1, vocab)
    if submit.deadline is not None:
        _between("deadline", submit.deadline, 0, math.inf)
    _check_sampling(submit.sampling, vocab)


def _check_sampling(sampling: Sampling, vocab: int) -> None:
    _between("temperature", sampling.temperature, 0, math.inf)
    _between("top_k", sampling.top_k, 0, math.inf)
    _between("top_p", sampling.top_p, 0, 1)
    _between("min_p", sampling.min_p, 0, 1)
    _between("repetition_penalty", sampling.repetition_penalty, 0, math.inf)
    if sampling.repetition_penalty == 0:
        raise RequestError("must be greater than 0", where="repetition_penalty", value=0.0)
    for where in ("presence_penalty", "frequency_penalty"):
        _between(where, getattr(sampling, where), -math.inf, math.inf)
    for token, bias in sampling.logit_bias.items():
        _between("logit_bias", token, 0, vocab - 1)
        _between("logit_bias", bias, -math.inf, math.inf)


def _between(where: str, value: float, low: float, high: float) -> None:
    """Finite and within the bounds; NaN and infinities are never."""
    if not (math.isfinite(value) and low <= value <= high):
        bounds = f"from {low} to {high}" if math.isfinite(high) else f"at least {low}" if math.isfinite(low) else "finite"
        raise RequestError(f"must be {bounds}", where=where, value=value)
