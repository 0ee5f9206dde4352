"""Rotary embedding as plain torch: angles from positions, pairs rotated in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from ftc.spec.rope import Rope


def angles(positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """cos, sin [N, 1, dim/2] float32 of positions [N] and radians per position [dim/2]."""
    angle = positions.float().unsqueeze(-1) * frequencies
    return angle.cos().unsqueeze(1), angle.sin().unsqueeze(1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, rope: Rope) -> Tensor:
    """x [N, heads, D] with `rope.dim` of its elements turned; the result has x's type."""
    d = x.shape[-1]
    if rope.at == "head":
        part, still = x[..., : rope.dim], x[..., rope.dim :]
    else:
        still, part = x[..., : d - rope.dim], x[..., d - rope.dim :]
    wide, scale = part.float(), rope.amplitude()
    if scale != 1.0:
        cos, sin = cos * scale, sin * scale
    if rope.pairing == "half_split":
        a, b = wide.chunk(2, -1)
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    else:
        a, b = wide[..., 0::2], wide[..., 1::2]
        turned = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
    turned = turned.to(x.dtype)
    if rope.dim == d:
        return turned
    return torch.cat((turned, still) if rope.at == "head" else (still, turned), -1)
