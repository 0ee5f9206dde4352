"""Runs a spec with ops: the one description of the forward pass, eager as the reference model and traced into regions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ftc.ops.linear import linear
from ftc.ops.norm import norm
from ftc.spec.attention import Attention
from ftc.spec.compressed import CompressedAttention
from ftc.spec.conv import ShortConv
from ftc.spec.delta import GatedDelta
from ftc.spec.ffn import FFN, MLP, MoE
from ftc.spec.latent import LatentAttention
from ftc.spec.model import Block, Branch, HyperConnections, Model
from ftc.spec.per_layer import PerLayerInput
from ftc.spec.scan import DecayAttention, SelectiveScan, StateSpace
from ftc.trace import per_layer, streams
from ftc.trace.attention import attention
from ftc.trace.compressed import compressed_attention
from ftc.trace.conv import short_conv
from ftc.trace.delta import gated_delta
from ftc.trace.ffn import mlp, moe
from ftc.trace.latent import latent_attention
from ftc.trace.layer import Inputs, Layer, seen
from ftc.trace.regions import Kind
from ftc.trace.scan import decay_attention, selective_scan, state_space

# what runs each kind of branch: (layer, branch name, spec, normed input) -> output
BODIES: dict[type, Callable[[Layer, str, Any, Tensor], Tensor]] = {
    Attention: attention,
    GatedDelta: gated_delta,
    StateSpace: state_space,
    SelectiveScan: selective_scan,
    DecayAttention: decay_attention,
    ShortConv: short_conv,
    LatentAttention: latent_attention,
    CompressedAttention: compressed_attention,
    MLP: mlp,
    MoE: moe,
    PerLayerInput: per_layer.per_layer_input,
}


def region_function(model: Model, kind: Kind) -> Callable[..., tuple[Tensor, ...]]:
    """The region as a function of its inputs, in the order `kind.inputs` names them; returns `kind.outputs`."""

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        inputs = dict(zip(kind.inputs, tensors, strict=True))
        if kind.name == "embed":
            return _embed(model, inputs)
        if kind.name == "head":
            return (_head(model, inputs),)
        assert kind.block is not None
        return _block(Layer(model, kind.block, inputs))

    return run


def constants(block: Block) -> Inputs:
    """What a block derives from its spec, float32: `BRANCH.NAME` -> values, such as the radians of rope pairs."""
    return {
        f"{b.name}.{name}": torch.tensor(values, dtype=torch.float32)
        for b in block.branches
        if not isinstance(b.body, FFN)
        for name, values in b.body.constants().items()
    }


def _embed(model: Model, x: Inputs) -> tuple[Tensor, ...]:
    hidden = F.embedding(x["step.tokens"], x["w.embedding"])
    if model.embedding.scale != 1.0:
        hidden = hidden * model.embedding.scale
    if model.embedding.norm is not None:
        hidden = norm(hidden, model.embedding.norm, x.get("w.embedding_norm"))
    made = {} if model.embedding.per_layer is None else {
        "per_layer": per_layer.per_layer_inputs(x, model.embedding.per_layer, hidden)
    }  # fmt: skip
    if isinstance(model.residual, HyperConnections):
        hidden = hidden.unsqueeze(1).repeat(1, model.residual.streams, 1)
    for c in model.carry()[1:]:
        if c.name not in made:
            made[c.name] = torch.full((hidden.shape[0], *c.shape), -1, dtype=getattr(torch, c.dtype), device=hidden.device)
    return (hidden, *(made[c.name] for c in model.carry()[1:]))


def _head(model: Model, x: Inputs) -> Tensor:
    hidden = x["carry.residual"].index_select(0, x["step.select"])
    if isinstance(model.residual, HyperConnections):
        hidden = streams.collapse(hidden, model.residual, x)
    hidden = norm(hidden, model.final_norm, x.get("w.final_norm"), x.get("w.final_norm_bias"))
    weight = x["w.embedding"] if model.head.tied else x["w.head"]
    # one row a sequence here: in decode as many as live rows, in a prefill chunk (one sequence) at most that many
    logits = linear(hidden, weight, x["step.rows"], x.get("w.head_bias"), torch.float32)
    if model.head.scale != 1.0:
        logits = logits * model.head.scale
    return model.head.softcap * torch.tanh(logits / model.head.softcap) if model.head.softcap > 0 else logits


def _block(layer: Layer) -> tuple[Tensor, ...]:
    residual = layer.model.residual
    late: list[Tensor] = []
    for branch in layer.block.branches:
        if isinstance(residual, HyperConnections):
            streams.mix(layer, branch.name, residual, partial(_branch, layer, branch))
        else:
            stream = layer.carry["residual"]
            h = layer.norm(f"{branch.name}.norm", branch.norm, stream)
            kept, y = h if branch.keeps == "normed" else stream, _body(layer, branch, h)
            if branch.late:
                late.append(y)
            else:
                layer.carry["residual"] = streams.add(layer, branch, kept, y)
    for y in late:
        layer.carry["residual"] = layer.carry["residual"] + y
    if layer.block.scalar:
        layer.carry["residual"] = layer.carry["residual"] * layer.weight("scalar")
    return tuple(layer.carry.values())


def _branch(layer: Layer, branch: Branch, stream: Tensor) -> Tensor:
    return _body(layer, branch, layer.norm(f"{branch.name}.norm", branch.norm, stream))


def _body(layer: Layer, branch: Branch, h: Tensor) -> Tensor:
    y = seen(f"{branch.name} branch", BODIES[type(branch.body)](layer, branch.name, branch.body, h))
    y = layer.norm(f"{branch.name}.post_norm", branch.post_norm, y)
    return y if branch.scale == 1.0 else y * branch.scale
