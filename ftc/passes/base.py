"""What a pass is: its facts, the plain data it may know, and the loop that applies a list of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from ftc.target import Target
from ftc.trace.graph import input_name
from ftc.trace.inputs import Shape
from ftc.trace.regions import Call, Kind, Segment

if TYPE_CHECKING:
    from torch import fx

    from ftc.trace.tracer import Traced

PlanClass = Literal["resident", "cached", "streamed"]
Prefill = Literal["double", "single", "host"]


@dataclass(frozen=True)
class Facts:
    """`level`: what it rewrites. `when`: the steps it is for. `numerics`: "exact" keeps every bit, "bounded" the tolerance.

    `needs` and `gives` are words about the graph that other passes rely on. `plans`: where experts live for it to apply,
    () for anywhere. A pass of level "program" changes regions and schedule together, in place.
    """

    level: Literal["region", "schedule", "program"]
    when: Literal["always", "decode", "prefill"] = "always"
    numerics: Literal["exact", "bounded"] = "exact"
    needs: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()
    plans: tuple[PlanClass, ...] = ()


@dataclass(frozen=True)
class Context:
    """All a pass may know. `formats`: weight input (`w.PATH`, `bank.MATRIX`) -> number format.

    `plan`: where experts live: all on the target's fast memory ("resident"), or a cache of them that holds whole layers
    ("cached") or not even those ("streamed"). `prefill`: whole layers that the cache holds while a chunk runs, two
    ("double"), one ("single") or none ("host"). `tuning`: what measurements chose, `OP SHAPE` -> kernel variant.
    """

    target: Target
    shape: Shape
    plan: PlanClass
    formats: Mapping[str, str]
    tuning: Mapping[str, str] = field(default_factory=dict)
    prefill: Prefill = "double"


@dataclass(frozen=True)
class Pass:
    """A pass of the pipeline: its name is its file's."""

    name: str
    facts: Facts
    doc: str
    run: Callable[..., Any]

    def applies(self, ctx: Context) -> bool:
        return self.facts.when in ("always", ctx.shape.mode) and (not self.facts.plans or ctx.plan in self.facts.plans)


@dataclass
class Lowered:
    """What passes made of a trace: region graphs, and the schedule as calls until `mark_regions` cuts it into segments."""

    shape: Shape
    kinds: dict[str, Kind]
    regions: dict[str, fx.GraphModule]
    schedule: list[Call]
    segments: list[Segment] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


def cut(schedule: list[Call], passes: tuple[Pass, ...], ctx: Context) -> list[Segment]:
    """The schedule in segments, as the schedule passes that are on make them; without any, each call is its own."""
    segments = [Segment((call,)) for call in schedule]
    for p in passes:
        if p.facts.level == "schedule" and p.applies(ctx):
            segments = p.run(schedule, ctx)
    return segments


Watch = Callable[[str, Lowered], None]


def apply(
    traced: Traced,
    passes: tuple[Pass, ...],
    ctx: Context,
    *,
    check: bool = False,
    after: str | None = None,
    watch: Watch = lambda name, lowered: None,
) -> Lowered:
    """Runs `passes` in order over all regions and the schedule.

    `check` validates every region between passes; `after` stops behind the pass of that name.
    `watch` is shown what there is before the first pass, as "trace", and after each; passes go on rewriting the same graphs.
    """
    lowered = Lowered(traced.shape, dict(traced.kinds), dict(traced.regions), list(traced.schedule))
    from ftc.trace.validate import validate

    done: set[str] = set()
    watch("trace", lowered)
    for p in passes:
        if not p.applies(ctx):
            continue
        start = time.perf_counter()
        if p.facts.level == "region":
            lowered.regions = {name: p.run(graph, ctx) for name, graph in lowered.regions.items()}
        elif p.facts.level == "program":
            p.run(lowered, ctx)
        else:
            lowered.segments = p.run(lowered.schedule, ctx)
        _note_inputs(lowered)
        lowered.seconds[p.name] = time.perf_counter() - start
        done.update(p.facts.gives)
        if check:
            for name, graph in lowered.regions.items():
                validate(lowered.kinds[name], graph, bound="bound" in done)
        watch(p.name, lowered)
        if p.name == after:
            break
    return lowered


def _note_inputs(lowered: Lowered) -> None:
    """Inputs that a pass added to a graph become inputs of its region."""
    for name, graph in lowered.regions.items():
        inputs = tuple(input_name(n) for n in graph.graph.nodes if n.op == "placeholder")
        if inputs != lowered.kinds[name].inputs:
            lowered.kinds[name] = replace(lowered.kinds[name], inputs=inputs)
