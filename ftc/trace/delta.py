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
    x, z, b, decay = both.split((d.conv_channels, inner, d.value_heads, d.decays), -1)
    slots = layer.step("state_in", "state_out", "offsets")
    x = recurrent.causal_conv(x, layer.weight(f"{name}.conv"), None, *layer.pool(name, "conv"), *slots, True)
    keys = d.key_heads * d.key_dim
    q, k, v = x.split((keys, keys, inner), -1)
    rate = -layer.weight(f"{name}.log_decay").exp()
    soft = F.softplus(decay.float() + layer.weight(f"{name}.decay_bias"))
    g = rate * soft if d.decay_per == "head" else rate.unsqueeze(-1) * soft.unflatten(-1, (d.value_heads, d.key_dim))
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
