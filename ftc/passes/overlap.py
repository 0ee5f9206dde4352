"""Copies and the CPU start as early, and are waited for as late, as the data allows: what needs neither runs in between."""

from __future__ import annotations

import torch
from torch import fx

from ftc.ops.copy import event_record, event_wait
from ftc.ops.routed import combine, slot_experts
from ftc.ops.slots import FRESH, slot_map
from ftc.passes.base import Context, Facts
from ftc.passes.rewrite import argument, calls

PASS = Facts(level="region", when="decode", plans=("cached", "streamed"), needs=("slots",))


def run(graph: fx.GraphModule, ctx: Context) -> fx.GraphModule:
    for mapped, joined in zip(calls(graph.graph, slot_map), calls(graph.graph, combine), strict=True):
        _start_early(graph.graph, mapped)
        _join_late(graph.graph, joined)
    graph.graph.lint()
    graph.recompile()
    return graph


def _start_early(graph: fx.Graph, mapped: fx.Node) -> None:
    """Pure nodes that the lookup does not need move behind the last start; ops that change something stay where they are."""
    order = list(graph.nodes)
    starts = [n for n in calls(graph, event_record) if order.index(n) > order.index(mapped)]
    last = max((n for n in starts if argument(n, "event") in ("filled", "computed")), key=order.index)
    needed = _ancestors(last, order) | _ancestors(mapped, order)
    for node in order[order.index(mapped) : order.index(last) + 1]:
        needed |= _ancestors(node, order)
    low = max((i for i, n in enumerate(order[: order.index(mapped)]) if _fixed(n)), default=0)
    anchor = last
    for node in order[low + 1 : order.index(mapped)]:
        if node not in needed and not _fixed(node):
            anchor.append(node)
            anchor = node


def _join_late(graph: fx.Graph, joined: fx.Node) -> None:
    """What does not depend on the sum moves before the first wait; behind it stand only fresh rows, waits and the sum."""
    order = list(graph.nodes)
    fresh = [n for n in calls(graph, slot_experts) if n in joined.all_input_nodes and argument(n, "kind") == FRESH]
    block = {joined, *fresh}
    waits = [n for n in calls(graph, event_wait) if argument(n, "stream") == "compute" and order.index(n) < order.index(joined)]
    for event in ("filled", "computed"):
        own = [n for n in waits if argument(n, "event") == event]
        block |= set(own[-1:])
    high = next((i for i, n in enumerate(order) if i > order.index(joined) and _fixed(n)), len(order) - 1)
    after = _descendants(block, order)
    free = [n for n in order[order.index(joined) + 1 : high] if n not in after and n not in block]
    # in order: the free nodes, then the CPU's wait last, for it is the longest
    tail = [n for n in order if n in block]
    tail.sort(key=lambda n: (n is joined, _is_wait(n, "computed"), order.index(n)))
    anchor = joined.prev
    while anchor in block:
        anchor = anchor.prev
    for node in [*free, *tail]:
        anchor.append(node)
        anchor = node


def _is_wait(node: fx.Node, event: str) -> bool:
    return bool(node in calls(node.graph, event_wait)) and argument(node, "event") == event


def _fixed(node: fx.Node) -> bool:
    if node.op != "call_function":
        return True
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _ancestors(node: fx.Node, order: list[fx.Node]) -> set[fx.Node]:
    found: set[fx.Node] = set()
    todo = [node]
    while todo:
        at = todo.pop()
        if at not in found:
            found.add(at)
            todo += at.all_input_nodes
    return found


def _descendants(block: set[fx.Node], order: list[fx.Node]) -> set[fx.Node]:
    found = set(block)
    for node in order:
        if any(a in found for a in node.all_input_nodes):
            found.add(node)
    return found - block
