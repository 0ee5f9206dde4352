"""Attention over a paged cache: writes the new keys and values, then attends causally over all of the sequence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ftc.ops.op import Op

# contract: q [N, nh, d], k [N, nkv, d], v [N, nkv, dv] -> [N, nh, dv] of q's type.
# pool [pages, layers, page_tokens, nkv * (d + dv)]: per token the keys of all heads, then the values.
# state [4] int32 of the pool: [0] live pages, [1] faults. A page number outside the live ones counts a fault and gives NaN.
# ordinal 0-d int32: the layer's index in the pool. pages, offsets, lengths: see trace.inputs.Step.
# window > 0: only the last `window` keys, itself included. sinks [nh]: one more logit in the denominator.
# selected [N, K] int32 or None: positions a row may attend to (-1: none).


def _sequences(offsets: Tensor) -> list[tuple[int, int, int]]:
    at = offsets.tolist()
    return [(s, a, b) for s, (a, b) in enumerate(zip(at, at[1:], strict=False)) if b > a]


def write_rows(pool: Tensor, state: Tensor, layer: int, pages: Tensor, start: int, rows: Tensor) -> bool:
    """Writes rows [n, elements] at positions start.. of one sequence; False (and a fault) where a page is not live."""
    size = pool.shape[2]
    position = torch.arange(start, start + rows.shape[0], device=pool.device)
    page = pages[position // size].long()
    if bool(((page < 0) | (page >= state[0])).any()):
        state[1] += 1
        return False
    pool[page, layer, position % size] = rows.to(pool.dtype)
    return True


def read_rows(pool: Tensor, layer: int, pages: Tensor, length: int) -> Tensor:
    """The first `length` entries of one sequence, [length, elements] float32."""
    count = -(-length // pool.shape[2])
    return pool[pages[:count].long(), layer].flatten(0, 1)[:length].float()


def _reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pool: Tensor,
    state: Tensor,
    ordinal: Tensor,
    pages: Tensor,
    offsets: Tensor,
    lengths: Tensor,
    scale: float,
    window: int,
    softcap: float,
    sinks: Tensor | None,
    selected: Tensor | None,
) -> Tensor:
    heads, kv_heads, d, dv = q.shape[1], k.shape[1], q.shape[2], v.shape[2]
    layer = int(ordinal)
    out = q.new_empty((q.shape[0], heads, dv))
    for s, a, b in _sequences(offsets):
        start = int(lengths[s])
        new = torch.cat((k[a:b].flatten(1), v[a:b].flatten(1)), -1)
        if not write_rows(pool, state, layer, pages[s], start, new):
            out[a:b] = float("nan")
            continue
        total = start + b - a
        both = read_rows(pool, layer, pages[s], total)
        keys = both[:, : kv_heads * d].view(total, kv_heads, d).repeat_interleave(heads // kv_heads, 1)
        values = both[:, kv_heads * d :].view(total, kv_heads, dv).repeat_interleave(heads // kv_heads, 1)
        logits = torch.einsum("nhd,thd->hnt", q[a:b].float(), keys) * scale
        if softcap > 0:
            logits = softcap * torch.tanh(logits / softcap)
        at = torch.arange(start, total, device=q.device)[:, None]
        key = torch.arange(total, device=q.device)[None]
        hidden = key > at
        if window > 0:
            hidden |= key <= at - window
        if selected is not None:
            chosen = torch.zeros((b - a, total + 1), dtype=torch.bool, device=q.device)
            chosen.scatter_(1, torch.where(selected[a:b] < 0, total, selected[a:b]).long(), True)
            hidden |= ~chosen[:, :total]
        logits = logits.masked_fill(hidden, float("-inf"))
        if sinks is not None:
            extra = sinks.float().view(-1, 1, 1).expand(-1, b - a, 1)
            weights = torch.cat((logits, extra), -1).softmax(-1)[..., :-1]
        else:
            weights = logits.softmax(-1)
        out[a:b] = torch.einsum("hnt,thd->nhd", weights, values).to(q.dtype)
    return out


def _fake(q: Tensor, k: Tensor, v: Tensor, *_: object) -> Tensor:
    return q.new_empty((q.shape[0], q.shape[1], v.shape[2]))


attention = Op(
    "attention",
    "(Tensor q, Tensor k, Tensor v, Tensor pool, Tensor(a!) state, Tensor ordinal, Tensor pages, Tensor offsets,"
    " Tensor lengths, float scale, int window, float softcap, Tensor? sinks, Tensor? selected) -> Tensor",
    _reference,
    _fake,
)


def _choose_reference(
    q: Tensor,
    k: Tensor,
    weights: Tensor,
    pool: Tensor,
    state: Tensor,
    ordinal: Tensor,
    pages: Tensor,
    offsets: Tensor,
    lengths: Tensor,
    top_k: int,
) -> Tensor:
    layer = int(ordinal)
    out = torch.full((q.shape[0], top_k), -1, dtype=torch.int32, device=q.device)
    for s, a, b in _sequences(offsets):
        start = int(lengths[s])
        if not write_rows(pool, state, layer, pages[s], start, k[a:b]):
            continue
        total = start + b - a
        keys = read_rows(pool, layer, pages[s], total)
        score = torch.einsum("nhd,td->nht", q[a:b].float(), keys).relu()
        score = torch.einsum("nht,nh->nt", score, weights[a:b].float())
        at = torch.arange(start, total, device=q.device)[:, None]
        score = score.masked_fill(torch.arange(total, device=q.device)[None] > at, float("-inf"))
        best = score.topk(min(top_k, total), -1)
        out[a:b, : best.indices.shape[1]] = torch.where(best.values == float("-inf"), -1, best.indices).int()
    return out


def _choose_fake(q: Tensor, *rest: Any) -> Tensor:
    return q.new_empty((q.shape[0], rest[-1]), dtype=torch.int32)


# contract: q [N, heads, d], k [N, d], weights [N, heads] -> positions [N, top_k] int32 of the best earlier tokens by
# sum over heads of weight * relu(q . k), itself included, -1 where there are fewer. pool [pages, layers, page_tokens, d].
choose_tokens = Op(
    "choose_tokens",
    "(Tensor q, Tensor k, Tensor weights, Tensor pool, Tensor(a!) state, Tensor ordinal, Tensor pages, Tensor offsets,"
    " Tensor lengths, int top_k) -> Tensor",
    _choose_reference,
    _choose_fake,
)
