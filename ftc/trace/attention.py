"""Grouped-query attention of a block: projections, norms, rope, gate, and the choice of tokens."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ftc.ops import attention as ops
from ftc.ops.rope import angles, rotate
from ftc.spec.attention import Attention
from ftc.spec.blocks import BlockIndexer
from ftc.trace.indexer import choose
from ftc.trace.layer import Layer


def attention(layer: Layer, name: str, a: Attention, h: Tensor) -> Tensor:
    n = h.shape[0]
    both = layer.linear(h, f"{name}.qkv")
    kv_heads = 0 if a.shares_cache else a.kv_heads  # without keys of its own: [N, 0, D], and every step below stays as it is
    q, k, v = both.split((a.query_width, kv_heads * a.head_dim, kv_heads * a.v_dim), -1)
    q, k, v = q.view(n, a.heads, -1), k.view(n, kv_heads, a.head_dim), v.view(n, kv_heads, a.v_dim)
    gate = None
    if a.gate is not None:
        if a.gate.source == "query":
            q, gate = q.split(a.head_dim, -1)
        else:
            gate = layer.linear(h, f"{name}.gate").unflatten(-1, (a.heads, -1))
    if a.qk_norm_at == "before_rope":
        q, k = _qk_norm(layer, name, a, q, k)
    if a.clip > 0:
        q, k, v = (t.clamp(-a.clip, a.clip) for t in (q, k, v))
    if a.rope is not None:
        cos, sin = angles(layer.x["step.positions"], layer.x[f"const.{name}.rope"])
        q, k = rotate(q, cos, sin, a.rope), rotate(k, cos, sin, a.rope)
    if a.qk_norm_at == "after_rope":
        q, k = _qk_norm(layer, name, a, q, k)
    if a.value_scale != 1.0:
        v = v * a.value_scale
    v = v if a.shares_cache else layer.norm(f"{name}.v_norm", a.value_norm, v)
    if a.temperature is not None:
        steps = torch.floor((layer.x["step.positions"].float() + 1.0) / a.temperature.floor)
        q = (q.float() * (1.0 + a.temperature.scale * torch.log1p(steps)).view(n, 1, 1)).to(q.dtype)
    selected = None if a.indexer is None else choose(layer, name, a.indexer, h, h)
    block: tuple[int, ...] = ()
    if a.block_indexer is not None:
        selected, block = _blocks(layer, name, a, a.block_indexer, h), (a.block_indexer.block,)
    if a.chunk > 0:
        selected, block = (layer.x["step.positions"] // a.chunk).view(n, 1, 1), (a.chunk,)
    scale = a.head_dim**-0.5 if a.scale is None else a.scale
    cache = (*layer.pool(name, a.cache), *layer.step("pages", "offsets", "lengths"))
    how = (scale, a.window, a.softcap, layer.optional(f"{name}.sinks"))
    if a.shares_cache:
        o = ops.attend_shared(q, *cache, a.kv_heads, a.v_dim, *how)
    else:
        o = ops.attention(q, k, v, *cache, *how, selected, *block)
    o = layer.norm(f"{name}.out_norm", a.out_norm, o)
    if gate is not None:
        assert a.gate is not None
        wide = gate.float()
        o = (o.float() * (torch.sigmoid(wide) if a.gate.activation == "sigmoid" else F.softplus(wide))).to(o.dtype)
    return layer.linear(o.reshape(n, -1), f"{name}.out")


def _qk_norm(layer: Layer, name: str, a: Attention, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    if a.qk_norm is None:
        return q, k
    if a.qk_norm.over == "projection":
        q, k = q.flatten(1), k.flatten(1)
    q = layer.norm(f"{name}.q_norm", a.qk_norm, q)
    if a.shares_cache:
        return q.view(-1, a.heads, a.head_dim), k
    k = layer.norm(f"{name}.k_norm", a.qk_norm, k)
    return q.view(-1, a.heads, a.head_dim), k.view(-1, a.kv_heads, a.head_dim)


def _blocks(layer: Layer, name: str, a: Attention, b: BlockIndexer, h: Tensor) -> Tensor:
    q = layer.norm(f"{name}.index_q_norm", b.norm, layer.linear(h, f"{name}.index_q").unflatten(-1, (b.heads, b.dim)))
    k = layer.norm(f"{name}.index_k_norm", b.norm, layer.linear(h, f"{name}.index_k"))
    if a.rope is not None:
        cos, sin = angles(layer.x["step.positions"], layer.x[f"const.{name}.rope"])
        q, k = rotate(q, cos, sin, a.rope), rotate(k.unsqueeze(1), cos, sin, a.rope).squeeze(1)
    at = layer.step("pages", "offsets", "lengths")
    return ops.choose_blocks(q, k, *layer.pool(name, "block_index"), *at, b.block, b.top_k, b.local)
