"""Attention over a paged cache: writes the new keys and values, then attends causally over all of the sequence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ftc.ops.op import Op
from ftc.ops.paged import in_blocks, read_rows, sequences, visible, write_rows

# contract: q [N, nh, d], k [N, nkv, d], v [N, nkv, dv] -> [N, nh, dv] of q's type.
# pool [pages, layers, page_tokens, nkv * (d + dv)]: per token the keys of all heads, then the values.
# state [4] int32 of the pool: [0] live pages, [1] faults. A page number outside the live ones counts a fault and gives NaN.
# ordinal 0-d int32: the layer's index in the pool. pages, offsets, lengths: see trace.inputs.Step.
# window > 0: only the last `window` keys, itself included. sinks [nh]: one more logit in the denominator.
# selected [N, K] int32 or None: positions a row may attend to (-1: none); or [N, G, K]: numbers of the blocks of `block`
# tokens that heads of each of G equal groups may attend to.


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
    block: int = 0,
) -> Tensor:
    heads, kv_heads, dv = q.shape[1], k.shape[1], v.shape[2]
    layer = int(ordinal)
    out = q.new_empty((q.shape[0], heads, dv))
    for s, a, b in sequences(offsets):
        start = int(lengths[s])
        new = torch.cat((k[a:b].flatten(1), v[a:b].flatten(1)), -1)
        if not write_rows(pool, state, layer, pages[s], start, new):
            out[a:b] = float("nan")
            continue
        total = start + b - a
        both = read_rows(pool, layer, pages[s], total)
        chosen = None if selected is None else selected[a:b]
        seen = visible(start, total, window, None if block else chosen, q.device)
        if chosen is not None and block:
            seen = seen & in_blocks(start, total, chosen, block).repeat_interleave(heads // chosen.shape[1], 0)
        out[a:b] = _attend(q[a:b], both, kv_heads, dv, scale, softcap, sinks, seen)
    return out


def _attend(
    q: Tensor, both: Tensor, kv_heads: int, dv: int, scale: float, softcap: float, sinks: Tensor | None, seen: Tensor
) -> Tensor:
    n, heads, d = q.shape
    keys = both[:, : kv_heads * d].view(-1, kv_heads, d).repeat_interleave(heads // kv_heads, 1)
    values = both[:, kv_heads * d :].view(-1, kv_heads, dv).repeat_interleave(heads // kv_heads, 1)
    logits = torch.einsum("nhd,thd->hnt", q.float(), keys) * scale
    if softcap > 0:
        logits = softcap * torch.tanh(logits / softcap)
    logits = logits.masked_fill(~seen, float("-inf"))
    if sinks is not None:
        extra = sinks.float().view(-1, 1, 1).expand(-1, n, 1)
        weights = torch.cat((logits, extra), -1).softmax(-1)[..., :-1]
    else:
        weights = logits.softmax(-1)
    return torch.einsum("hnt,thd->nhd", weights, values).to(q.dtype)


def _fake(q: Tensor, k: Tensor, v: Tensor, *_: object) -> Tensor:
    return q.new_empty((q.shape[0], q.shape[1], v.shape[2]))


attention = Op(
    "attention",
    "(Tensor q, Tensor k, Tensor v, Tensor pool, Tensor(a!) state, Tensor ordinal, Tensor pages, Tensor offsets,"
    " Tensor lengths, float scale, int window, float softcap, Tensor? sinks, Tensor? selected, int block=0) -> Tensor",
    _reference,
    _fake,
)


def _shared_reference(
    q: Tensor,
    pool: Tensor,
    state: Tensor,
    ordinal: Tensor,
    pages: Tensor,
    offsets: Tensor,
    lengths: Tensor,
    kv_heads: int,
    v_dim: int,
    scale: float,
    window: int,
    softcap: float,
    sinks: Tensor | None,
) -> Tensor:
    out = q.new_empty((*q.shape[:2], v_dim))
    size, live = pool.shape[2], int(state[0])
    for s, a, b in sequences(offsets):
        start = int(lengths[s])
        total = start + b - a
        used = pages[s, : -(-total // size)]
        if bool(((used < 0) | (used >= live)).any()):
            out[a:b] = float("nan")
            continue
        both = read_rows(pool, int(ordinal), pages[s], total)
        out[a:b] = _attend(q[a:b], both, kv_heads, v_dim, scale, softcap, sinks, visible(start, total, window, None, q.device))
    return out


def _shared_fake(q: Tensor, *rest: Any) -> Tensor:
    return q.new_empty((*q.shape[:2], rest[7]))


# contract: as attention, over the keys and values that an earlier layer of the same step has written at `ordinal`.
attend_shared = Op(
    "attend_shared",
    "(Tensor q, Tensor pool, Tensor(a!) state, Tensor ordinal, Tensor pages, Tensor offsets, Tensor lengths,"
    " int kv_heads, int v_dim, float scale, int window, float softcap, Tensor? sinks) -> Tensor",
    _shared_reference,
    _shared_fake,
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
    for s, a, b in sequences(offsets):
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


def _choose_blocks_reference(
    q: Tensor,
    k: Tensor,
    pool: Tensor,
    state: Tensor,
    ordinal: Tensor,
    pages: Tensor,
    offsets: Tensor,
    lengths: Tensor,
    block: int,
    top_k: int,
    local: int,
) -> Tensor:
    layer = int(ordinal)
    out = torch.full((q.shape[0], q.shape[1], top_k), -1, dtype=torch.int32, device=q.device)
    for s, a, b in sequences(offsets):
        start = int(lengths[s])
        if not write_rows(pool, state, layer, pages[s], start, k[a:b]):
            continue
        total = start + b - a
        score = torch.einsum("nhd,td->nht", q[a:b].float(), read_rows(pool, layer, pages[s], total))
        at = torch.arange(start, total, device=q.device)
        future = torch.arange(total, device=q.device)[None] > at[:, None]
        score = F.pad(score.masked_fill(future[:, None], float("-inf")), (0, -total % block), value=float("-inf"))
        best = score.unflatten(-1, (-1, block)).amax(-1)
        own = (at // block)[:, None] - torch.arange(best.shape[-1], device=q.device)
        best = best.masked_fill(((own >= 0) & (own < local))[:, None], float("inf")).topk(min(top_k, best.shape[-1]), -1)
        out[a:b, :, : best.indices.shape[-1]] = torch.where(best.values == float("-inf"), -1, best.indices).int()
    return out


def _choose_blocks_fake(q: Tensor, *rest: Any) -> Tensor:
    return q.new_empty((q.shape[0], q.shape[1], rest[-2]), dtype=torch.int32)


# contract: q [N, G, d], k [N, d] -> numbers [N, G, top_k] int32 of the blocks of `block` tokens with the largest q . k of
# any token up to the row's own, -1 where there are fewer; the row's block and the `local` - 1 before it always come first.
choose_blocks = Op(
    "choose_blocks",
    "(Tensor q, Tensor k, Tensor pool, Tensor(a!) state, Tensor ordinal, Tensor pages, Tensor offsets, Tensor lengths,"
    " int block, int top_k, int local) -> Tensor",
    _choose_blocks_reference,
    _choose_blocks_fake,
)
