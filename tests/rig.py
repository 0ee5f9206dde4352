"""A model with its caches and programs, without requests or a scheduler: for tests that feed steps by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from ftc import settings
from ftc.compile.job import Job, compile_missing
from ftc.compile.job import Plan as Keys
from ftc.compile.program import Program
from ftc.runtime.batch import Batch
from ftc.runtime.open import open_model
from ftc.runtime.plan import Plan, pages_for
from ftc.runtime.pools import Pools
from ftc.spec.model import Model
from ftc.trace.inputs import Shape

torch.set_grad_enabled(False)


def compile_here(job: Job) -> int:
    """Compiles what a job lacks without a child process, which a busy machine may leave waiting; how many regions."""
    settings.export(TORCHINDUCTOR_CACHE_DIR=str(job.store().inductor_dir))
    return len(list(compile_missing(Keys(job), job.shapes, lambda phase, done, total: None)))


class Line:
    """One sequence by hand: its pages and slot in the rig's pools, and how far it is computed."""

    def __init__(self, pages: list[int], slot: int) -> None:
        self.pages, self.slot = pages, slot
        self.tokens: list[int] = []
        self.computed = 0

    @property
    def state_in(self) -> int:
        return self.slot if self.computed else -1


class Rig:
    """`compiled` waits for every program; else regions run uncompiled with the kernels of this machine.

    With `shapes` only these are compiled, in this process, and only their programs are used. `off`: passes switched off.
    """

    def __init__(self, folder: Path, dtype: torch.dtype, *, compiled: bool = False, spec: Path | None = None,
                 sequences: int = 8, context: int = 1024, shapes: tuple[Shape, ...] | None = None,
                 off: tuple[str, ...] = ()) -> None:  # fmt: skip
        self.opened = open_model(folder, spec, dtype)
        job = msgspec.structs.replace(self.opened.job, off=off, shapes=shapes or self.opened.job.shapes)
        self.opened = msgspec.structs.replace(self.opened, job=job)
        if compiled and shapes:
            compile_here(job)
        self.model: Model = self.opened.model
        table = pages_for(context)
        plan = Plan(context, sequences, sequences * table, sequences * table, sequences)
        self.pools = Pools(self.model.cache_groups(), dtype, plan)
        self.programs = self.opened.programs(self.pools.tensors, table, compiled=compiled)
        if shapes:
            self.programs.decode_rows = tuple(s.rows for s in shapes if s.mode == "decode")
            self.programs.chunk_rows = tuple(s.rows for s in shapes if s.mode == "prefill")
        if compiled:
            assert self.programs.wait(), "no compiled programs"
        self._batches: dict[Shape, Batch] = {}

    def sequence(self) -> Line:
        """A fresh sequence with pages for the rig's whole context."""
        (slot,) = self.pools.slots.allocate(1) or [None]
        assert slot is not None, "no slot is left"
        pages = self.pools.pages.allocate(self.pools.pages.reserved // self.pools.slots.reserved)
        assert pages is not None
        return Line(pages, slot)

    def release(self, sequence: Line) -> None:
        self.pools.pages.release(sequence.pages)
        self.pools.slots.release([sequence.slot])

    def chunk(self, sequence: Line, tokens: Sequence[int], *, every: bool = False) -> Tensor:
        """Runs `tokens` as one prefill chunk; logits [1, vocab] of the last, or of every token."""
        program = self.programs.prefill(len(tokens))
        assert len(tokens) <= program.shape.rows, "longer than the largest chunk"
        sequence.tokens += tokens
        self._batch(program).fill_chunk(sequence, len(tokens))  # type: ignore[arg-type]
        execution = program.start()
        logits = execution.run()
        if every:
            logits = torch.stack([execution.score(row) for row in range(len(tokens))])
        sequence.computed += len(tokens)
        assert logits is not None
        return logits.clone()

    def decode(self, sequences: list[Line], tokens: list[int]) -> Tensor:
        """One token of each sequence in one decode step; logits [sequences, vocab]."""
        program = self.programs.decode(len(sequences))
        for s, t in zip(sequences, tokens, strict=True):
            s.tokens.append(t)
        self._batch(program).fill_decode(sequences)  # type: ignore[arg-type]
        logits = program.start().run()
        for s in sequences:
            s.computed += 1
        assert logits is not None and not any(self.pools.take_faults().values())
        return logits[: len(sequences)].clone()

    def prompt(self, sequence: Line, tokens: Sequence[int], chunk: int | None, *, every: bool = False) -> Tensor:
        """A whole prompt in chunks of `chunk` (None: the largest there is)."""
        size = chunk or self.programs.chunk_rows[-1]
        parts = [self.chunk(sequence, tokens[i : i + size], every=every) for i in range(0, len(tokens), size)]
        return torch.cat(parts) if every else parts[-1]

    def greedy(self, tokens: Sequence[int], count: int, *, chunk: int | None = None) -> tuple[list[int], Tensor]:
        """`count` greedy tokens after the prompt, and the logits each was chosen from."""
        s = self.sequence()
        rows = [self.prompt(s, tokens, chunk)]
        out = [int(rows[0].argmax())]
        while len(out) < count:
            rows.append(self.decode([s], [out[-1]]))
            out.append(int(rows[-1].argmax()))
        self.release(s)
        return out, torch.cat(rows)

    def _batch(self, program: Program) -> Batch:
        if program.shape not in self._batches:
            self._batches[program.shape] = Batch(program.shape, program.step)
        return self._batches[program.shape]
