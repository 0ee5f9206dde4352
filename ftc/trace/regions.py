"""Which regions a model has: one per layer kind, their inputs by name, and the schedule that calls them.

Input names: `carry.NAME`, `step.NAME`, `w.PATH` (dense weights of the block), `const.PATH` (derived from the spec),
`bank.MATRIX` (expert bank views), `slots.NAME` and `mail.NAME` (the expert cache, added by passes), `pool.GROUP`,
`state.GROUP`, `ord.BRANCH.GROUP` and `ord.BRANCH.moe` (ordinals).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ftc.spec.ffn import FFN, MoE
from ftc.spec.model import Block, Model
from ftc.spec.parameters import block_parameters, expert_record, model_parameters
from ftc.trace.inputs import Step


@dataclass(frozen=True)
class Kind:
    """One region to build: "embed", "head", or a layer kind with the block that stands for all of its kind."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    block: Block | None = field(default=None, hash=False, compare=False)


@dataclass(frozen=True)
class Call:
    """One entry of a schedule: run the region `kind` for block `block` (None: embed or head)."""

    kind: str
    block: int | None

    @property
    def is_side(self) -> bool:
        """Whether it only moves experts: such regions take and give no carry."""
        return self.kind.partition(".")[0] in ("fetch", "arrive", "release")


@dataclass(frozen=True)
class Segment:
    """Calls that run without a break: the scheduler may only step in between segments; a GPU captures each as one graph."""

    calls: tuple[Call, ...]


@dataclass(frozen=True)
class Layout:
    """Regions and schedule of a model, the same for every shape."""

    kinds: dict[str, Kind]
    schedule: tuple[Call, ...]


def lay_out(model: Model) -> Layout:
    """Blocks that are equal as specs are one kind, however many there are."""
    carry = tuple(f"carry.{c.name}" for c in model.carry())
    step = {name: f"step.{name}" for name in Step.NAMES}
    outer = [f"w.{p.path}" for p in model_parameters(model)]
    early = [n for n in outer if n.startswith(("w.embedding", "w.per_layer"))]
    head_inputs = [n for n in outer if n not in early or (n == "w.embedding" and model.head.tied)]
    kinds = {"embed": Kind("embed", (step["tokens"], step["rows"], *early), carry)}
    schedule = [Call("embed", None)]
    known: dict[Block, str] = {}
    for i, block in enumerate(model.blocks):
        if block not in known:
            known[block] = f"layer{len(known)}"
            name = known[block]
            kinds[name] = Kind(name, (*carry, *_block_inputs(model, block)), carry, block)
        schedule.append(Call(known[block], i))
    kinds["head"] = Kind("head", (*carry, step["select"], step["rows"], *head_inputs), ("logits",))
    schedule.append(Call("head", None))
    return Layout(kinds, tuple(schedule))


def _block_inputs(model: Model, block: Block) -> Iterator[str]:
    parameters = [p.path for p in block_parameters(model, block)]
    mixers = [b for b in block.branches if not isinstance(b.body, FFN)]
    groups = [(b.name, g) for b in mixers for g in b.body.groups()]  # type: ignore[union-attr]
    moes = [b for b in block.branches if isinstance(b.body, MoE)]
    yield "step.rows"
    if any(isinstance(b.body, MoE) and b.body.router.table for b in moes):
        yield "step.tokens"
    if mixers:
        yield from ("step.positions", "step.offsets")
    if any(g.per == "token" for _, g in groups):
        yield from ("step.lengths", "step.pages")
    if any(g.per == "sequence" for _, g in groups):
        yield from ("step.state_in", "step.state_out")
    yield from (f"w.{path}" for path in parameters)
    yield from (f"const.{b.name}.{name}" for b in mixers for name in b.body.constants())  # type: ignore[union-attr]
    for name in dict.fromkeys(g.name for _, g in groups):
        yield from (f"pool.{name}", f"state.{name}")
    yield from (f"ord.{branch}.{group.name}" for branch, group in groups)
    if moes:
        yield from (f"bank.{m}" for m in expert_record(model, moes[0]).matrices)
        yield from (f"ord.{b.name}.moe" for b in moes)


def ordinals(model: Model) -> list[dict[str, int]]:
    """Per block: `BRANCH.GROUP` and `BRANCH.moe` -> ordinal."""
    moe = {(i, b.name): n for n, (i, b) in enumerate(model.moe_branches)}
    result = []
    for i, (block, uses) in enumerate(zip(model.blocks, model.cache_uses(), strict=True)):
        own = {f"{branch}.{u.group.name}": u.index for branch, us in uses.items() for u in us}
        own |= {f"{b.name}.moe": moe[i, b.name] for b in block.branches if isinstance(b.body, MoE)}
        result.append(own)
    return result
