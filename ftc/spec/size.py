"""How large a spec is: parameters, bytes of weights and caches, and arithmetic per token."""

from __future__ import annotations

import math

import msgspec

from ftc.spec.ffn import FFN, MoE
from ftc.spec.model import Block, Extra, Model
from ftc.spec.parameter import Parameter, norm_parameters
from ftc.spec.parameters import block_parameters, expert_record, model_parameters

RUN_BYTES = 2  # bytes of an element of "run" type where nothing else is said: bfloat16


class LayerKind(msgspec.Struct, frozen=True):
    """Layers of one build: `name` lists their branches, `blocks` their numbers, `parameters` counts one of them."""

    name: str
    blocks: tuple[int, ...]
    parameters: int
    active_parameters: int


class ExtraSize(msgspec.Struct, frozen=True):
    """Layers that the file declares and nothing serves; `parameters` counts all of them."""

    name: str
    layers: int
    parameters: int


class Size(msgspec.Struct, frozen=True):
    """The numbers of a model. "active" is what one token reads; identity experts count as if they were computed.

    The embedding (with a table per layer, where there is one) counts whole, as active too; `embedding_parameters` and
    `head_parameters` (0 where tied) are there for those who count without.
    `token_flops` leaves out attention over earlier tokens, of which each costs `context_flops` more. `extra` is in no other
    number.
    """

    parameters: int
    active_parameters: int
    embedding_parameters: int
    head_parameters: int
    weight_bytes: int
    expert_bytes: int
    expert_count: int
    kinds: tuple[LayerKind, ...]
    token_bytes: int
    sequence_bytes: int
    token_flops: int
    context_flops: int
    extra: tuple[ExtraSize, ...]


def measure(model: Model, run_bytes: int = RUN_BYTES) -> Size:
    """Counts with `run_bytes` bytes for each element of "run" type."""
    own = model_parameters(model)
    layers: dict[Block, list[int]] = {}
    for i, block in enumerate(model.blocks):
        layers.setdefault(block, []).append(i)
    kinds = tuple(_kind(model, block, tuple(numbers)) for block, numbers in layers.items())
    records = [expert_record(model, b) for _, b in model.moe_branches]
    dense = own + [p for block in model.blocks for p in block_parameters(model, block)]
    total = sum(map(_count, dense)) + sum(r.count * r.elements for r in records)
    idle = sum(_idle(model, block) for block in model.blocks)
    chosen = sum(
        min(b.body.router.top_k, r.count) * r.elements
        for (_, b), r in zip(model.moe_branches, records, strict=True)
        if isinstance(b.body, MoE)
    )
    linear = sum(_count(p) for p in dense if p.linear) + chosen
    groups = model.cache_groups().values()
    mixers = [b.body for block in model.blocks for b in block.branches if not isinstance(b.body, FFN)]
    return Size(
        parameters=total,
        active_parameters=total - idle,
        embedding_parameters=sum(_count(p) for p in own if p.path in ("embedding", "per_layer_table")),
        head_parameters=sum(_count(p) for p in own if p.path == "head"),
        weight_bytes=sum(_bytes(p, run_bytes) for p in dense) + sum(r.count * r.elements for r in records) * run_bytes,
        expert_bytes=records[0].elements * run_bytes if records else 0,
        expert_count=sum(r.count for r in records),
        kinds=kinds,
        token_bytes=sum(g.elements * n * _width(g.dtype, run_bytes) for g, n in groups if g.per == "token"),
        sequence_bytes=sum(g.elements * n * _width(g.dtype, run_bytes) for g, n in groups if g.per == "sequence"),
        token_flops=2 * linear + sum(m.step_flops() for m in mixers),
        context_flops=sum(m.context_flops() for m in mixers),
        extra=tuple(_extra(model, e) for e in model.extra),
    )


def _extra(model: Model, extra: Extra) -> ExtraSize:
    norms = [p for at in range(3) for p in norm_parameters(f"norm{at}", model.final_norm, model.hidden)]
    each = 2 * model.hidden**2 + sum(map(_count, norms)) + sum(_whole(model, block) for block in extra.blocks)
    return ExtraSize(extra.name, extra.layers, extra.layers * each)


def _whole(model: Model, block: Block) -> int:
    """Elements of one layer, all routed experts among them."""
    records = [expert_record(model, b) for b in block.branches if isinstance(b.body, MoE)]
    return sum(map(_count, block_parameters(model, block))) + sum(r.count * r.elements for r in records)


def _kind(model: Model, block: Block, numbers: tuple[int, ...]) -> LayerKind:
    name = " + ".join(str(type(b.body).__struct_config__.tag) for b in block.branches)
    whole = _whole(model, block)
    return LayerKind(name, numbers, whole, whole - _idle(model, block))


def _idle(model: Model, block: Block) -> int:
    """Elements of routed experts, biases included, that one token leaves alone."""
    found = 0
    for branch in block.branches:
        if isinstance(branch.body, MoE):
            record = expert_record(model, branch)
            own = branch.body.parameters(model.hidden)
            biases = sum(_count(p) for p in own if p.path.startswith("expert_") and p.path.endswith("_bias"))
            each = record.elements + biases // record.count
            found += (record.count - min(branch.body.router.top_k, record.count)) * each
    return found


def _count(p: Parameter) -> int:
    return math.prod(p.shape)


def _bytes(p: Parameter, run_bytes: int) -> int:
    return _count(p) * _width(p.precision, run_bytes)


def _width(dtype: str, run_bytes: int) -> int:
    return run_bytes if dtype == "run" else 4
