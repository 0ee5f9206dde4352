"""Recurrent mixers over per-sequence state slots: short causal convolution and the gated delta rule."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ftc.ops.op import Op
from ftc.ops.paged import sequences

# contract of both: pool [slots, layers, ...], state [4] int32 of the pool: [0] live slots, [1] faults; ordinal 0-d int32 is
# the layer's index; a sequence reads slot state_in[s] (-1: zeros) and writes slot state_out[s] (-1: nothing). A sequence
# without rows is untouched. A slot outside the live ones counts a fault and gives NaN.


def slots_of(state: Tensor, state_in: Tensor, state_out: Tensor, s: int) -> tuple[int, int] | None:
    """(slot to read, slot to write) of sequence `s`, or None after counting a fault."""
    live, source, target = int(state[0]), int(state_in[s]), int(state_out[s])
    if source >= live or target >= live:
        state[1] += 1
        return None
    return source, target


def _conv_reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    pool: Tensor,
    state: Tensor,
    ordinal: Tensor,
    state_in: Tensor,
    state_out: Tensor,
    offsets: Tensor,
    silu: bool,
) -> Tensor:
    layer, width = int(ordinal), weight.shape[1]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    for s, a, b in sequences(offsets):
        slots = slots_of(state, state_in, state_out, s)
        if slots is None:
            out[a:b] = float("nan")
            continue
        source, target = slots
        before = pool[source, layer].float() if source >= 0 else torch.zeros_like(pool[0, layer], dtype=torch.float32)
        line = torch.cat((before, x[a:b].float().T), 1)  # [C, width - 1 + rows]
        y = F.conv1d(line[None], weight.float()[:, None], None if bias is None else bias.float(), groups=x.shape[1])[0].T
        out[a:b] = (F.silu(y) if silu else y).to(x.dtype)
        if target >= 0:
            pool[target, layer] = line[:, line.shape[1] - width + 1 :].to(pool.dtype)
    return out


def _conv_fake(x: Tensor, *_: object) -> Tensor:
    return x.new_empty(x.shape)


# contract: x [N, C], weight [C, width], bias [C] or None, pool [slots, layers, C, width - 1] (newest last) -> [N, C].
causal_conv = Op(
    "causal_conv",
    "(Tensor x, Tensor weight, Tensor? bias, Tensor pool, Tensor(a!) state, Tensor ordinal, Tensor state_in,"
    " Tensor state_out, Tensor offsets, bool silu) -> Tensor",
    _conv_reference,
    _conv_fake,
)


def _delta_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    pool: Tensor,
    state: Tensor,
    ordinal: Tensor,
    state_in: Tensor,
    state_out: Tensor,
    offsets: Tensor,
    scale: float,
    normalize: bool,
) -> Tensor:
    layer, heads = int(ordinal), v.shape[1]
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    qf, kf = q.float(), k.float()
    if normalize:
        qf = qf * torch.rsqrt(qf.square().sum(-1, keepdim=True) + 1e-6)
        kf = kf * torch.rsqrt(kf.square().sum(-1, keepdim=True) + 1e-6)
    repeat = heads // q.shape[1]
    qf, kf = (qf * scale).repeat_interleave(repeat, 1), kf.repeat_interleave(repeat, 1)
    vf, decay = v.float(), g.exp()
    decay = decay.unsqueeze(-1) if decay.dim() == 3 else decay[..., None, None]  # [N, heads, dk or 1, 1]
    for s, a, b in sequences(offsets):
        slots = slots_of(state, state_in, state_out, s)
        if slots is None:
            out[a:b] = float("nan")
            continue
        source, target = slots
        memory = pool[source, layer].clone() if source >= 0 else torch.zeros_like(pool[0, layer])
        for t in range(a, b):
            memory *= decay[t]
            held = torch.einsum("hkv,hk->hv", memory, kf[t])
            memory += torch.einsum("hk,hv->hkv", kf[t], beta[t, :, None] * (vf[t] - held))
            out[t] = torch.einsum("hkv,hk->hv", memory, qf[t]).to(v.dtype)
        if target >= 0:
            pool[target, layer] = memory
    return out


def _delta_fake(q: Tensor, k: Tensor, v: Tensor, *_: object) -> Tensor:
    return v.new_empty(v.shape)


# contract: q, k [N, hk, dk], v [N, hv, dv], g [N, hv] or [N, hv, dk] float32 log decay, beta [N, hv] float32,
# pool [slots, layers, hv, dk, dv] float32 -> [N, hv, dv] of v's type. Value head h reads key head h // (hv / hk).
# S = exp(g) S; S += k (beta (v - k^T S))^T; o = (scale q)^T S. `normalize`: q and k l2-normalised first (eps 1e-6).
delta_rule = Op(
    "delta_rule",
    "(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor pool, Tensor(a!) state, Tensor ordinal, Tensor state_in,"
    " Tensor state_out, Tensor offsets, float scale, bool normalize) -> Tensor",
    _delta_reference,
    _delta_fake,
)
