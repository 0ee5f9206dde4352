"""The validator: graphs as they are traced and lowered pass, and each way to break the contract is refused by name."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import fx

import ftc.passes.pipeline as passes
from ftc.compile.job import formats
from ftc.errors import PassError
from ftc.passes.base import Context, apply
from ftc.spec.load import build_model
from ftc.target import Target
from ftc.trace.graph import input_name, op_name
from ftc.trace.inputs import Shape
from ftc.trace.regions import Kind
from ftc.trace.tracer import Traced, trace
from ftc.trace.validate import validate
from tests import odd

SHAPES = [Shape(2, 2), Shape(16, 1)]
MODEL = build_model(odd.CONFIG, spec=odd.SPEC)
aten = torch.ops.aten


@pytest.fixture(scope="module", params=SHAPES, ids=str)
def traced(request: pytest.FixtureRequest) -> Traced:
    return trace(MODEL, request.param, torch.float32)


@pytest.fixture
def region(traced: Traced) -> tuple[Kind, fx.GraphModule]:
    """A layer with attention, gated delta and experts, to be broken."""
    return traced.kinds["layer1"], copy.deepcopy(traced.regions["layer1"])


def inputs(graph: fx.GraphModule) -> dict[str, fx.Node]:
    return {input_name(n): n for n in graph.graph.nodes if n.op == "placeholder"}


def call_of(graph: fx.GraphModule, op: str) -> fx.Node:
    return next(n for n in graph.graph.nodes if n.op == "call_function" and op_name(n) == op)


def output(graph: fx.GraphModule) -> fx.Node:
    return next(n for n in graph.graph.nodes if n.op == "output")


def insert(graph: fx.GraphModule, target: Callable[..., object], *arguments: object) -> fx.Node:
    with graph.graph.inserting_before(output(graph)):
        return graph.graph.call_function(target, arguments)  # type: ignore[arg-type]


def test_traces_are_legal(traced: Traced) -> None:
    assert list(traced.regions) == ["embed", "layer0", "layer1", "head"]
    for name, graph in traced.regions.items():
        validate(traced.kinds[name], graph)


def test_lowered_graphs_are_legal(traced: Traced) -> None:
    fresh = Traced(traced.shape, traced.kinds, {n: copy.deepcopy(g) for n, g in traced.regions.items()}, traced.schedule)
    ctx = Context(Target("cpu", "avx2", 2, ("native",)), traced.shape, "resident", formats(MODEL, "float32"))
    lowered = apply(fresh, passes.pipeline(), ctx, check=True)
    for name, graph in lowered.regions.items():
        validate(lowered.kinds[name], graph, bound=True)


@pytest.mark.parametrize("space", ["pool.kv", "pool.conv", "pool.delta", "bank.up", "state.kv"])
@pytest.mark.parametrize("op", [aten.add.Tensor, aten.clone.default, aten.select.int], ids=str)
def test_aten_on_pools_and_banks(region: tuple[Kind, fx.GraphModule], space: str, op: torch._ops.OpOverload) -> None:
    kind, graph = region
    own = inputs(graph)[space]
    rest = {"aten.add.Tensor": (own,), "aten.clone.default": (), "aten.select.int": (0, 0)}[str(op)]
    node = insert(graph, op, own, *rest)
    with pytest.raises(PassError, match=f"{node.name}: only ftc ops may read pools and banks.*{space}"):
        validate(kind, graph)


def test_an_op_without_a_kernel(region: tuple[Kind, fx.GraphModule]) -> None:
    kind, graph = region
    with pytest.raises(PassError, match=r"layer1: \w+: no kernel was chosen for it"):
        validate(kind, graph, bound=True)
    for node in graph.graph.nodes:
        node.meta["kernel"] = "reference"
    validate(kind, graph, bound=True)
    node = call_of(graph, "ftc.experts")
    del node.meta["kernel"]
    with pytest.raises(PassError, match=f"{node.name}: no kernel was chosen for it"):
        validate(kind, graph, bound=True)


@pytest.mark.parametrize("op,more", [
    (aten.add_.Tensor, 1), (aten.mul_.Tensor, 1), (aten.copy_.default, 1), (aten.relu_.default, 0),
], ids=str)  # fmt: skip
def test_aten_that_changes_what_it_is_given(
    region: tuple[Kind, fx.GraphModule], op: torch._ops.OpOverload, more: int
) -> None:
    kind, graph = region
    residual = inputs(graph)["carry.residual"]
    node = insert(graph, op, residual, *(residual,) * more)
    with pytest.raises(PassError, match=f"{node.name}: only ftc ops may change what they are given"):
        validate(kind, graph)


def test_reading_a_value_on_the_host(region: tuple[Kind, fx.GraphModule]) -> None:
    kind, graph = region
    node = insert(graph, aten._local_scalar_dense.default, inputs(graph)["step.rows"])
    with pytest.raises(PassError, match=f"{node.name}: reads a value on the host"):
        validate(kind, graph)


@pytest.mark.parametrize("op", ["ftc.attention", "ftc.causal_conv", "ftc.delta_rule"])
def test_a_pool_without_its_state(region: tuple[Kind, fx.GraphModule], op: str) -> None:
    kind, graph = region
    node = call_of(graph, op)
    pool = next(a for a in node.all_input_nodes if input_name(a).startswith("pool."))
    state = inputs(graph)[input_name(pool).replace("pool.", "state.")]
    node.replace_input_with(state, inputs(graph)["step.offsets"])
    with pytest.raises(PassError, match=f"{node.name}: touches a pool without the state.*{input_name(pool)}"):
        validate(kind, graph)


def test_the_state_of_another_pool(region: tuple[Kind, fx.GraphModule]) -> None:
    kind, graph = region
    node, own = call_of(graph, "ftc.delta_rule"), inputs(graph)
    node.replace_input_with(own["state.delta"], own["state.conv"])
    with pytest.raises(PassError, match=f"{node.name}: touches a pool without the state.*pool.delta"):
        validate(kind, graph)


def test_a_carry_of_another_shape_or_type(region: tuple[Kind, fx.GraphModule]) -> None:
    kind, graph = region
    end, own = output(graph), inputs(graph)
    residual, indices = end.args[0]  # type: ignore[misc]
    for wrong in (own["w.ffn.norm"], own["step.positions"], indices):
        end.args = ((wrong, indices),)
        with pytest.raises(PassError, match="layer1: carry.residual: the carry must keep its shape and type"):
            validate(kind, graph)
    end.args = ((residual, residual),)
    with pytest.raises(PassError, match="layer1: carry.indices: the carry must keep"):
        validate(kind, graph)


def test_a_missing_output(region: tuple[Kind, fx.GraphModule]) -> None:
    kind, graph = region
    end = output(graph)
    end.args = ((end.args[0][0],),)  # type: ignore[index]
    with pytest.raises(PassError, match="layer1: a region returns .*carry.indices.*got 1"):
        validate(kind, graph)


def test_other_inputs_than_the_regions(region: tuple[Kind, fx.GraphModule]) -> None:
    kind, graph = region
    nodes = inputs(graph)
    nodes["step.rows"].meta["input"], nodes["step.offsets"].meta["input"] = "step.offsets", "step.rows"
    with pytest.raises(PassError, match="layer1: the graph's inputs are not the region's"):
        validate(kind, graph)


def test_calls_that_are_neither_aten_nor_ftc(region: tuple[Kind, fx.GraphModule]) -> None:
    kind, graph = region
    node = insert(graph, torch.relu, inputs(graph)["carry.residual"])
    with pytest.raises(PassError, match=f"{node.name}: neither aten nor ftc"):
        validate(kind, graph)


def test_a_method_call(region: tuple[Kind, fx.GraphModule]) -> None:
    kind, graph = region
    with graph.graph.inserting_before(output(graph)):
        node = graph.graph.call_method("relu", (inputs(graph)["carry.residual"],))
    with pytest.raises(PassError, match=f"{node.name}: only inputs, calls and one output are legal"):
        validate(kind, graph)


def test_an_unknown_word(region: tuple[Kind, fx.GraphModule], monkeypatch: pytest.MonkeyPatch) -> None:
    from ftc.ops.op import OPS

    kind, graph = region
    monkeypatch.delitem(OPS, "route")
    with pytest.raises(PassError, match=f"{call_of(graph, 'ftc.route').name}: no such op"):
        validate(kind, graph)
