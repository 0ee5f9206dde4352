"""The router's choice in one kernel: score, the best K one after the other, their weights."""

# Triton's own types are not Python's.
# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _route(
    logits, bias, ids, weights, experts, top_k, epsilon, scale,
    E: tl.constexpr, K: tl.constexpr, SOFTMAX: tl.constexpr, BIASED: tl.constexpr, RENORMALIZE: tl.constexpr,
):  # fmt: skip
    t = tl.program_id(0)
    e = tl.arange(0, E)
    inside = e < experts
    x = tl.load(logits + t * experts + e, mask=inside, other=-float("inf"))
    if SOFTMAX:
        score = tl.exp(x - tl.max(x, axis=0))
        score = score / tl.sum(score, axis=0)
    else:
        score = tl.sigmoid(x)
    choice = tl.where(inside, score, -float("inf"))
    if BIASED:
        choice += tl.load(bias + e, mask=inside, other=0.0)
    k = tl.arange(0, K)
    found = tl.zeros((K,), tl.int32)
    given = tl.zeros((K,), tl.float32)
    for i in range(0, top_k):
        best = tl.argmax(choice, axis=0)
        found = tl.where(k == i, best, found)
        given = tl.where(k == i, tl.sum(tl.where(e == best, score, 0.0), axis=0), given)
        choice = tl.where(e == best, -float("inf"), choice)
    if RENORMALIZE:
        given = given / (tl.sum(given, axis=0) + epsilon)
    tl.store(ids + t * top_k + k, found, mask=k < top_k)
    tl.store(weights + t * top_k + k, given * scale, mask=k < top_k)


def supports(*arguments: Any) -> bool:
    """Softmax or sigmoid over all experts, without groups; `arguments` are tensors or graph nodes."""
    return arguments[3] in ("softmax", "sigmoid") and not arguments[4] and arguments[5] == 1


def route(
    logits: Tensor, bias: Tensor | None, top_k: int, score: str, choose_first: bool, groups: int, groups_taken: int,
    group_score: str, renormalize: bool, epsilon: float, scale: float, rows: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    n, experts = logits.shape
    ids = torch.empty((n, top_k), dtype=torch.int32, device=logits.device)
    weights = torch.empty((n, top_k), dtype=torch.float32, device=logits.device)
    _route[(n,)](
        logits, logits if bias is None else bias, ids, weights, experts, top_k, epsilon, scale,
        E=triton.next_power_of_2(experts), K=triton.next_power_of_2(top_k), SOFTMAX=score == "softmax",
        BIASED=bias is not None, RENORMALIZE=renormalize, num_warps=4,
    )  # fmt: skip
    return ids, weights
