"""Residual streams: how a branch reads them and how its result is mixed back, plain or by hyper-connections."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ftc.ops.norm import rms
from ftc.ops.streams import doubly_stochastic
from ftc.spec.model import Branch, HyperConnections
from ftc.trace.layer import Inputs, Layer


def add(layer: Layer, branch: Branch, stream: Tensor, y: Tensor) -> Tensor:
    """The one stream with a branch's result `y`: a plain or scaled sum, or the learned mixture of a residual gate."""
    if branch.gate is not None:
        weight = layer.weight(f"{branch.name}.residual_gate") / branch.gate.temperature
        share = torch.sigmoid(weight)
        kept = torch.sqrt(torch.clamp(torch.sigmoid(-weight) * (1.0 + share), min=branch.gate.floor))
        return (kept * stream.float() + share * y.float()).to(stream.dtype)
    return stream + y if branch.stream_scale == 1.0 else stream * branch.stream_scale + y


def mix(layer: Layer, name: str, residual: HyperConnections, branch: Callable[[Tensor], Tensor]) -> None:
    """Runs `branch` on the streams' learned average; the streams become their doubly stochastic mixture plus its result."""
    n, streams = residual.streams, layer.carry["residual"]
    raw = _weights(streams, residual, layer.weight(f"{name}.streams"))
    scale, base = layer.weight(f"{name}.streams_scale"), layer.weight(f"{name}.streams_base")
    pre = torch.sigmoid(raw[:, :n] * scale[0] + base[:n]) + residual.eps
    post = 2 * torch.sigmoid(raw[:, n : 2 * n] * scale[1] + base[n : 2 * n])
    logits = (raw[:, 2 * n :] * scale[2] + base[2 * n :]).unflatten(-1, (n, n))
    comb = doubly_stochastic(logits, residual.iterations, residual.eps)
    y = branch((pre.unsqueeze(-1) * streams).sum(1).to(streams.dtype))
    # a broadcast product and sum, not a matmul: n is 4, and the compiler fuses it
    mixed = (comb.unsqueeze(-1) * streams.unsqueeze(2)).sum(1)
    layer.carry["residual"] = (post.unsqueeze(-1) * y.unsqueeze(1) + mixed).to(streams.dtype)


def collapse(streams: Tensor, residual: HyperConnections, x: Inputs) -> Tensor:
    """One stream [N, hidden] before the final norm."""
    raw = _weights(streams, residual, x["w.final.streams"])
    pre = torch.sigmoid(raw * x["w.final.streams_scale"] + x["w.final.streams_base"]) + residual.eps
    return (pre.unsqueeze(-1) * streams).sum(1).to(streams.dtype)


def _weights(streams: Tensor, residual: HyperConnections, weight: Tensor) -> Tensor:
    return rms(streams.flatten(1).float(), residual.norm_eps) @ weight.T
