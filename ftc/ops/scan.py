"""Decayed scan over per-sequence state slots: the recurrence of state-space mixers and of linear attention."""

from __future__ import annotations

import torch
from torch import Tensor

from ftc.ops.op import Op
from ftc.ops.paged import sequences
from ftc.ops.recurrent import slots_of


def _reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    steps: Tensor,
    rates: Tensor,
    pool: Tensor,
    state: Tensor,
    ordinal: Tensor,
    state_in: Tensor,
    state_out: Tensor,
    offsets: Tensor,
) -> Tensor:
    layer, heads = int(ordinal), v.shape[1]
    out = torch.empty(v.shape, dtype=torch.float32, device=v.device)
    repeat = heads // q.shape[1]
    many, block = (_by_head, 64) if rates.dim() == 1 else (_by_key, 16)
    for s, a, b in sequences(offsets):
        slots = slots_of(state, state_in, state_out, s)
        if slots is None:
            out[a:b] = float("nan")
            continue
        source, target = slots
        memory = pool[source, layer].clone() if source >= 0 else torch.zeros_like(pool[0, layer])
        for t in range(a, b, block):
            some = slice(t, min(t + block, b))
            queries, keys = (_for_heads(x[some].float(), repeat) for x in (q, k))
            added = v[some].float() * steps[some].unsqueeze(-1)
            memory, out[some] = many(memory, queries, keys, added, steps[some], rates)
        if target >= 0:
            pool[target, layer] = memory
    return out


def _for_heads(x: Tensor, repeat: int) -> Tensor:
    return x.expand(-1, repeat, -1) if x.shape[1] == 1 else x.repeat_interleave(repeat, 1)


def _by_head(memory: Tensor, q: Tensor, k: Tensor, added: Tensor, steps: Tensor, rates: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens together: what the state before them gives each, and what each gives those behind it; all exponents are <= 0."""
    q, k, added = q.transpose(0, 1), k.transpose(0, 1), added.transpose(0, 1)  # [heads, n, ...]
    until = (steps * rates).cumsum(0).T  # [heads, n]
    between = (until.unsqueeze(2) - until.unsqueeze(1)).clamp(max=0).exp()
    weights = ((q @ k.transpose(1, 2)) * between).tril()
    o = weights @ added + until.exp().unsqueeze(-1) * (q @ memory)
    last = until[:, -1:]
    memory = last.exp().unsqueeze(-1) * memory + (k * (last - until).exp().unsqueeze(-1)).transpose(1, 2) @ added
    return memory, o.transpose(0, 1)


def _by_key(memory: Tensor, q: Tensor, k: Tensor, added: Tensor, steps: Tensor, rates: Tensor) -> tuple[Tensor, Tensor]:
    """Token after token: with a decay for each key channel there is no product that would take several at once."""
    decays, o = (steps.unsqueeze(-1) * rates).exp().unsqueeze(-1), torch.empty_like(added)
    for t in range(q.shape[0]):
        memory = memory * decays[t] + k[t].unsqueeze(-1) * added[t].unsqueeze(-2)
        o[t] = (memory * q[t].unsqueeze(-1)).transpose(1, 2).sum(-1)
    return memory, o


def _fake(q: Tensor, k: Tensor, v: Tensor, *_: object) -> Tensor:
    return v.new_empty(v.shape, dtype=torch.float32)


# contract: q, k [N, hk, dk], v [N, hv, dv], steps [N, hv] float32, rates [hv] or [hv, dk] float32 (negative),
# pool [slots, layers, hv, dk, dv] float32 -> [N, hv, dv] float32. Value head h reads key head h // (hv / hk).
# S = exp(step * rate) S + k (step v)^T; o = q^T S. Slots, state and offsets as in ops/recurrent.py.
decay_scan = Op(
    "decay_scan",
    "(Tensor q, Tensor k, Tensor v, Tensor steps, Tensor rates, Tensor pool, Tensor(a!) state, Tensor ordinal,"
    " Tensor state_in, Tensor state_out, Tensor offsets) -> Tensor",
    _reference,
    _fake,
)
