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
    # the first layer comes with the embedding; a layer's fetches and waits come with it, those behind the last with that
    ends = [i for i, call in enumerate(body) if not call.is_side][1:] or [len(body) - 1]
    ends[-1] = len(body) - 1
    cuts = [0, *(end + 1 for end in ends)]
    return [*(Segment(body[a:b]) for a, b in zip(cuts, cuts[1:], strict=False)), Segment(head)]
