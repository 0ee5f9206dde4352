"""What a pass is: its facts, the plain data it may know, and the loop that applies a list of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ftc.target import Target
from ftc.trace.inputs import Shape
from ftc.trace.regions import Call, Kind, Segment

if TYPE_CHECKING:
    from torch import fx

    from ftc.trace.tracer import Traced

PlanClass = Literal["resident", "cached", "streamed"]


@dataclass(frozen=True)
class Facts:
    """`level`: what it rewrites. `when`: the steps it is for. `numerics`: "exact" keeps every bit, "bounded" the tolerance.

    `needs` and `gives` are words about the graph that other passes rely on.
    """

    level: Literal["region", "schedule"]
    when: Literal["always", "decode", "prefill"] = "always"
    numerics: Literal["exact", "bounded"] = "exact"
    needs: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()


@dataclass(frozen=True)
class Context:
    """All a pass may know. `formats`: weight input (`w.PATH`, `bank.MATRIX`) -> number format.

    `plan`: where experts live. `tuning`: what measurements chose, `OP SHAPE` -> kernel variant.
    """

    target: Target
    shape: Shape
    plan: PlanClass
    formats: Mapping[str, str]
    tuning: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Pass:
    """A pass of the pipeline: its name is its file's."""

    name: str
    facts: Facts
    doc: str
    run: Callable[..., Any]

    def applies(self, ctx: Context) -> bool:
        return self.facts.when in ("always", ctx.shape.mode)


@dataclass
class Lowered:
    """What passes made of a trace: region graphs, and the schedule as calls until `mark_regions` cuts it into segments."""

    shape: Shape
    kinds: dict[str, Kind]
    regions: dict[str, fx.GraphModule]
    schedule: list[Call]
    segments: list[Segment] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


def apply(traced: Traced, passes: tuple[Pass, ...], ctx: Context, *, check: bool = False, after: str | None = None) -> Lowered:
    """Runs `passes` in order over all regions and the schedule.

    `check` validates every region between passes; `after` stops behind the pass of that name.
    """
    lowered = Lowered(traced.shape, traced.kinds, dict(traced.regions), list(traced.schedule))
    from ftc.trace.validate import validate

    done: set[str] = set()
    for p in passes:
        if not p.applies(ctx):
            continue
        start = time.perf_counter()
        if p.facts.level == "region":
            lowered.regions = {name: p.run(graph, ctx) for name, graph in lowered.regions.items()}
        else:
            lowered.segments = p.run(lowered.schedule, ctx)
        lowered.seconds[p.name] = time.perf_counter() - start
        done.update(p.facts.gives)
        if check:
            for name, graph in lowered.regions.items():
                validate(lowered.kinds[name], graph, bound="bound" in done)
        if p.name == after:
            break
    return lowered
