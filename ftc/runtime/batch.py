"""What goes into a program's step buffers: which request is in which row, written where it changed and nowhere else."""

from __future__ import annotations

from ftc.runtime.request import Request
from ftc.trace.inputs import Shape, Step


class Batch:
    """Fills the buffers of one program through numpy views: a handful of element writes a row, no torch call."""

    def __init__(self, shape: Shape, step: Step) -> None:
        self.step = step
        self._seqs = shape.seqs
        self._views = {name: tensor.numpy() for name, tensor in step.tensors().items()}
        # Per sequence: the list of pages its table holds, and how many of them. A request whose pages are other ones than
        # before, moved or lost, has another list.
        self._views["pages"].fill(-1)
        self._tables: list[list[int] | None] = [None] * self._seqs
        self._written = [0] * self._seqs

    def fill_decode(self, requests: list[Request]) -> None:
        """One pending token of each request, in order; the remaining sequences are padding."""
        v, count = self._views, len(requests)
        v["tokens"][:count] = [r.tokens[-1] for r in requests]
        v["positions"][:count] = v["lengths"][:count] = [r.computed for r in requests]
        offsets = v["offsets"]
        offsets[: count + 1] = range(count + 1)
        offsets[count + 1 :] = count
        self._fill_sequences(requests)
        v["select"][:count] = range(count)
        v["select"][count:] = 0

    def fill_chunk(self, request: Request, count: int) -> None:
        """The next `count` pending tokens of one request."""
        v, start = self._views, request.computed
        v["tokens"][:count] = request.tokens[start : start + count]
        v["tokens"][count:] = 0
        v["positions"][:count] = range(start, start + count)
        v["positions"][count:] = 0
        v["offsets"][1:] = count
        v["lengths"][0] = start
        self._fill_sequences([request])
        v["select"][0] = count - 1

    def move_chunk(self, request: Request) -> None:
        """Writes where a chunk under way keeps its caches anew, after pages or slots were moved."""
        self._fill_sequences([request])

    def _fill_sequences(self, requests: list[Request]) -> None:
        v, count = self._views, len(requests)
        v["state_in"][:count] = [r.state_in for r in requests]
        v["state_out"][:count] = [r.slot for r in requests]
        v["state_in"][count:] = v["state_out"][count:] = -1
        v["lengths"][count:] = 0
        v["rows"][0] = v["offsets"][-1]
        for row, request in enumerate(requests):
            self._fill_table(row, request.pages)
        for row in range(count, self._seqs):
            if self._tables[row] is not None:
                self._fill_table(row, None)

    def _fill_table(self, row: int, pages: list[int] | None) -> None:
        table, written = self._views["pages"][row], self._written[row]
        if self._tables[row] is not pages:
            table[:written] = -1
            self._tables[row], written = pages, 0
        new = pages[written:] if pages is not None else []
        if new:
            table[written : written + len(new)] = new
        self._written[row] = written + len(new)
