"""How a pass changes a graph: calls that know their fake values, and inputs of the expert cache that it may add."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from ftc.ops.op import OPS, Op
from ftc.ops.slots import MOST_ROUTES, STATE_ELEMENTS
from ftc.trace.graph import argument, input_name, op_name

# Slots, rows and routes of inputs that a pass adds; like the tracer's own stand-in, no graph depends on it.
STAND_IN = 16

__all__ = ["Writer", "add_input", "argument", "calls", "set_argument"]

_INTS = {
    "slots.state": (STATE_ELEMENTS,),
    "slots.owner": (STAND_IN,),
    "slots.used": (STAND_IN,),
    "slots.place": (STAND_IN,),
    "slots.first": (STAND_IN,),
    "slots.plan": (1 + 2 * MOST_ROUTES,),
    "slots.chosen": (1 + 2 * STAND_IN,),
    "slots.costs": (2, MOST_ROUTES + 1),
    "mail.ids": (STAND_IN,),
    "mail.note": (8,),
}


def calls(graph: fx.Graph, op: Op) -> list[fx.Node]:
    """The nodes that call a word, whichever kernel it is bound to."""
    return [n for n in graph.nodes if n.op == "call_function" and op_name(n).split(".")[:2] == ["ftc", op.name]]


def set_argument(node: fx.Node, name: str, value: Any) -> None:
    names = [a.name for a in node.target._schema.arguments]  # type: ignore[union-attr]
    node.update_arg(names.index(name), value)


def add_input(graph: fx.Graph, name: str) -> fx.Node:
    """The placeholder of a cache input; it is appended where the graph has none. Its shape and type follow the bank's."""
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    for node in placeholders:
        if input_name(node) == name:
            return node
    bank = next(n.meta["val"] for n in placeholders if input_name(n) == "bank.up")
    with graph.inserting_after(placeholders[-1]):
        node = graph.placeholder(name.replace(".", "_"))
    node.meta = {"val": _value(name, bank), "input": name}
    return node


def _value(name: str, bank: torch.Tensor) -> torch.Tensor:
    width, hidden = bank.shape[1:]
    record = bank.stride(0)
    with bank.fake_mode:  # type: ignore[attr-defined]
        if name in _INTS:
            return torch.empty(_INTS[name], dtype=torch.int32)
        if name in ("slots.records", "bank.records"):
            return torch.empty((STAND_IN, record), dtype=bank.dtype)
        if name in ("mail.x", "mail.rows"):
            return torch.empty((STAND_IN, hidden), dtype=torch.float32)
        assert name.startswith("slots."), name
        return torch.empty_strided((STAND_IN, width, hidden), (record, hidden, 1), dtype=bank.dtype)


class Writer:
    """Inserts calls one after the other, the first before `at`."""

    def __init__(self, graph: fx.Graph, at: fx.Node) -> None:
        self.graph, self._at = graph, at

    def input(self, name: str) -> fx.Node:
        return add_input(self.graph, name)

    def inputs(self, *names: str) -> tuple[fx.Node, ...]:
        return tuple(add_input(self.graph, n) for n in names)

    def call(self, name: str, *args: Any) -> fx.Node:
        """A call of `ftc::name`; its fake value is known at once."""
        op = OPS[name]
        with self.graph.inserting_before(self._at):
            node = self.graph.call_function(op.word, args)
        node.meta["val"] = op.fake(*fx.node.map_arg(args, lambda n: n.meta["val"]))
        return node

    def item(self, node: fx.Node, index: int) -> fx.Node:
        """One of several results."""
        with self.graph.inserting_before(self._at):
            got = self.graph.call_function(operator.getitem, (node, index))
        got.meta["val"] = node.meta["val"][index]
        return got

    def record(self, event: str, stream: str) -> fx.Node:
        return self.call("event_record", self.input("slots.state"), event, stream)

    def wait(self, event: str, stream: str) -> fx.Node:
        return self.call("event_wait", self.input("slots.state"), event, stream)
