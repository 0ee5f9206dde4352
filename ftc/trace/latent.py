"""Latent attention of a block: one projection for queries and the latent, norms, rope, the choice of tokens, gate."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ftc.ops import latent as ops
from ftc.ops.rope import angles, rotate
from ftc.spec.latent import LatentAttention
from ftc.trace.indexer import choose
from ftc.trace.layer import Layer


def latent_attention(layer: Layer, name: str, a: LatentAttention, h: Tensor) -> Tensor:
    both = layer.linear(h, f"{name}.in")
    q, latent, part = both.split((a.query_in, a.latent, a.rope_dim), -1)
    source = h
    if a.query_latent is not None:
        source = layer.norm(f"{name}.query_norm", a.norm, q)
        q = layer.linear(source, f"{name}.query")
    q = q.unflatten(-1, (a.heads, a.head_dim))
    latent = layer.norm(f"{name}.latent_norm", a.norm, latent)
    if a.latent_scale != 1.0:
        latent = latent * a.latent_scale
    if a.rope is not None:
        cos, sin = angles(layer.x["step.positions"], layer.x[f"const.{name}.rope"])
        plain, turned = q.split((a.plain_dim, a.rope_dim), -1)
        q = torch.cat((plain, rotate(turned, cos, sin, a.rope)), -1)
        part = rotate(part.unsqueeze(1), cos, sin, a.rope).squeeze(1)
    selected = None if a.indexer is None else choose(layer, name, a.indexer, h, source)
    o = ops.latent_attention(
        q,
        torch.cat((latent, part), -1),
        layer.weight(f"{name}.up"),
        *layer.pool(name, a.cache),
        *layer.step("pages", "offsets", "lengths"),
        a.head_dim**-0.5 if a.scale is None else a.scale,
        a.value_dim,
        selected,
    )
    if a.gate is not None:
        wide = layer.linear(h, f"{name}.gate", torch.float32).unflatten(-1, (a.heads, -1))
        o = (o.float() * (torch.sigmoid(wide) if a.gate.activation == "sigmoid" else F.softplus(wide))).to(o.dtype)
    return layer.linear(o.flatten(1), f"{name}.out")
