"""Norms, computed in float32; plain torch, so the compiler fuses them with their neighbours."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ftc.spec.norm import GatedRMSNorm, LayerNorm, Norm, RMSNorm


def norm(x: Tensor, spec: Norm, weight: Tensor | None, bias: Tensor | None = None) -> Tensor:
    """x [..., D] normalised over D. Weight "w" multiplies after the cast to x's type, "1+w" before it, as trained."""
    wide = x.float()
    match spec:
        case RMSNorm(weight="none"):
            return rms(wide, spec.eps).to(x.dtype)
        case RMSNorm(weight="input"):
            assert weight is not None
            return rms((wide * (1.0 + weight.float())).to(x.dtype).float(), spec.eps).to(x.dtype)
        case RMSNorm(weight="1+w"):
            assert weight is not None
            return (rms(wide, spec.eps) * (1.0 + weight.float())).to(x.dtype)
        case RMSNorm():
            assert weight is not None
            return rms(wide, spec.eps).to(x.dtype) * weight
        case LayerNorm():
            centred = wide - wide.mean(-1, keepdim=True)
            scaled = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + spec.eps)
            assert weight is not None and bias is not None
            return (scaled * weight.float() + bias.float()).to(x.dtype)


def rms(x: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps), in x's own type."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def gated_norm(x: Tensor, gate: Tensor, spec: GatedRMSNorm, weight: Tensor) -> Tensor:
    """x, gate [N, heads, D]: norm over D with plain weight and a gate branch, in the order the spec says."""
    act = F.silu(gate.float()) if spec.gate == "silu" else torch.sigmoid(gate.float())
    if spec.order == "norm_then_gate":
        return ((rms(x.float(), spec.eps).to(x.dtype) * weight).float() * act).to(x.dtype)
    return (rms(x.float() * act, spec.eps) * weight.float()).to(x.dtype)
