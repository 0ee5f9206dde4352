"""Grouped-query attention of a block: projections, norms, rope, gate, and the choice of tokens."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ftc.ops import attention as ops
from ftc.ops.rope import angles, rotate
from ftc.spec.attention import Attention
from ftc.trace.layer import Layer


def attention(layer: Layer, name: str, a: Attention, h: Tensor) -> Tensor:
    n = h.shape[0]
    both = layer.linear(h, f"{name}.qkv")
    q, k, v = both.split((a.query_width, a.kv_heads * a.head_dim, a.kv_heads * a.v_dim), -1)
    q, k, v = q.unflatten(-1, (a.heads, -1)), k.unflatten(-1, (a.kv_heads, -1)), v.unflatten(-1, (a.kv_heads, -1))
    gate = None
    if a.gate is not None:
        if a.gate.source == "query":
            q, gate = q.split(a.head_dim, -1)
        else:
            gate = layer.linear(h, f"{name}.gate").unflatten(-1, (a.heads, -1))
    if a.qk_norm_at == "before_rope":
        q, k = _qk_norm(layer, name, a, q, k)
    if a.rope is not None:
        cos, sin = angles(layer.x["step.positions"], layer.x[f"const.{name}.rope"])
        q, k = rotate(q, cos, sin, a.rope), rotate(k, cos, sin, a.rope)
    if a.qk_norm_at == "after_rope":
        q, k = _qk_norm(layer, name, a, q, k)
    selected = None if a.indexer is None else _indices(layer, name, a, h)
    scale = a.head_dim**-0.5 if a.scale is None else a.scale
    o = ops.attention(
        q,
        k,
        v,
        *layer.pool(name, a.cache),
        *layer.step("pages", "offsets", "lengths"),
        scale,
        a.window,
        a.softcap,
        layer.optional(f"{name}.sinks"),
        selected,
    )
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
    q, k = layer.norm(f"{name}.q_norm", a.qk_norm, q), layer.norm(f"{name}.k_norm", a.qk_norm, k)
    return q.view(-1, a.heads, a.head_dim), k.view(-1, a.kv_heads, a.head_dim)


def _indices(layer: Layer, name: str, a: Attention, h: Tensor) -> Tensor:
    i = a.indexer
    assert i is not None
    if i.mode == "full":
        layer.carry["indices"] = ops.choose_tokens(
            layer.linear(h, f"{name}.index_q").unflatten(-1, (i.heads, i.dim)),
            layer.linear(h, f"{name}.index_k"),
            layer.linear(h, f"{name}.index_weights", torch.float32) * (i.dim**-0.5 * i.heads**-0.5),
            *layer.pool(name, "index"),
            *layer.step("pages", "offsets", "lengths"),
            i.top_k,
        )
    return layer.carry["indices"]
