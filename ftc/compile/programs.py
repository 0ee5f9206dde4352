"""The programs of a loaded model, one per shape: uncompiled at once, compiled regions swapped in at safe points."""

from __future__ import annotations

from ftc.compile.job import CHUNK_ROWS, DECODE_ROWS
from ftc.compile.loader import Loader, State
from ftc.compile.program import Binder, Memory, Program, Region
from ftc.passes.base import Context, cut
from ftc.passes.pipeline import pipeline
from ftc.spec.model import Model
from ftc.target import Target
from ftc.trace.inputs import Shape, Step
from ftc.trace.interpret import region_function


class Programs:
    """`loader` None keeps everything uncompiled; `off` names passes switched off. Step buffers outlive a change of regions."""

    decode_rows = DECODE_ROWS
    chunk_rows = CHUNK_ROWS

    def __init__(
        self,
        model: Model,
        memory: Memory,
        table_pages: int,
        target: Target,
        loader: Loader | None,
        off: tuple[str, ...] = (),
    ) -> None:
        self.model, self.target, self._passes = model, target, pipeline(frozenset(off))
        self._binder, self._table_pages, self._loader = Binder(model, memory), table_pages, loader
        self._eager: dict[str, Region] = {n: region_function(model, k) for n, k in self._binder.layout.kinds.items()}
        self._made: dict[Shape, Program] = {}
        self._compiled: dict[Shape, dict[str, Region]] = {}
        if loader is not None:
            loader.start()

    def decode(self, rows: int) -> Program:
        """The smallest decode program that takes `rows`; raises ValueError above the largest."""
        fitting = [n for n in self.decode_rows if n >= rows]
        if not fitting:
            raise ValueError(f"a decode step takes at most {self.decode_rows[-1]} rows, got {rows}")
        return self.program(Shape(fitting[0], fitting[0]))

    def prefill(self, tokens: int) -> Program:
        """The smallest chunk program that takes `tokens`, else the largest."""
        return self.program(Shape(next((n for n in self.chunk_rows if n >= tokens), self.chunk_rows[-1]), 1))

    def program(self, shape: Shape) -> Program:
        """The program of any shape; shapes nothing is compiled for run uncompiled."""
        if shape not in self._made:
            ctx = Context(self.target, shape, "resident", formats={})
            segments = cut(list(self._binder.layout.schedule), self._passes, ctx)
            regions = self._eager | self._compiled.get(shape, {})
            program = Program(self._binder, shape, Step(shape, self._table_pages), regions, segments)
            self._made[shape] = program
            self._capture(program)
        return self._made[shape]

    def _capture(self, program: Program) -> None:
        """Captures a decode program once the last of its regions is compiled."""
        compiled = self._compiled.get(program.shape, {})
        if program.shape.mode != "decode" or len(compiled) < len(program.regions):
            return
        from ftc.compile.capture import capture_program

        capture_program(program, compiled)

    def poll(self) -> bool:
        """Swaps in regions that have become ready; to be called between steps. True where something changed."""
        if self._loader is None or self._loader.ready.empty():
            return False
        while not self._loader.ready.empty():
            shape, name, region = self._loader.ready.get()
            self._compiled.setdefault(shape, {})[name] = region
            if shape in self._made:
                self._made[shape].regions[name] = region
                self._capture(self._made[shape])
        return True

    def wait(self) -> bool:
        """Waits until nothing is left to load or compile and swaps it in; False where no compiled programs came of it."""
        if self._loader is not None:
            self._loader.join()
            self.poll()
        return self.state == "compiled"

    @property
    def state(self) -> State:
        return "eager" if self._loader is None else self._loader.state

    @property
    def loaded(self) -> int:
        """Regions loaded from artefacts by this process."""
        return 0 if self._loader is None else self._loader.loaded

    @property
    def compiled(self) -> int:
        """Regions that had to be compiled since this process started."""
        return 0 if self._loader is None else self._loader.compiled

    def stop(self) -> None:
        if self._loader is not None:
            self._loader.stop()
