"""Activations of feed-forward parts as plain torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ftc.spec.ffn import Activation


def activate(x: Tensor, a: Activation) -> Tensor:
    """x [N, 2W] = [gate | up] where gated, else [N, W]; returns [N, W] in x's type, computed in float32."""
    if not a.gated:
        return pointwise(x.float(), a.kind, 0.0).to(x.dtype)
    gate, up = x.float().chunk(2, -1)
    return gated(gate, up, a.kind, a.limit, a.alpha).to(x.dtype)


def gated(gate: Tensor, up: Tensor, kind: str, limit: float, alpha: float) -> Tensor:
    """act(gate) * up in float32, with clamp and offset as `Activation` says."""
    if limit > 0:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return pointwise(gate, kind, alpha) * (up + 1.0 if alpha > 0 else up)


def pointwise(x: Tensor, kind: str, alpha: float) -> Tensor:
    if alpha > 0:
        return x * torch.sigmoid(alpha * x)
    match kind:
        case "silu":
            return F.silu(x)
        case "gelu_tanh":
            return F.gelu(x, approximate="tanh")
        case "relu2":
            return F.relu(x).square()
    raise AssertionError(kind)
