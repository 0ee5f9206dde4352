"""Programs on a GPU: regions run eagerly or compiled, and a decode step captured as one CUDA graph."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, fx

from ftc.compile.program import Binder, Memory, Program, Region
from ftc.errors import TargetError
from ftc.passes.base import Context, Lowered, PlanClass, Prefill, apply
from ftc.passes.pipeline import pipeline
from ftc.spec.ffn import MoE
from ftc.spec.model import Model
from ftc.target import Target
from ftc.trace.inputs import Shape, Step
from ftc.trace.tracer import trace

DEVICE = "cuda"


class Branch(Protocol):
    """The CPU branch: polls while a step is in flight, sleeps otherwise; `check` raises if it failed the step that ended."""

    def begin(self) -> None: ...

    def end(self) -> None: ...

    def check(self) -> None: ...


class _HostStep(Step):
    """Step buffers in one piece of pinned memory, so that one copy brings them to the device."""

    def __init__(self, shape: Shape, pages: int, device: str = "cpu") -> None:
        super().__init__(shape, pages, device)
        own = self.tensors()
        self.flat = torch.zeros(sum(-(-t.numel() // 4) * 4 for t in own.values()), dtype=torch.int32, device=device)
        if device == "cpu":
            self.flat = self.flat.pin_memory()
        at = 0
        for name, tensor in own.items():
            view = self.flat[at : at + tensor.numel()].view(tensor.shape)
            view.copy_(tensor)
            setattr(self, name, view)
            at += -(-tensor.numel() // 4) * 4


class CudaProgram:
    """One shape. `step` is the host's side of the buffers; decode is captured on its first run, prefill stays steppable."""

    def __init__(self, inner: Program, step: _HostStep, device_step: _HostStep, branch: Branch | None, capture: bool) -> None:
        self.shape, self.step, self._inner, self._device_step = inner.shape, step, inner, device_step
        self._branch, self._capture = branch, capture
        self._graph: torch.cuda.CUDAGraph | None = None
        self._logits: Tensor | None = None
        self._done = torch.cuda.Event()

    def start(self, logits: bool = True) -> CudaExecution:
        """Begins a step over what `step` holds now; `logits` False leaves the head out (prefill)."""
        self._done.synchronize()  # the step before may still be reading the host's buffers
        if self._branch is not None:
            self._branch.begin()
        if self._capture:
            return CudaExecution(self, 1, None)
        self._load()
        inner = self._inner.start(logits)
        return CudaExecution(self, inner.remaining, inner)

    def _load(self) -> None:
        self._device_step.flat.copy_(self.step.flat, non_blocking=True)

    def replay(self) -> Tensor:
        if self._graph is None:
            self._record()
        assert self._graph is not None and self._logits is not None
        self._graph.replay()
        return self._logits

    def finish(self) -> None:
        """All of a step is queued. With a CPU branch waits for its end: a late answer must fail it before anyone reads it."""
        self._done.record()
        if self._branch is not None:
            self._done.synchronize()
            self._branch.check()

    def _record(self) -> None:
        """Runs once without any live row, so that kernels are built while nothing is touched, then captures."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        kept = self.step.flat.clone()
        self.step.flat.zero_()
        with torch.cuda.stream(side):
            for _ in range(2):
                self._load()
                self._inner.start().run()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self.step.flat.copy_(kept)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._load()
            self._logits = self._inner.start().run()
        self._graph = graph


class CudaExecution:
    """A step under way, as ftc.compile.program.Execution: a captured one has a single segment."""

    def __init__(self, program: CudaProgram, segments: int, inner: Any) -> None:
        self._program, self._left, self._inner = program, segments, inner
        self.logits: Tensor | None = None

    @property
    def remaining(self) -> int:
        return self._left

    def advance(self) -> bool:
        self._left -= 1
        if self._inner is None:
            self.logits = self._program.replay()
        else:
            self._inner.advance()
            self.logits = self._inner.logits
        if not self._left:
            self._program.finish()
        return self._left > 0

    def score(self, row: int) -> Tensor:
        """Logits [vocab] of one row of a finished prefill chunk."""
        assert self._inner is not None, "a decode step has its rows' logits at once"
        return self._inner.score(row)

    def run(self) -> Tensor | None:
        while self._left:
            self.advance()
        return self.logits


class CudaPrograms:
    """Programs of a model whose memory is on the device (the bank too where the plan is "resident"), by shape.

    `compiled` sends decode regions through the compiler; `capture` False runs every step from Python, which a test of
    single ops needs. `kept` shares compiled regions between programs of one model, whatever the sizes of their pools.
    """

    def __init__(
        self, model: Model, memory: Memory, table_pages: int, target: Target, dtype: torch.dtype, plan: PlanClass,
        prefill: Prefill = "double", off: Sequence[str] = (), branch: Branch | None = None, compiled: bool = True,
        capture: bool = True, decode_rows: Sequence[int] = (1, 2, 4, 8), chunk_rows: Sequence[int] = (64, 512),
        kept: dict[tuple[Shape, str], Region] | None = None,
    ) -> None:  # fmt: skip
        if branch is not None and any(b.body.experts.bias for _, b in model.moe_branches if isinstance(b.body, MoE)):
            raise TargetError(
                "experts with biases have no CPU branch on a GPU", hint="switch the pass split_misses off, without a branch"
            )
        self._kept = {} if kept is None else kept
        self.decode_rows, self.chunk_rows = tuple(decode_rows), tuple(chunk_rows)
        self._model, self._target, self._dtype, self._pages = model, target, dtype, table_pages
        self._plan, self._prefill, self._branch = plan, prefill, branch
        self._passes, self._compiled, self._capture = pipeline(frozenset(off)), compiled, capture
        self._binder = Binder(model, memory, DEVICE)
        self._made: dict[Shape, CudaProgram] = {}

    def decode(self, rows: int) -> CudaProgram:
        n = next(n for n in self.decode_rows if n >= rows)
        return self.program(Shape(n, n))

    def prefill(self, tokens: int) -> CudaProgram:
        return self.program(Shape(next((n for n in self.chunk_rows if n >= tokens), self.chunk_rows[-1]), 1))

    def lower(self, shape: Shape) -> Lowered:
        ctx = Context(self._target, shape, self._plan, {}, prefill=self._prefill)
        lowered = apply(trace(self._model, shape, self._dtype), self._passes, ctx)
        for graph in lowered.regions.values():
            to_device(graph)
        return lowered

    def program(self, shape: Shape) -> CudaProgram:
        if shape not in self._made:
            lowered = self.lower(shape)
            is_decode = shape.mode == "decode"
            regions: dict[str, Region] = {}
            for name, graph in lowered.regions.items():
                if self._compiled and is_decode and (shape, name) not in self._kept:
                    self._kept[shape, name] = _compile(graph, self._plan)
                regions[name] = self._kept.get((shape, name), graph)
            step, device_step = _HostStep(shape, self._pages), _HostStep(shape, self._pages, DEVICE)
            inner = Program(self._binder, shape, device_step, regions, lowered.segments, lowered.kinds)
            self._made[shape] = CudaProgram(inner, step, device_step, self._branch, self._capture and is_decode)
        return self._made[shape]


def to_device(graph: fx.GraphModule) -> None:
    """Constants that a trace on the CPU made there are made on the device instead."""

    def moved(value: Any) -> Any:
        return torch.device(DEVICE) if isinstance(value, torch.device) and value.type == "cpu" else value

    for node in graph.graph.nodes:
        if node.op == "call_function":
            node.args = tuple(moved(a) for a in node.args)
            node.kwargs = {k: moved(v) for k, v in node.kwargs.items()}
            node.meta.pop("val", None)  # it says where the trace ran
    graph.recompile()


def _compile(graph: fx.GraphModule, plan: PlanClass) -> Callable[..., Sequence[Tensor]]:
    from ftc.compile.inductor import compile_graph, load_compiled

    example = [_example(node, plan) for node in graph.graph.nodes if node.op == "placeholder"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "region"
        compile_graph(graph, example, 1, path)
        return load_compiled(path)


def _example(node: fx.Node, plan: PlanClass) -> Tensor:
    name, like = node.meta["input"], node.meta["val"]
    on_host = name.startswith("mail.") or (name.startswith("bank.") and plan != "resident")
    return torch.empty_strided(tuple(like.shape), like.stride(), dtype=like.dtype, device="cpu" if on_host else DEVICE)
