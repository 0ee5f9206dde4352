"""Feed-forward parts of a block: dense, and routed experts with a shared one."""

from __future__ import annotations

import torch
from torch import Tensor

from ftc.ops.activation import activate
from ftc.ops.experts import experts
from ftc.ops.linear import linear
from ftc.ops.router import look_up, route
from ftc.spec.ffn import MLP, MoE, SharedExpert
from ftc.trace.layer import Layer


def mlp(layer: Layer, name: str, m: MLP, h: Tensor) -> Tensor:
    return layer.linear(activate(layer.linear(h, f"{name}.gate_up"), m.activation), f"{name}.down")


def moe(layer: Layer, name: str, m: MoE, h: Tensor) -> Tensor:
    r, seen = m.router, layer.norm(f"{name}.router_norm", m.router.norm, h)
    offset = layer.optional(f"{name}.router_logit_bias")
    logits = linear(seen, layer.weight(f"{name}.router"), layer.rows, offset, torch.float32)
    if r.logit_scale != 1.0:
        logits = logits * r.logit_scale
    if r.table:
        ids, weights = look_up(logits, r, layer.weight(f"{name}.router_table"), layer.x["step.tokens"])
    else:
        ids, weights = route(logits, r, layer.optional(f"{name}.router_bias"), layer.rows)
    if r.expert_scale:
        weights = weights * layer.weight(f"{name}.expert_scale")[ids.clamp(0, m.choices - 1)]
    e = m.experts
    y = _routed(layer, name, m, h, ids, weights)
    if e.identity:
        share = torch.where(ids >= e.count, weights, 0.0).sum(-1, keepdim=True)
        y = (y.float() + share * h.float()).to(y.dtype)
    y = layer.norm(f"{name}.experts_post_norm", e.post_norm, y)
    return y if m.shared is None else y + _shared(layer, name, m.shared, h)


def _routed(layer: Layer, name: str, m: MoE, h: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    e, rows, count = m.experts, layer.rows, m.router.top_k
    x = layer.linear(h, f"{name}.latent_in") if e.latent else h
    x = layer.norm(f"{name}.experts_norm", e.norm, x)
    bias = {b: layer.weight(f"{name}.expert_{b}_bias") for b in layer.bank} if e.bias else None
    ordinal = layer.x[f"ord.{name}.moe"]
    if e.each_norm is None and m.router.weighs == "output":
        y = experts(x, ids, weights, layer.bank, ordinal, e.count, e.activation, rows, bias)
    else:  # each choice is a row of its own, so that its input can be weighted, or its output normed before it is
        each, share = x.repeat_interleave(count, 0), weights.reshape(-1, 1)
        if m.router.weighs == "input":
            each = (each.float() * share).to(x.dtype)
        one = torch.ones_like(share)
        y = experts(each, ids.reshape(-1, 1), one, layer.bank, ordinal, e.count, e.activation, rows * count, bias)
        y = layer.norm(f"{name}.each_norm", e.each_norm, y).float()
        y = (y * (share if m.router.weighs == "output" else one)).unflatten(0, (-1, count)).sum(1).to(x.dtype)
    return layer.linear(y, f"{name}.latent_out") if e.latent else y


def _shared(layer: Layer, name: str, shared: SharedExpert, h: Tensor) -> Tensor:
    x = layer.norm(f"{name}.shared_norm", shared.norm, h)
    s = activate(layer.linear(x, f"{name}.shared_gate_up"), shared.activation)
    s = layer.norm(f"{name}.shared_post_norm", shared.post_norm, layer.linear(s, f"{name}.shared_down"))
    if shared.gate == "sigmoid":
        s = (s.float() * torch.sigmoid(layer.linear(h, f"{name}.shared_gate", torch.float32))).to(s.dtype)
    return s
