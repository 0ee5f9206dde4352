"""What the passes of the GPU line do to graphs: where starts and joins stand, what they refuse, what they leave alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import fx

from ftc.errors import PassError
from ftc.passes.base import Context, Lowered, PlanClass, Prefill, apply
from ftc.passes.pipeline import pipeline
from ftc.passes.rewrite import Writer
from ftc.spec.load import read_model
from ftc.spec.model import Model
from ftc.target import cpu_target, sim_target
from ftc.trace.graph import argument, op_name, text_of
from ftc.trace.inputs import Shape
from ftc.trace.tracer import Traced, trace
from ftc.trace.validate import validate

DECODE, CHUNK = Shape(2, 2), Shape(16, 1)


@pytest.fixture(scope="module")
def model(demo: Path) -> Model:
    return read_model(demo)


def lower(model: Model, shape: Shape, plan: PlanClass, *off: str, prefill: Prefill = "double") -> Lowered:
    ctx = Context(sim_target(2, False), shape, plan, {}, prefill=prefill)
    return apply(trace(model, shape, torch.float32), pipeline(frozenset(off)), ctx, check=True)


def words(graph: fx.GraphModule) -> list[str]:
    """Names of the ops in order; events with what they mark."""
    found = []
    for node in graph.graph.nodes:
        if node.op == "call_function":
            name = op_name(node).removeprefix("ftc.")
            found.append(f"{name} {argument(node, 'event')}" if name.startswith("event_") else name)
    return found


def in_order(found: list[str], wanted: tuple[str, ...]) -> None:
    at = -1
    for word in wanted:
        assert word in found[at + 1 :], f"{word} does not follow {found[: at + 1][-6:]}"
        at = found.index(word, at + 1)


@pytest.mark.parametrize("shape", [DECODE, CHUNK], ids=str)
def test_resident_experts_are_left_alone(model: Model, shape: Shape) -> None:
    traced: Traced = trace(model, shape, torch.float32)
    wanted = {name: text_of(g) for name, g in traced.regions.items()}
    ctx = Context(cpu_target(2, False), shape, "resident", {})
    lowered = apply(traced, pipeline(frozenset({"lower_formats", "choose_kernels"})), ctx)
    assert {name: text_of(g) for name, g in lowered.regions.items()} == wanted
    assert set(lowered.kinds) == set(traced.kinds)


def test_starts_are_early_and_joins_late(model: Model) -> None:
    found = words(lower(model, DECODE, "cached").regions["layer0"])
    shared = "aten.silu"
    starts = ("cpu_submit", "event_record submitted", "event_wait submitted", "cpu_run", "event_record computed",
              "event_record mapped", "event_wait mapped", "slot_fill", "event_record filled")  # fmt: skip
    joins = ("event_wait filled", "slot_experts", "event_wait computed", "combine")
    in_order(found, ("slot_map", *starts, "slot_experts", shared, *joins))
    assert found.index("slot_map") < len(found) - found[::-1].index(shared) - 1
    behind = found[found.index("combine") + 1 :]
    assert "linear" not in behind, f"work that needs no expert runs behind the join: {behind}"


def test_without_overlap_the_copy_is_waited_for_at_once(model: Model) -> None:
    found = words(lower(model, DECODE, "cached", "overlap").regions["layer0"])
    at = found.index("slot_fill")
    assert found[at + 1 : at + 3] == ["event_record filled", "event_wait filled"]
    assert "linear" in found[found.index("combine") :], "the shared expert stands where the model has it"


def test_without_a_cpu_branch_all_misses_are_fetched(model: Model) -> None:
    graph = lower(model, DECODE, "cached", "split_misses").regions["layer0"]
    found = words(graph)
    assert not {"cpu_submit", "cpu_run"} & set(found)
    assert not [n for n in graph.graph.nodes if n.op == "placeholder" and n.meta["input"].startswith("mail.")]


def test_a_chunk_fetches_the_next_layer_before_it_computes_one(model: Model) -> None:
    lowered = lower(model, CHUNK, "cached")
    kinds = [(c.kind.partition(".")[0], c.block) for segment in lowered.segments for c in segment.calls]
    for block in range(len(model.blocks)):
        layer = next(i for i, (kind, b) in enumerate(kinds) if kind.startswith("layer") and b == block)
        assert kinds.index(("arrive", block)) < layer
        if block + 1 < len(model.blocks):
            assert kinds.index(("fetch", block + 1)) < layer
        # a fetch may not begin before the layer that it could evict was waited for
        assert kinds.index(("fetch", block)) < max(i for i, k in enumerate(kinds[:layer]) if k == ("arrive", block))
    assert lowered.segments[-1].calls[-1].kind == "head" and kinds[-2][0] == "release"
    assert len(lowered.segments) == len(model.blocks) + 1, "decode steps must fit between any two layers"


def test_one_layer_at_a_time_is_fetched_when_it_is_needed(model: Model) -> None:
    kinds = [c.kind.partition(".")[0] for s in lower(model, CHUNK, "streamed", prefill="single").segments for c in s.calls]
    at = [i for i, kind in enumerate(kinds) if kind.startswith("layer")]
    assert all(kinds[i - 2 : i] == ["fetch", "arrive"] for i in at[1:])


def test_a_chunk_on_the_cpu_moves_no_experts(model: Model) -> None:
    lowered = lower(model, CHUNK, "streamed", prefill="host")
    assert not [name for name in lowered.regions if "." in name]
    in_order(words(lowered.regions["layer0"]), ("cpu_kinds", "cpu_submit", "cpu_run", "event_wait computed", "combine"))


def test_the_switch_names_every_pass() -> None:
    names = [p.name for p in pipeline()]
    assert names.index("map_slots") < names.index("split_misses") < names.index("overlap") < names.index("choose_kernels")
    with pytest.raises(PassError, match="no such pass"):
        pipeline(frozenset({"no_such_pass"}))


def test_side_streams_may_not_touch_what_the_compiler_reuses(model: Model) -> None:
    lowered = lower(model, DECODE, "cached")
    graph = lowered.regions["layer0"]
    (mapped,) = (n for n in graph.graph.nodes if op_name(n) == "ftc.slot_map")
    write = Writer(graph.graph, next(iter(reversed(graph.graph.nodes))))
    slots = next(iter(mapped.users))
    records = write.input("slots.records")
    write.call("slot_fill", write.input("slots.state"), slots, records, records, "copy").meta["kernel"] = "reference"
    with pytest.raises(PassError, match="side stream"):
        validate(lowered.kinds["layer0"], graph, bound=True)


def test_slots_need_the_state_that_orders_them(model: Model) -> None:
    lowered = lower(model, DECODE, "cached")
    graph = lowered.regions["layer0"]
    for node in graph.graph.nodes:
        if op_name(node) == "ftc.slot_experts":
            other = next(n for n in graph.graph.nodes if n.op == "placeholder" and n.meta["input"].startswith("state."))
            node.update_arg([a.name for a in node.target._schema.arguments].index("state"), other)
            break
    with pytest.raises(PassError, match="without the state"):
        validate(lowered.kinds["layer0"], graph, bound=True)
