"""The gated delta mixer of a block: fused projection, short convolution, delta rule, gated norm."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ftc.ops import recurrent
from ftc.ops.norm import gated_norm
from ftc.spec.delta import GatedDelta
from ftc.trace.layer import Layer


def gated_delta(layer: Layer, name: str, d: GatedDelta, h: Tensor) -> Tensor:
    n, inner = h.shape[0], d.value_heads * d.value_dim
    both = layer.linear(h, f"{name}.in")
    x, z, b, decay = both.split(d.in_parts, -1)
    if d.gate_rank is not None:
        z = layer.linear(z, f"{name}.gate_up")
    if d.decay_rank is not None:
        decay = layer.linear(decay, f"{name}.decay_up", torch.float32)
    slots = layer.step("state_in", "state_out", "offsets")
    x = recurrent.causal_conv(x, layer.weight(f"{name}.conv"), None, *layer.pool(name, "conv"), *slots, True)
    keys = d.key_heads * d.key_dim
    q, k, v = x.split((keys, keys, inner), -1)
    g = _log_decay(d, decay.float() + layer.weight(f"{name}.decay_bias"), layer.weight(f"{name}.log_decay").exp())
    o = recurrent.delta_rule(
        q.unflatten(-1, (d.key_heads, d.key_dim)),
        k.unflatten(-1, (d.key_heads, d.key_dim)),
        v.unflatten(-1, (d.value_heads, d.value_dim)),
        g,
        torch.sigmoid(b.float()),
        *layer.pool(name, "delta"),
        *slots,
        d.key_dim**-0.5,
        True,
    )
    gate = z.unflatten(-1, (d.value_heads, d.value_dim))
    o = gated_norm(o, gate, d.norm, layer.weight(f"{name}.inner_norm"))
    return layer.linear(o.reshape(n, inner), f"{name}.out")


def _log_decay(d: GatedDelta, x: Tensor, rate: Tensor) -> Tensor:
    """[N, heads], or [N, heads, key_dim] where each channel has its own, float32."""
    if d.decay_per == "channel":
        x, rate = x.unflatten(-1, (d.value_heads, d.key_dim)), rate.unsqueeze(-1)
    return d.decay_floor * torch.sigmoid(rate * x) if d.decay_floor < 0 else -rate * F.softplus(x)
