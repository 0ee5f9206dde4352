"""The choice of tokens of a block with sparse attention: scored anew, or taken from the carry."""

from __future__ import annotations

import torch
from torch import Tensor

from ftc.ops import attention as ops
from ftc.ops.rope import angles, rotate
from ftc.spec.indexer import Indexer
from ftc.trace.layer import Layer


def choose(layer: Layer, name: str, i: Indexer, h: Tensor, query_source: Tensor) -> Tensor:
    """Positions [N, top_k] int32 that each row attends to; a full indexer leaves them in the carry."""
    if i.mode == "full":
        q = layer.linear(query_source, f"{name}.index_q").unflatten(-1, (i.heads, i.dim))
        k = layer.norm(f"{name}.index_k_norm", i.key_norm, layer.linear(h, f"{name}.index_k"))
        if i.rope is not None:
            cos, sin = angles(layer.x["step.positions"], layer.x[f"const.{name}.index_rope"])
            q, k = rotate(q, cos, sin, i.rope), rotate(k.unsqueeze(1), cos, sin, i.rope).squeeze(1)
        weights = layer.linear(h, f"{name}.index_weights", torch.float32) * i.scale
        layer.carry["indices"] = ops.choose_tokens(
            q, k, weights, *layer.pool(name, "index"), *layer.step("pages", "offsets", "lengths"), i.top_k
        )
    return layer.carry["indices"]
