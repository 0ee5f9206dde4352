"""Scanning mixers of a block: projections, short convolution, decayed scan, skip and gate."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ftc.ops.norm import gated_norm
from ftc.ops.recurrent import causal_conv
from ftc.ops.scan import decay_scan
from ftc.spec.scan import DecayAttention, SelectiveScan, StateSpace
from ftc.trace.layer import Layer


def state_space(layer: Layer, name: str, m: StateSpace, h: Tensor) -> Tensor:
    n, groups = h.shape[0], m.groups_of_heads
    gate, x, step = layer.linear(h, f"{name}.in").split((m.inner, m.conv_channels, m.heads), -1)
    x = _convolve(layer, name, x)
    x, keys, queries = x.split((m.inner, groups * m.state_dim, groups * m.state_dim), -1)
    x = x.unflatten(-1, (m.heads, m.head_dim))
    steps = F.softplus(step.float() + layer.weight(f"{name}.step_bias"))
    if m.step_limits is not None:
        steps = steps.clamp(*m.step_limits)
    o = decay_scan(
        queries.unflatten(-1, (groups, m.state_dim)),
        keys.unflatten(-1, (groups, m.state_dim)),
        x,
        steps,
        -layer.weight(f"{name}.log_decay").exp(),
        *layer.pool(name, "scan"),
        *layer.step("state_in", "state_out", "offsets"),
    )
    o = o + layer.weight(f"{name}.skip").unsqueeze(-1) * x.float()
    o, gate = o.reshape(n, groups, -1), gate.reshape(n, groups, -1)
    o = gated_norm(o, gate, m.norm, layer.weight(f"{name}.inner_norm").view(groups, -1))
    return layer.linear(o.reshape(n, m.inner).to(h.dtype), f"{name}.out")


def selective_scan(layer: Layer, name: str, m: SelectiveScan, h: Tensor) -> Tensor:
    x, gate = layer.linear(h, f"{name}.in").chunk(2, -1)
    x = _convolve(layer, name, x)
    step, keys, queries = layer.linear(x, f"{name}.select").split((m.rank, m.state_dim, m.state_dim), -1)
    step, keys = layer.norm(f"{name}.step_norm", m.norm, step), layer.norm(f"{name}.key_norm", m.norm, keys)
    queries = layer.norm(f"{name}.query_norm", m.norm, queries)
    o = decay_scan(
        queries.unsqueeze(1),
        keys.unsqueeze(1),
        x.unsqueeze(-1),
        F.softplus(layer.linear(step, f"{name}.step", torch.float32)),
        -layer.weight(f"{name}.log_decay").exp(),
        *layer.pool(name, "scan"),
        *layer.step("state_in", "state_out", "offsets"),
    ).squeeze(-1)
    o = (o + layer.weight(f"{name}.skip") * x.float()) * F.silu(gate.float())
    return layer.linear(o.to(h.dtype), f"{name}.out")


def decay_attention(layer: Layer, name: str, m: DecayAttention, h: Tensor) -> Tensor:
    n, (pool, state, ordinal) = h.shape[0], layer.pool(name, "scan")
    both = layer.linear(h, f"{name}.qkv")
    q, k, v = F.silu(both.float()).to(h.dtype).unflatten(-1, (m.heads, 3 * m.head_dim)).chunk(3, -1)
    slopes, factors = layer.x[f"const.{name}.slopes"], layer.x[f"const.{name}.factors"]
    rates = -slopes * factors.index_select(0, ordinal.reshape(1))
    steps = torch.ones((n, m.heads), dtype=torch.float32, device=h.device)
    slots = layer.step("state_in", "state_out", "offsets")
    o = decay_scan(q, k, v, steps, rates, pool, state, ordinal, *slots).reshape(n, m.inner).to(h.dtype)
    o = layer.norm(f"{name}.inner_norm", m.norm, o)
    gate = torch.sigmoid(layer.linear(h, f"{name}.gate", torch.float32))
    return layer.linear((gate * o.float()).to(h.dtype), f"{name}.out")


def _convolve(layer: Layer, name: str, x: Tensor) -> Tensor:
    weight, bias = layer.weight(f"{name}.conv"), layer.optional(f"{name}.conv_bias")
    return causal_conv(x, weight, bias, *layer.pool(name, "conv"), *layer.step("state_in", "state_out", "offsets"), True)
