"""Feed-forward parts of a block: dense, and routed experts with a shared one."""

from __future__ import annotations

import torch
from torch import Tensor

from ftc.ops.activation import activate
from ftc.ops.experts import experts
from ftc.ops.linear import linear
from ftc.ops.router import route
from ftc.spec.ffn import MLP, MoE
from ftc.trace.layer import Layer


def mlp(layer: Layer, name: str, m: MLP, h: Tensor) -> Tensor:
    return layer.linear(activate(layer.linear(h, f"{name}.gate_up"), m.activation), f"{name}.down")


def moe(layer: Layer, name: str, m: MoE, h: Tensor) -> Tensor:
    logits = linear(h, layer.weight(f"{name}.router"), layer.rows, None, torch.float32)
    ids, weights = route(logits, m.router, layer.optional(f"{name}.router_bias"), layer.rows)
    e = m.experts
    y = experts(h, ids, weights, layer.bank, layer.x[f"ord.{name}.moe"], e.count, e.activation, layer.rows)
    if e.identity:
        share = torch.where(ids >= e.count, weights, 0.0).sum(-1, keepdim=True)
        y = (y.float() + share * h.float()).to(y.dtype)
    if m.shared is None:
        return y
    s = activate(layer.linear(h, f"{name}.shared_gate_up"), m.shared.activation)
    s = layer.linear(s, f"{name}.shared_down")
    if m.shared.gate == "sigmoid":
        s = (s.float() * torch.sigmoid(layer.linear(h, f"{name}.shared_gate", torch.float32))).to(s.dtype)
    return y + s
