"""Routing: scores over all experts, the choice of K, and their weights."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ftc.ops.op import Op
from ftc.spec.ffn import Router

# contract: logits [N, E] float32, bias [E] or None -> ids [N, K] int32 and weights [N, K] float32, best choice first.


def _score(logits: Tensor, kind: str) -> Tensor:
    match kind:
        case "softmax":
            return logits.softmax(-1)
        case "sigmoid":
            return logits.sigmoid()
        case "sqrt_softplus":
            return F.softplus(logits).sqrt()
    raise AssertionError(kind)


def _sparse_mixer(logits: Tensor, top_k: int, tolerance: float) -> tuple[Tensor, Tensor]:
    left, ids, weights = logits, [], []
    for _ in range(top_k):
        best, at = left.max(-1, keepdim=True)
        near = (best - logits) / logits.abs().maximum(best) <= 2 * tolerance
        weights.append(left.masked_fill(~near, float("-inf")).softmax(-1).gather(-1, at))
        ids.append(at)
        left = left.scatter(-1, at, float("-inf"))
    return torch.cat(ids, -1).int(), torch.cat(weights, -1)


def _reference(
    logits: Tensor,
    bias: Tensor | None,
    top_k: int,
    score: str,
    choose_first: bool,
    groups: int,
    groups_taken: int,
    group_score: str,
    renormalize: bool,
    epsilon: float,
    scale: float,
    rows: Tensor,
) -> tuple[Tensor, Tensor]:
    if score == "sparse_mixer":
        return _sparse_mixer(logits, top_k, epsilon)
    scores = logits if choose_first else _score(logits, score)
    choice = scores if bias is None else scores + bias
    if groups > 1:
        grouped = choice.unflatten(-1, (groups, -1))
        best = grouped.amax(-1) if group_score == "max" else grouped.topk(2, -1).values.sum(-1)
        kept = torch.zeros_like(best, dtype=torch.bool).scatter_(-1, best.topk(groups_taken, -1).indices, True)
        choice = grouped.masked_fill(~kept.unsqueeze(-1), float("-inf")).flatten(-2)
    order = choice.sort(dim=-1, descending=True, stable=True).indices[..., :top_k]
    weights = scores.gather(-1, order)
    if choose_first:
        weights = _score(weights, score)
    if renormalize:
        weights = weights / (weights.sum(-1, keepdim=True) + epsilon)
    return order.int(), weights * scale


def _fake(logits: Tensor, bias: Tensor | None, top_k: int, *_: object) -> tuple[Tensor, Tensor]:
    n = logits.shape[0]
    return logits.new_empty((n, top_k), dtype=torch.int32), logits.new_empty((n, top_k), dtype=torch.float32)


route_op = Op(
    "route",
    "(Tensor logits, Tensor? bias, int top_k, str score, bool choose_first, int groups, int groups_taken,"
    " str group_score, bool renormalize, float epsilon, float scale, Tensor rows) -> (Tensor, Tensor)",
    _reference,
    _fake,
)


def route(logits: Tensor, r: Router, bias: Tensor | None, rows: Tensor) -> tuple[Tensor, Tensor]:
    """`logits` [N, E] float32 as `r` says, before its softcap."""
    if r.softcap > 0:
        logits = r.softcap * torch.tanh(logits / r.softcap)
    g = r.groups
    count, taken, group_score = (g.count, g.taken, g.score) if g else (1, 1, "max")
    return route_op(
        logits, bias, r.top_k, r.score, r.choose_first, count, taken, group_score, r.renormalize, r.epsilon, r.scale, rows
    )


def look_up(logits: Tensor, r: Router, table: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Experts of each token id from `table` [vocab, K] int32, weighted by their scores; plain torch."""
    ids = table.index_select(0, tokens)
    weights = _score(logits, r.score).gather(-1, ids.long())
    if r.renormalize:
        weights = weights / (weights.sum(-1, keepdim=True) + r.epsilon)
    return ids, weights * r.scale
