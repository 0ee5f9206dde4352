"""What runs a step: the schedule over bound regions, one call at a time, for each compiled shape.

Every argument of a call but the carry is known when the program is made (weights, pools, ordinals, the program's own
step buffers), so a call costs one list copy and the region itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from ftc.errors import PassError
from ftc.spec.model import Model
from ftc.trace.inputs import Shape, Step
from ftc.trace.interpret import constants
from ftc.trace.regions import Kind, Segment, lay_out, ordinals

Region = Callable[..., Sequence[Tensor]]
Call = tuple[str, bool, list[Tensor | None]]  # region, whether it is a side call, arguments with None where the carry goes

@dataclass(frozen=True)
class Memory:
    """Everything regions read that outlives a step, by name.

    `outer` and `blocks` are dense weights (paths as `spec.parameters` gives them), `bank` the views of the expert bank,
    `pools` group name -> (pool, state), `cache` the inputs of the expert cache by their full names.
    """

    outer: dict[str, Tensor]
    blocks: list[dict[str, Tensor]]
    bank: dict[str, Tensor]
    pools: dict[str, tuple[Tensor, Tensor]]
    cache: dict[str, Tensor] = field(default_factory=dict)


class Binder:
    """Resolves input names to tensors for one model and its memory; shared by all programs."""

    def __init__(self, model: Model, memory: Memory, device: str = "cpu") -> None:
        self.model, self.layout = model, lay_out(model)
        shared = {f"bank.{k}": t for k, t in memory.bank.items()} | memory.cache
        for name, (pool, state) in memory.pools.items():
            shared |= {f"pool.{name}": pool, f"state.{name}": state}
        self._outer = {f"w.{k}": t for k, t in memory.outer.items()}
        self._blocks = []
        rope: dict[tuple[float, ...], Tensor] = {}
        numbers: dict[int, Tensor] = {}
        for block, weights, own in zip(model.blocks, memory.blocks, ordinals(model), strict=True):
            # equal constants and ordinals are one tensor, so a deep model keeps few of them
            const = {k: rope.setdefault(tuple(t.tolist()), t.to(device)) for k, t in constants(block).items()}
            number = {
                k: numbers.setdefault(n, torch.tensor(n, dtype=torch.int32, device=device)) for k, n in own.items()
            }
            self._blocks.append(
                shared
                | {f"w.{k}": t for k, t in weights.items()}
                | {f"const.{k}": t for k, t in const.items()}
                | {f"ord.{k}": t for k, t in number.items()}
            )

    def arguments(self, kind: Kind, block: int | None, step: Step) -> list[Tensor | None]:
        """The tensors of a call in order; None where the carry goes."""
        table = self._outer if block is None else self._blocks[block]
        buffers = step.tensors()
        result: list[Tensor | None] = []
        for name in kind.inputs:
            space, _, rest = name.partition(".")
            if space == "carry":
                result.append(None)
            elif space == "step":
                result.append(buffers[rest])
            elif name in table:
                result.append(table[name])
            else:
                raise PassError("a region asks for an input nobody gives", where=f"{kind.name} of block {block}", value=name)
        return result


class Replay(Protocol):
    """A captured segment: `run` replays it and returns what its last region returned, in static buffers."""

    def run(self) -> list[Tensor]: ...


class Program:
    """The schedule for one shape, in segments. `step` holds its input buffers; `regions` may be replaced between steps.

    `captured` holds the replay of each segment that has one; a segment reads the buffers the replay before it wrote.
    """

    def __init__(
        self,
        binder: Binder,
        shape: Shape,
        step: Step,
        regions: dict[str, Region],
        segments: Sequence[Segment],
        kinds: dict[str, Kind] | None = None,
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        """`kinds`: regions as passes left them, where these added inputs. `settle` is called at the end of every step."""
        self.shape, self.step, self.regions, self.settle = shape, step, regions, settle
        kinds = kinds or binder.layout.kinds
        self._carry = len(kinds["embed"].outputs)
        self.segments: list[list[Call]] = [
            [(c.kind, c.is_side, binder.arguments(kinds[c.kind], c.block, step)) for c in segment.calls]
            for segment in segments
        ]
        self.captured: list[Replay | None] = [None] * len(self.segments)

    def start(self, logits: bool = True) -> Execution:
        """Begins a step over what `step` holds now; `logits` False leaves the head (the last segment) out."""
        return Execution(self, len(self.segments) if logits else len(self.segments) - 1)


class Execution:
    """A step under way. Between any two segments other programs may run; the step buffers must stay as they are."""

    def __init__(self, program: Program, segments: int) -> None:
        self._program, self._segments, self._at = program, segments, 0
        self._carry: list[Tensor] = []
        self.logits: Tensor | None = None

    @property
    def remaining(self) -> int:
        return self._segments - self._at

    def advance(self) -> bool:
        """Runs one segment; True while more remain."""
        program, replay = self._program, self._program.captured[self._at]
        outputs = replay.run() if replay is not None else self._call(program.segments[self._at])
        if program.segments[self._at][-1][0] == "head":
            self.logits = outputs[0]
        else:
            self._carry = outputs
        self._at += 1
        if self._at < self._segments:
            return True
        program.settle()
        return False

    def _call(self, calls: list[Call]) -> list[Tensor]:
        regions, width, carry = self._program.regions, self._program._carry, self._carry
        for kind, is_side, arguments in calls:
            if is_side:
                regions[kind](*arguments)
            else:
                carry = list(regions[kind](*carry, *arguments[width:]) if carry else regions[kind](*arguments))
        return carry

    def score(self, row: int) -> Tensor:
        """Logits [vocab] of one row of a finished step with one sequence: the head alone, run again."""
        self._program.step.select[0] = row
        self._at = self._segments - 1
        self.advance()
        assert self.logits is not None
        return self.logits[0].clone()

    def run(self) -> Tensor | None:
        """Runs what remains; returns the logits [seqs, vocab] float32, or None where the head is left out."""
        while self._at < self._segments:
            self.advance()
        return self.logits
