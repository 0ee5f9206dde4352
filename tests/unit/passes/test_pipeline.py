"""The passes one by one: what each does, that the model computes the same without it, and what they refuse."""

from __future__ import annotations

import queue
from importlib import import_module
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor, fx

from ftc.compile.job import Plan, formats
from ftc.compile.program import Memory
from ftc.compile.programs import Programs
from ftc.errors import PassError
from ftc.ops.op import OPS, Op
from ftc.passes import choose_kernels, lower_formats, mark_regions
from ftc.passes.base import Context, Facts, Pass, apply, cut
from ftc.passes.choose_kernels import tuning_name
from ftc.passes.pipeline import PHASES, PIPELINE, pipeline
from ftc.spec.load import build_model
from ftc.target import Target
from ftc.trace.graph import op_name
from ftc.trace.inputs import Shape
from ftc.trace.regions import Call, Segment
from ftc.trace.tracer import Traced, trace
from tests import odd
from tests.rig import Rig

DECODE, PREFILL = Shape(2, 2), Shape(16, 1)
MODEL = build_model(odd.CONFIG, spec=odd.SPEC)
TARGET = Target("cpu", "avx2", 2, ())
TEXT = [(27 * t + 5) % 64 for t in range(26)]


def context(told: dict[str, str] | None = None, tuning: dict[str, str] | None = None, target: Target = TARGET) -> Context:
    return Context(target, DECODE, "resident", formats(MODEL, "float32") if told is None else told, tuning or {})


@pytest.fixture
def traced() -> Traced:
    return trace(MODEL, DECODE, torch.float32)


