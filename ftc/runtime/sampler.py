"""From a step's logits to tokens: the parameters of each row, kept as tensors between steps, and the log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ftc.engine.messages import Logprob
from ftc.ops.sample import sample
from ftc.runtime.request import Request

# name -> type of one value per row, in the order in which the op takes them after the mask.
_PARAMETERS = {
    "forced": np.int32,
    "temperature": np.float32,
    "top_k": np.int32,
    "top_p": np.float32,
    "min_p": np.float32,
    "presence": np.float32,
    "frequency": np.float32,
    "repetition": np.float32,
    "seed": np.int64,
    "position": np.int64,
}


@dataclass(frozen=True)
class Draw:
    """What one row became: a token, or -1 when nothing was allowed; `logprob` where it was asked for."""

    token: int
    logprob: Logprob | None = None


class Sampler:
    """Draws for up to `rows` requests at once; a request that stays in its row costs two element writes a step."""

    def __init__(self, rows: int, vocab: int) -> None:
        self._vocab = vocab
        self._values = {name: np.zeros(rows, kind) for name, kind in _PARAMETERS.items()}
        self._tensors = {name: torch.from_numpy(values) for name, values in self._values.items()}
        self._mask = torch.zeros((rows, -(-vocab // 32)), dtype=torch.int32)
        self._rows: list[Request | None] = [None] * rows
        self._plain = [False] * rows  # greedy and nothing else, unless a token is forced
        self._counts: Tensor | None = None
        self._seen: Tensor | None = None
        self._counted: list[tuple[Request | None, int]] = [(None, 0)] * rows

    def draw(self, logits: Tensor, requests: list[Request]) -> list[Draw]:
        """One draw per request; row i of the logits [>= len(requests), V] float32 is the next token of requests[i].

        The logits may be overwritten.
        """
        count = len(requests)
        logits = logits[:count]
        for row, request in enumerate(requests):
            if self._rows[row] is not request:
                self._enter(row, request)
        # Taken before anything is changed: they tell what the model thinks, not what the request's settings make of it.
        raw = {row: logits[row].log_softmax(-1) for row, r in enumerate(requests) if r.logprobs >= 0}
        tokens = self._greedy(logits, requests) or self._sampled(logits, requests)
        draws = [Draw(token) for token in tokens]
        for row, logprobs in raw.items():
            if tokens[row] >= 0:
                draws[row] = Draw(tokens[row], _logprob(logprobs, tokens[row], requests[row].logprobs))
        return draws

    def _enter(self, row: int, request: Request) -> None:
        s, v = request.sampling, self._values
        self._rows[row] = request
        v["temperature"][row], v["top_p"][row], v["min_p"][row] = s.temperature, s.top_p, s.min_p
        v["presence"][row], v["frequency"][row] = s.presence_penalty, s.frequency_penalty
        v["repetition"][row] = s.repetition_penalty
        # A top_k over the vocabulary is none, and fits the int32 then.
        v["top_k"][row] = s.top_k if s.top_k < self._vocab else 0
        v["seed"][row] = (s.seed + 2**63) % 2**64 - 2**63
        self._plain[row] = s.temperature == 0 and not (_penalised(request) or s.logit_bias or request.mask)

    def _greedy(self, logits: Tensor, requests: list[Request]) -> list[int] | None:
        """The best tokens, where that is all that is asked for and every best logit is a number."""
        for row, request in enumerate(requests):
            if not self._plain[row] or request.next_forced() >= 0 or _stops_barred(request):
                return None
        # numpy finds 8 x 8192 maxima in 20 us on one thread; torch wakes a second one for it.
        values = logits.numpy()
        best = values.argmax(-1)
        return best.tolist() if np.isfinite(values[np.arange(len(best)), best]).all() else None

    def _sampled(self, logits: Tensor, requests: list[Request]) -> list[int]:
        count = len(requests)
        masked = penalised = False
        for row, request in enumerate(requests):
            self._values["forced"][row] = request.next_forced()
            self._values["position"][row] = len(request.tokens)
            _edit(logits[row], request)
            masked |= request.mask is not None
            penalised |= _penalised(request)
        if masked:
            self._fill_masks(requests)
        if penalised:
            self._fill_counts(requests)
        return sample(
            logits,
            self._mask[:count] if masked else None,
            *(tensor[:count] for tensor in self._tensors.values()),
            self._counts[:count] if penalised and self._counts is not None else None,
            self._seen[:count] if penalised and self._seen is not None else None,
        ).tolist()

    def _fill_masks(self, requests: list[Request]) -> None:
        for row, request in enumerate(requests):
            allowed = request.mask(request.output) if request.mask is not None else None
            if allowed is None:
                self._mask[row] = -1
            else:
                self._mask[row] = torch.from_numpy(allowed)

    def _fill_counts(self, requests: list[Request]) -> None:
        if self._counts is None or self._seen is None:
            rows = len(self._rows)
            self._counts = torch.zeros((rows, self._vocab), dtype=torch.int32)
            self._seen = torch.zeros((rows, self._vocab), dtype=torch.uint8)
        counts, seen = self._counts.numpy(), self._seen.numpy()
        for row, request in enumerate(requests):
            if not _penalised(request):
                continue
            owner, done = self._counted[row]
            if owner is not request:
                counts[row], seen[row] = 0, 0
                seen[row, request.tokens[: request.prompt_tokens]] = 1
                done = request.prompt_tokens
            new = request.tokens[done:]
            np.add.at(counts[row], new, 1)
            seen[row, new] = 1
            self._counted[row] = (request, len(request.tokens))


def _penalised(request: Request) -> bool:
    s = request.sampling
    return s.presence_penalty != 0 or s.frequency_penalty != 0 or s.repetition_penalty != 1


def _stops_barred(request: Request) -> bool:
    return request.drawn < request.min_tokens and bool(request.stop_ids)


def _edit(logits: Tensor, request: Request) -> None:
    """Adds the request's own bias to its logits [V], and bars its stop ids while the output is shorter than it must be."""
    bias = request.sampling.logit_bias
    if bias:
        logits.index_add_(0, torch.tensor(list(bias)), torch.tensor(list(bias.values()), dtype=logits.dtype))
    if _stops_barred(request):
        logits[list(request.stop_ids)] = -torch.inf


def _logprob(logprobs: Tensor, token: int, best: int) -> Logprob:
    top = logprobs.topk(best)
    pairs = list(zip(top.indices.tolist(), top.values.tolist(), strict=True))
    return Logprob(token=token, logprob=float(logprobs[token]), top=pairs)
