"""What a drawing of a region's graph shows: its nodes as plain data, and which of them a pass changed."""

from __future__ import annotations

from typing import Literal

import msgspec
import torch
from torch import fx

from ftc.trace.graph import arguments_of, input_name, op_name, text_of, type_of

Role = Literal["aten", "word", "kernel", "output", "carry", "weight", "bank", "constant", "pool", "state", "ordinal", "step"]

# first part of an input's name -> its role; what passes add besides is fed anew by each step
_INPUTS: dict[str, Role] = {
    "carry": "carry", "w": "weight", "bank": "bank", "const": "constant", "pool": "pool", "slots": "pool",
    "state": "state", "ord": "ordinal",
}  # fmt: skip
_SHORT = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64", "int32": "i32", "int64": "i64"}
_MOST_LITERALS = 14


class Node(msgspec.Struct, frozen=True):
    """One node. `inputs` are names of nodes, in the order of the call; `label` and `type` are short, `op` and `value` whole.

    `format` and `kernel` are what passes noted, "" before; an input's `label` is its name without the part that is its role.
    """

    name: str
    role: Role
    label: str
    op: str
    type: str
    value: str
    inputs: tuple[str, ...] = ()
    arguments: str = ""
    format: str = ""
    kernel: str = ""

    @property
    def is_chip(self) -> bool:
        """An input that is shown where it is used: all but the carry, which flows through the graph."""
        return self.role not in ("aten", "word", "kernel", "output", "carry")


class Picture(msgspec.Struct, frozen=True):
    """A region after one pass: its nodes in program order, and the same as text."""

    nodes: tuple[Node, ...]
    text: str


def picture(graph: fx.GraphModule, outputs: tuple[str, ...]) -> Picture:
    """The nodes of `graph` as they are now; `outputs` names what it returns."""
    return Picture(tuple(_node(n, outputs) for n in graph.graph.nodes), text_of(graph))


def changes(before: Picture, after: Picture) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the nodes that are new or different in `after`, and of those that are gone."""
    old, new = ({n.name: n for n in p.nodes} for p in (before, after))
    return tuple(name for name, n in new.items() if old.get(name) != n), tuple(name for name in old if name not in new)


def _node(node: fx.Node, outputs: tuple[str, ...]) -> Node:
    inputs = tuple(n.name for n in node.all_input_nodes)
    whole = type_of(node)
    if node.op == "placeholder":
        name = input_name(node)
        space, _, rest = name.partition(".")
        return Node(node.name, _INPUTS.get(space, "step"), rest or name, "input", _type(node), whole, arguments=name)
    if node.op == "output":
        label = ", ".join(o.removeprefix("carry.") for o in outputs)
        return Node(node.name, "output", label, "return", "", "", inputs, ", ".join(inputs))
    op = op_name(node)
    kernel, is_ours = node.meta.get("kernel", ""), op.startswith("ftc.")
    role: Role = "aten" if not is_ours else "kernel" if kernel and kernel != "reference" else "word"
    label = op.split(".")[1] if "." in op else op
    if not is_ours:
        label = f"{label} {_literals(node)}".strip() if op != "getitem" else f"[{node.args[1]}]"
    form = node.meta.get("format", "")
    return Node(node.name, role, label, op, _type(node), whole, inputs, arguments_of(node), form, kernel)


def _literals(node: fx.Node) -> str:
    """The arguments that are no tensors, if they are short."""
    found = []
    for a in node.args[1:]:
        if isinstance(a, torch.dtype):
            found.append(_SHORT.get(str(a).removeprefix("torch."), str(a)))
        elif isinstance(a, (int, float)) and not isinstance(a, bool) and abs(a) < 1 << 40:
            found.append(f"{a:g}")
    text = " ".join(found)
    return text if len(text) <= _MOST_LITERALS else ""


def _type(node: fx.Node) -> str:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return f"({len(value)})" if isinstance(value, (tuple, list)) else ""
    kind = str(value.dtype).removeprefix("torch.")
    return f"{_SHORT.get(kind, kind)} {'×'.join(str(n) for n in value.shape)}".strip()
