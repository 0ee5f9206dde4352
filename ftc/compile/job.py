"""One compile job: which regions a model needs for a shape, which of them are stored, and making those that are not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ftc.compile import key
from ftc.compile.artefact import Store
from ftc.compile.key import Factors
from ftc.errors import TargetError
from ftc.passes.base import Context, PlanClass, Watch, apply
from ftc.passes.pipeline import pipeline
from ftc.spec.chat import Chat
from ftc.spec.load import spec_hash
from ftc.spec.model import Model
from ftc.spec.parameters import block_parameters, expert_record, model_parameters
from ftc.spec.weights import WeightRules
from ftc.target import Target
from ftc.trace.inputs import Shape

if TYPE_CHECKING:
    from ftc.passes.base import Lowered

DECODE_ROWS = (1, 2, 4, 8)
CHUNK_ROWS = (64, 512)
SHAPES = tuple(Shape(n, n) for n in DECODE_ROWS) + tuple(Shape(n, 1) for n in CHUNK_ROWS)


class Job(msgspec.Struct, frozen=True):
    """All that decides what is compiled. `dtype` is "float32" or "bfloat16"; `off` names passes switched off,
    `shapes` are those programs are made for.

    The model travels whole, without what graphs don't depend on, so the compiling child reads no files.
    """

    model: Model
    dtype: str
    target: Target
    cache: str
    plan: PlanClass = "resident"
    off: tuple[str, ...] = ()
    shapes: tuple[Shape, ...] = SHAPES

    def store(self) -> Store:
        return Store(Path(self.cache))


def job_of(model: Model, dtype: str, target: Target, cache: Path, off: tuple[str, ...] = ()) -> Job:
    """A job for `model` as it will run here."""
    bare = msgspec.structs.replace(model, weights=WeightRules({}), chat=Chat(), end_tokens=(), context_tokens=1)
    return Job(bare, dtype, target, str(cache), off=off, shapes=SHAPES)


class Plan:
    """A job's keys, shape by shape, found without tracing where the lowered layer is stored."""

    def __init__(self, job: Job) -> None:
        self.job, self.model, self.store = job, job.model, job.store()
        # regions depend on which kinds of layer there are, not on how many layers
        self._hash = spec_hash(msgspec.structs.replace(self.model, blocks=tuple(dict.fromkeys(self.model.blocks))))

    def logical(self, shape: Shape) -> dict[str, str]:
        subject = {"subject": f"{self.model.name} {shape}"}
        return subject | key.logical(self._hash, str(shape), self.job.dtype)

    def lowered(self, shape: Shape) -> dict[str, str]:
        passes = tuple(p.name for p in pipeline(frozenset(self.job.off)))
        subject = {"subject": f"{self.model.name} {shape}"}
        return subject | key.lowered(key.key_of(self.logical(shape)), self.job.target, self.job.plan, passes, {})

    def kernels(self, shape: Shape, region: str, graph: str) -> dict[str, str]:
        # one thread for decode: its pointwise work is smaller than waking a second one
        threads = self.job.target if shape.mode == "prefill" else msgspec.structs.replace(self.job.target, threads=1)
        return {"subject": f"{self.model.name} {shape} {region}"} | key.compiled(graph, threads)

    def stored_graphs(self, shape: Shape) -> dict[str, str] | None:
        """Region -> graph hash of the lowered layer, or None where it has to be traced."""
        content = self.store.read("lowered", self.lowered(shape))
        return None if content is None else json.loads(content)["regions"]

    def lower(
        self, shape: Shape, *, check: bool = False, after: str | None = None, watch: Watch = lambda name, lowered: None
    ) -> Lowered:
        """Traces and lowers one shape (imports the tracer); the options are those of `passes.base.apply`."""
        import torch

        from ftc.ops import kernels
        from ftc.trace.tracer import trace

        # ops are bound to kernels by name: where they are not registered, every op would be compiled as its reference
        if "native" in self.job.target.kernels and not kernels.register():
            raise TargetError("the native kernels that this target names are not built here", where="target")
        traced = trace(self.model, shape, getattr(torch, self.job.dtype))
        ctx = Context(self.job.target, shape, self.job.plan, formats(self.model, self.job.dtype))
        return apply(traced, pipeline(frozenset(self.job.off)), ctx, check=check, after=after, watch=watch)


def formats(model: Model, dtype: str) -> dict[str, str]:
    """Number format of each weight input: what a checkpoint loaded at `dtype` holds."""
    parameters = [*model_parameters(model), *(p for block in model.blocks for p in block_parameters(model, block))]
    matrices = (p for p in parameters if p.linear or p.path == "embedding")
    found = {f"w.{p.path}": p.precision if p.precision == "float32" else dtype for p in matrices}
    if model.moe_branches:
        found |= {f"bank.{m}": dtype for m in expert_record(model, model.moe_branches[0][1]).matrices}
    return found


def compile_missing(
    plan: Plan,
    shapes: tuple[Shape, ...],
    told: Callable[[str, int, int], None],
    missed: Callable[[str, Factors], None] = lambda layer, factors: None,
) -> Iterator[Path]:
    """Makes what is missing for `shapes`, one region after the other; yields each new artefact's path.

    `told(phase, done, total)` counts shapes while they are traced, then regions. `missed(layer, factors)` is told of every
    entry that has to be made, before it is. A lock keeps a second process from making the same.
    """
    import torch

    from ftc.compile.inductor import compile_graph
    from ftc.trace.graph import hash_of, text_of
    from ftc.trace.tracer import input_specs

    with plan.store.lock("compile"):
        work = []
        made: dict[Shape, Lowered] = {}
        for done, shape in enumerate(shapes):
            graphs = plan.stored_graphs(shape)
            if graphs is None:
                told(f"trace {shape}", done, len(shapes))
                traced: dict[str, str] = {}
                lowered = made[shape] = plan.lower(shape, watch=partial(_keep_text, traced))
                graphs = {name: hash_of(g) for name, g in lowered.regions.items()}
                texts = {name: text_of(g) for name, g in lowered.regions.items()}
                for layer, key_factors, content in (
                    ("logical", plan.logical(shape), {"text": traced}),
                    ("lowered", plan.lowered(shape), {"regions": graphs, "text": texts}),
                ):
                    if plan.store.find(layer, key_factors) is None:
                        missed(layer, key_factors)
                        plan.store.put(layer, key_factors, json.dumps(content).encode())
            for region, graph in graphs.items():
                factors = plan.kernels(shape, region, graph)
                if plan.store.find("kernels", factors) is None:
                    missed("kernels", factors)
                    work.append((shape, region, factors))
        for done, (shape, region, factors) in enumerate(work):
            told(f"compile {shape} {region}", done, len(work))
            low = made[shape] = made.get(shape) or plan.lower(shape)
            kind, dtype = low.kinds[region], getattr(torch, plan.job.dtype)
            example = [s.empty() for s in input_specs(plan.model, kind, shape, dtype)]
            build = partial(compile_graph, low.regions[region], example, int(factors["threads"]))
            yield plan.store.put("kernels", factors, build)
        told("compile", len(work), len(work))


def _keep_text(texts: dict[str, str], after: str, lowered: Lowered) -> None:
    from ftc.trace.graph import text_of

    if after == "trace":
        texts.update({name: text_of(graph) for name, graph in lowered.regions.items()})
