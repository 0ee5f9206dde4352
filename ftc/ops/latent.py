"""Latent attention over a paged cache of latents: writes the new ones, then attends causally over all of the sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from ftc.ops.op import Op
from ftc.ops.paged import read_at, read_rows, sequences, visible, write_rows

# contract: q [N, nh, P + R], each head [plain | turned]; entry [N, L + R], the new tokens' [latent | shared key part];
# up [nh * (P + V), L], per head the rows that make its P key elements, then those of its V values -> [N, nh, V] of q's type.
# pool [pages, layers, page_tokens, L + R]; state, ordinal, pages, offsets, lengths, selected as in ops.attention.
# A head's key is [up_k latent | shared part], its value up_v latent. Kernels may push up_k into the query and up_v behind
# the sum (few rows, long context) or make keys and values first: the reference takes what multiplies less.


# Logits of this many elements are made at a time: 64 MiB, where 128 heads, 512 rows and 32k tokens would make 8 GiB.
LOGITS = 16 << 20


def _reference(
    q: Tensor,
    entry: Tensor,
    up: Tensor,
    pool: Tensor,
    state: Tensor,
    ordinal: Tensor,
    pages: Tensor,
    offsets: Tensor,
    lengths: Tensor,
    scale: float,
    value_dim: int,
    selected: Tensor | None,
) -> Tensor:
    layer, heads, latent = int(ordinal), q.shape[1], up.shape[1]
    shared = entry.shape[1] - latent
    plain = q.shape[2] - shared
    up_k, up_v = up.view(heads, plain + value_dim, latent).float().split((plain, value_dim), 1)
    out = q.new_empty((q.shape[0], heads, value_dim))
    for s, a, b in sequences(offsets):
        start, total = int(lengths[s]), int(lengths[s]) + b - a
        if not write_rows(pool, state, layer, pages[s], start, entry[a:b]):
            out[a:b] = float("nan")
            continue
        chosen = None if selected is None else selected[a:b]
        qp, qr = q[a:b].float().split((plain, shared), -1)
        if chosen is not None and chosen.numel() < total:  # few rows: only what they chose is read
            low, part = read_at(pool, layer, pages[s], chosen).split((latent, shared), -1)
            value = _in_latent(qp, qr, low, part, (chosen >= 0).unsqueeze(1), up_k, up_v, scale, "nt")
        else:
            low, part = read_rows(pool, layer, pages[s], total).split((latent, shared), -1)
            seen = visible(start, total, 0, chosen, q.device).unsqueeze(1)
            value = _dense(qp, qr, low, part, seen, up_k, up_v, scale)
        out[a:b] = value.to(q.dtype)
    return out


def _dense(
    plain: Tensor, turned: Tensor, low: Tensor, part: Tensor, seen: Tensor, up_k: Tensor, up_v: Tensor, scale: float
) -> Tensor:
    """Rows [n, nh, ...] over the tokens low [t, L] and part [t, R]; seen [n, 1, t] -> [n, nh, V] float32."""
    n, t, wide = plain.shape[0], low.shape[0], up_k.shape[1] + up_v.shape[1]
    step = max(1, LOGITS // (t * plain.shape[1]))
    blocks = [slice(i, i + step) for i in range(0, n, step)]
    # multiplications per head: n (P + V) L + 2 n t L against t (P + V) L + n t (P + V)
    if n * (wide + 2 * t) * low.shape[1] < t * wide * (low.shape[1] + n):
        return torch.cat([_in_latent(plain[r], turned[r], low, part, seen[r], up_k, up_v, scale, "t") for r in blocks])
    keys, values = torch.einsum("tl,hdl->thd", low, up_k), torch.einsum("tl,hdl->thd", low, up_v)
    found = []
    for r in blocks:
        logits = torch.einsum("nhd,thd->nht", plain[r], keys) + torch.einsum("nhd,td->nht", turned[r], part)
        weights = (logits * scale).masked_fill(~seen[r], float("-inf")).softmax(-1)
        found.append(torch.einsum("nht,thd->nhd", weights, values))
    return torch.cat(found)


def _in_latent(
    plain: Tensor, turned: Tensor, low: Tensor, part: Tensor, seen: Tensor, up_k: Tensor, up_v: Tensor, scale: float, form: str
) -> Tensor:
    """The same with queries taken into the latent; form "nt": low [n, t, L] and part [n, t, R] are each row's own."""
    absorbed = torch.einsum("nhd,hdl->nhl", plain, up_k)
    logits = torch.einsum(f"nhl,{form}l->nht", absorbed, low) + torch.einsum(f"nhd,{form}d->nht", turned, part)
    weights = (logits * scale).masked_fill(~seen, float("-inf")).softmax(-1)
    return torch.einsum("nhl,hdl->nhd", torch.einsum(f"nht,{form}l->nhl", weights, low), up_v)


def _fake(q: Tensor, entry: Tensor, up: Tensor, *rest: object) -> Tensor:
    value_dim = rest[-2]
    assert isinstance(value_dim, int)
    return q.new_empty((q.shape[0], q.shape[1], value_dim))


latent_attention = Op(
    "latent_attention",
    "(Tensor q, Tensor entry, Tensor up, Tensor pool, Tensor(a!) state, Tensor ordinal, Tensor pages, Tensor offsets,"
    " Tensor lengths, float scale, int value_dim, Tensor? selected) -> Tensor",
    _reference,
    _fake,
)
