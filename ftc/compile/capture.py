"""Captures a decode program on the CPU: its kernel calls on a tape that replays without Python, as a GPU replays a graph.

Every argument of a program is static (weights, pools, its own step buffers), so one recorded run is the program. Prefill
chunks are not captured: their buffers would be kept for every layer, and Python is a small part of their time.
"""

from __future__ import annotations

from torch import Tensor

from ftc.compile.inductor import Compiled, recordable, recorded
from ftc.compile.program import Call, Program, Region
from ftc.ops import native


class Captured:
    """A segment on tape; `outputs` are what its last call returned, in the buffers that every replay writes."""

    def __init__(self, tape: native.Tape, outputs: list[Tensor]) -> None:
        self._tape, self.outputs = tape, outputs

    def run(self) -> list[Tensor]:
        self._tape.run()
        return self.outputs


def capture_program(program: Program, regions: dict[str, Region]) -> None:
    """Captures the segments of a program, in order, up to the first that a tape cannot hold.

    The program really runs once, over a step without live rows, so nothing in any pool changes.
    """
    step, carry = program.step, list[Tensor]()
    kept = step.rows.clone(), step.offsets.clone()
    step.rows.zero_()
    step.offsets.zero_()
    try:
        for n, calls in enumerate(program.segments):
            captured = capture(calls, regions, carry)
            if captured is None:
                break
            program.captured[n], carry = captured, captured.outputs
    finally:
        step.rows.copy_(kept[0])
        step.offsets.copy_(kept[1])


def capture(calls: list[Call], regions: dict[str, Region], carry: list[Tensor]) -> Captured | None:
    """Runs the calls of a segment once while recording; None where some of them do what a tape cannot hold."""
    compiled: list[tuple[Compiled, list[Tensor | None]]] = []
    for kind, is_side, arguments in calls:
        region = regions[kind]
        if is_side or not isinstance(region, Compiled) or not recordable(region):
            return None
        compiled.append((region, arguments))
    tape = native.Tape()
    with tape.recording():
        for region, arguments in compiled:
            with recorded(region, tape):
                outputs = region(*carry, *(a for a in arguments if a is not None))
            carry = [tape.keep(t) for t in outputs]
    return Captured(tape, carry)
