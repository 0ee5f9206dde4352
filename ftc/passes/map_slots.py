"""Experts read from slots on the GPU: one lookup decides, one copy fills what misses, and the rows are computed from slots."""

from __future__ import annotations

from torch import fx

from ftc.ops.experts import experts_op
from ftc.ops.slots import FRESH, HIT
from ftc.passes.base import Context, Facts
from ftc.passes.rewrite import Writer, argument, calls
from ftc.trace.graph import input_name

PASS = Facts(level="region", when="decode", plans=("cached", "streamed"), gives=("slots",))

TABLE = ("slots.state", "slots.owner", "slots.used", "slots.place")
BIASES = ("gate_bias", "up_bias", "down_bias")


def run(graph: fx.GraphModule, ctx: Context) -> fx.GraphModule:
    for node in calls(graph.graph, experts_op):
        _lower(graph.graph, node)
    graph.recompile()
    return graph


def matrices(write: Writer, node: fx.Node) -> list[fx.Node | None]:
    """The slot views of the bank views that an `experts` call reads."""
    banks = [argument(node, name) for name in ("gate", "up", "down")]
    return [None if b is None else write.input(input_name(b).replace("bank.", "slots.")) for b in banks]


def activation(node: fx.Node) -> list[object]:
    return [argument(node, name) for name in ("activation", "limit", "alpha")]


def biases(node: fx.Node) -> list[object]:
    return [argument(node, name) for name in BIASES]


def _lower(graph: fx.Graph, node: fx.Node) -> None:
    x, ids, weights, ordinal, experts, rows = (
        argument(node, n) for n in ("x", "ids", "weights", "ordinal", "experts", "rows")
    )
    write = Writer(graph, node)
    state, *table = write.inputs(*TABLE)
    first, plan, costs = write.inputs("slots.first", "slots.plan", "slots.costs")
    mapped = write.call("slot_map", ids, rows, ordinal, experts, False, state, *table, first, plan, costs)
    slots, kinds = write.item(mapped, 0), write.item(mapped, 1)
    write.record("mapped", "compute")
    write.wait("mapped", "copy")
    write.call("slot_fill", state, plan, *write.inputs("bank.records", "slots.records"), "copy")
    write.record("filled", "copy")
    write.wait("filled", "compute")
    views = matrices(write, node)
    parts = [
        write.call("slot_experts", x, slots, kinds, ids, kind, state, *views, *activation(node), *biases(node))
        for kind in (HIT, FRESH)
    ]
    joined = write.call("combine", x, weights, kinds, *parts, None, None, state)
    for made in (mapped, *parts, joined):
        made.meta["format"] = node.meta.get("format", "")
    node.replace_all_uses_with(joined)
    graph.erase_node(node)
