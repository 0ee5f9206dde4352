"""Cuts the schedule into segments: decode is one, a prefill chunk may be interrupted after every layer."""

from __future__ import annotations

from ftc.passes.base import Context, Facts
from ftc.trace.regions import Call, Segment

PASS = Facts(level="schedule", gives=("segments",))


def run(schedule: list[Call], ctx: Context) -> list[Segment]:
    # the head stays apart: chunks before a prompt's last have no use for logits
    body, head = tuple(schedule[:-1]), (schedule[-1],)
    if ctx.shape.mode == "decode":
        return [Segment(body), Segment(head)]
    first, *rest = body
    layers = [Segment((first, *rest[:1]))] + [Segment((call,)) for call in rest[1:]]
    return [*layers, Segment(head)]
