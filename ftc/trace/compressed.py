"""Compressed attention of a block: queries through a latent, shared keys and values, pooled entries, grouped output."""

from __future__ import annotations

import torch
from torch import Tensor

from ftc.ops import compressed as ops
from ftc.ops.norm import rms
from ftc.ops.rope import angles, rotate
from ftc.spec.compressed import CompressedAttention, Compressor
from ftc.trace.layer import Layer


def compressed_attention(layer: Layer, name: str, a: CompressedAttention, h: Tensor) -> Tensor:
    low, shared = layer.linear(h, f"{name}.in").split((a.query_latent, a.head_dim), -1)
    low = layer.norm(f"{name}.query_norm", a.norm, low)
    q = layer.linear(low, f"{name}.query").unflatten(-1, (a.heads, a.head_dim))
    q = rms(q.float(), a.norm.eps).to(q.dtype)
    shared = layer.norm(f"{name}.shared_norm", a.norm, shared)
    cos, sin = angles(layer.x["step.positions"], layer.x[f"const.{name}.rope"])
    q, shared = rotate(q, cos, sin, a.rope), rotate(shared.unsqueeze(1), cos, sin, a.rope).squeeze(1)
    scale, sinks, table = a.head_dim**-0.5, layer.weight(f"{name}.sinks"), layer.step("pages", "offsets", "lengths")
    own = layer.pool(name, a.cache)
    if a.compressor is None:
        o = ops.window_attention(q, shared, *own, *table, scale, a.window, sinks)
    else:
        c, parts = a.compressor, layer.linear(h, f"{name}.pool").split(a.pool_parts, -1)
        entry = _entry(layer, name, a, c, "", parts[0], parts[1])
        chosen = None
        if c.indexer is not None:
            scored = _entry(layer, name, a, c, "index_", parts[2], parts[3])
            seek = layer.linear(low, f"{name}.index_q").unflatten(-1, (c.indexer.heads, c.indexer.dim))
            weights = layer.linear(h, f"{name}.index_weights", torch.float32) * c.indexer.scale
            place = layer.pool(name, f"index_entry_{c.rate}")
            chosen = ops.choose_entries(
                rotate(seek, cos, sin, a.rope), scored, weights, *place, *table, c.indexer.top_k, c.rate
            )
        place = layer.pool(name, f"entry_{c.rate}")
        o = ops.compressed_attention(q, shared, entry, *own, *place, *table, scale, a.window, c.rate, sinks, chosen)
    o = rotate(o, cos, -sin, a.rope).reshape(h.shape[0], a.out_groups, -1)
    weight = layer.weight(f"{name}.group_out").view(a.out_groups, a.out_rank, -1)
    o = torch.bmm(o.transpose(0, 1), weight.transpose(1, 2)).transpose(0, 1)
    return layer.linear(o.flatten(1), f"{name}.out")


def _entry(
    layer: Layer, name: str, a: CompressedAttention, c: Compressor, prefix: str, kv: Tensor, gate: Tensor
) -> Tensor:
    """In the row of each window's last token its entry, normed, and turned by the position where the window began."""
    pooled = ops.pool_windows(
        kv,
        gate,
        layer.weight(f"{name}.{prefix}places"),
        *layer.pool(name, f"{prefix}pooling_{c.rate}"),
        *layer.step("state_in", "state_out", "offsets", "lengths"),
        c.overlap,
    )
    entry = layer.norm(f"{name}.{prefix}entry_norm", a.norm, pooled.to(kv.dtype))
    cos, sin = angles(layer.x["step.positions"] - (c.rate - 1), layer.x[f"const.{name}.rope"])
    return rotate(entry.unsqueeze(1), cos, sin, a.rope).squeeze(1)