class Lowering:
    """Stands in for the loader: the graphs themselves are the regions, run node by node."""

    state, loaded, compiled = "compiled", 0, 0

    def __init__(self, plan: Plan) -> None:
        self.ready: queue.SimpleQueue[tuple[Shape, str, fx.GraphModule]] = queue.SimpleQueue()
        for shape in (DECODE, PREFILL):
            for name, graph in plan.lower(shape, check="choose_kernels" not in plan.job.off).regions.items():
                self.ready.put((shape, name, graph))

    def start(self) -> None:
        """Nothing to load."""

    def join(self) -> None:
        """Nothing to wait for."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("passes")
    odd.write(made)
    return made


def logits(folder: Path, *off: str) -> tuple[Tensor, Rig]:
    """Of every token of TEXT, by the graphs that come out of the pipeline without the passes `off`."""
    rig = Rig(folder, torch.float32, spec=odd.SPEC, sequences=1, context=64, shapes=(DECODE, PREFILL), off=off)
    o = rig.opened
    memory = Memory(o.outer, o.blocks, o.bank, rig.pools.tensors)
    lowering = Lowering(Plan(o.job))
    programs = Programs(rig.model, memory, 1, o.target, lowering, off)  # type: ignore[arg-type]
    programs.decode_rows, programs.chunk_rows = rig.programs.decode_rows, rig.programs.chunk_rows
    assert programs.poll() and all(isinstance(r, fx.GraphModule) for r in programs.program(DECODE).regions.values())
    rig.programs = programs
    line = rig.sequence()
    rows = [rig.prompt(line, TEXT[:20], None, every=True), *(rig.decode([line], [t]) for t in TEXT[20:])]
    return torch.cat(rows), rig


@pytest.fixture(scope="module")
def all_on(folder: Path) -> Tensor:
    return logits(folder)[0]


def test_lowered_graphs_compute_what_the_interpreter_does(folder: Path, all_on: Tensor) -> None:
    rig = Rig(folder, torch.float32, spec=odd.SPEC, sequences=1, context=64, shapes=(DECODE, PREFILL))
    line = rig.sequence()
    rows = [rig.prompt(line, TEXT[:20], None, every=True), *(rig.decode([line], [t]) for t in TEXT[20:])]
    assert torch.allclose(torch.cat(rows), all_on, rtol=0, atol=1e-5 * float(all_on.abs().max()))


@pytest.mark.parametrize("off", PIPELINE, ids=lambda p: p.name)
def test_each_pass_can_be_left_out(folder: Path, all_on: Tensor, off: Pass) -> None:
    rows, _ = logits(folder, off.name)
    if off.facts.numerics == "exact":
        assert torch.equal(rows, all_on)
    else:
        error = (rows - all_on).abs().amax(-1) / all_on.abs().amax(-1)
        assert float(error.max()) < 1e-4


def test_without_marks_every_call_is_a_segment(folder: Path) -> None:
    rig = logits(folder, "mark_regions")[1]
    assert [len(s) for s in rig.programs.program(DECODE).segments] == [1] * 6
    rig = logits(folder)[1]
    assert [len(s) for s in rig.programs.program(DECODE).segments] == [5, 1]
    assert [len(s) for s in rig.programs.program(PREFILL).segments] == [2, 1, 1, 1, 1]


def test_unknown_names_are_refused() -> None:
    with pytest.raises(PassError, match=r"no such pass \(got \['fuse_all'\]\)\n.*lower_formats.*choose_kernels"):
        pipeline(frozenset({"fuse_all", "lower_formats"}))


def test_the_pipeline_is_in_the_order_of_its_phases() -> None:
    names = [p.name for p in PIPELINE]
    assert names[0] == "lower_formats" and names.index("choose_kernels") < names.index("mark_regions")
    assert len(set(PHASES)) == len(PHASES) and len(set(names)) == len(names)
    for p in PIPELINE:
        assert p.doc and p.facts == import_module(f"ftc.passes.{p.name}").PASS


def test_what_a_pass_needs_was_given_before() -> None:
    given: set[str] = set()
    for p in PIPELINE:
        assert given.issuperset(p.facts.needs), p.name
        given.update(p.facts.gives)


def test_passes_for_one_kind_of_step_are_left_out_of_the_other(traced: Traced) -> None:
    seen = []
    only = Pass("only", Facts(level="region", when="prefill"), "", lambda graph, ctx: seen.append(graph) or graph)
    apply(traced, (only,), context())
    assert seen == []
    apply(traced, (only,), Context(TARGET, PREFILL, "resident", {}))
    assert len(seen) == len(traced.regions)


def test_after_stops_behind_the_named_pass(traced: Traced) -> None:
    lowered = apply(traced, pipeline(), context(), after="lower_formats")
    assert list(lowered.seconds) == ["lower_formats"] and lowered.segments == []


def test_formats_are_noted_on_ops_that_read_weights(traced: Traced) -> None:
    graph = lower_formats.run(traced.regions["layer1"], context())
    noted = {op_name(n): n.meta.get("format") for n in graph.graph.nodes if n.op == "call_function"}
    assert noted["ftc.linear"] == noted["ftc.experts"] == "float32"
    assert noted["ftc.attention"] is noted["ftc.route"] is None


@pytest.mark.parametrize("name,region", [("w.mixer.qkv", "layer1"), ("bank.up", "layer1"), ("w.embedding", "embed")])
def test_a_format_without_a_word_is_refused(traced: Traced, name: str, region: str) -> None:
    told = formats(MODEL, "float32") | {name: "int3_groups"}
    if name.startswith("bank."):
        told |= dict.fromkeys(("bank.gate", "bank.up", "bank.down"), "int3_groups")
    with pytest.raises(PassError, match=r"no variant for this number format \(got 'int3_groups'\)") as refused:
        lower_formats.run(traced.regions[region], context(told))
    assert (refused.value.where or "").startswith(name.rpartition(".")[0])


def test_one_op_with_several_formats_is_refused(traced: Traced) -> None:
    told = formats(MODEL, "float32") | {"bank.up": "bfloat16"}
    with pytest.raises(PassError, match="several formats"):
        lower_formats.run(traced.regions["layer1"], context(told))


def _twice(x: Tensor) -> Tensor:
    return 2 * x


# A word of this test, with a kernel for anything and one that takes up to four rows.
TRIAL = Op("trial", "(Tensor x) -> Tensor", _twice, torch.empty_like)
TRIAL.add_kernel("any", _twice)
TRIAL.add_kernel("few", _twice, lambda x: x.meta["val"].shape[0] <= 4)
del OPS["trial"]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> fx.GraphModule:
    """Two calls of the word, with 3 and with 5 rows."""
    monkeypatch.setitem(OPS, "trial", TRIAL)
    graph = fx.Graph()
    made = []
    for name, rows in (("narrow", 3), ("wide", 5)):
        own = graph.placeholder(name)
        own.meta = {"val": torch.empty(rows, 2), "input": name}
        made.append(graph.call_function(TRIAL.word, (own,)))
    graph.output(tuple(made))
    return fx.GraphModule(torch.nn.Module(), graph)


@pytest.mark.parametrize("prefers,wanted", [
    ((), ["reference", "reference"]), (("any",), ["any", "any"]), (("few",), ["few", "reference"]),
    (("few", "any"), ["few", "any"]), (("missing", "any"), ["any", "any"]),
], ids=str)  # fmt: skip
def test_the_first_kernel_that_exists_and_takes_the_call(
    calls: fx.GraphModule, prefers: tuple[str, ...], wanted: list[str]
) -> None:
    choose_kernels.run(calls, context(target=msgspec.structs.replace(TARGET, kernels=prefers)))
    nodes = [n for n in calls.graph.nodes if n.op == "call_function"]
    assert [n.meta["kernel"] for n in nodes] == wanted
    assert [n.target for n in nodes] == [TRIAL.bound(w) for w in wanted]
    assert all(torch.equal(y, torch.full_like(y, 2)) for y in calls(torch.ones(3, 2), torch.ones(5, 2)))


def test_what_was_measured_comes_first_where_it_can_be_used(calls: fx.GraphModule) -> None:
    nodes = [n for n in calls.graph.nodes if n.op == "call_function"]
    names = [tuning_name("trial", n) for n in nodes]
    assert names == ["trial [3, 2]", "trial [5, 2]"]
    target = msgspec.structs.replace(TARGET, kernels=("any",))
    for measured, wanted in (
        ({names[0]: "few"}, ["few", "any"]),
        ({names[1]: "few"}, ["any", "any"]),  # it does not take five rows
        ({names[0]: "reference", names[1]: "gone"}, ["reference", "any"]),
    ):
        choose_kernels.run(calls, context(tuning=measured, target=target))
        assert [n.meta["kernel"] for n in nodes] == wanted


def test_segments(traced: Traced) -> None:
    schedule = traced.schedule
    assert mark_regions.run(schedule, context()) == [Segment(tuple(schedule[:-1])), Segment((schedule[-1],))]
    ctx = Context(TARGET, PREFILL, "resident", {})
    first, *layers, head = (s.calls for s in mark_regions.run(schedule, ctx))
    assert first == (Call("embed", None), Call("layer0", 0)) and head == (Call("head", None),)
    assert layers == [(Call(f"layer{i % 2}", i),) for i in range(1, 4)]
    assert cut(schedule, pipeline(frozenset({"mark_regions"})), ctx) == [Segment((call,)) for call in schedule]
