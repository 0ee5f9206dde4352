"""A region's graph as text: stable names, shapes and types, the basis of artefact keys and of `ftc trace`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx


def named_copy(graph: fx.Graph, inputs: tuple[str, ...]) -> fx.GraphModule:
    """A fresh module over a copy of `graph` whose placeholders carry their input's name, in name and `meta["input"]`."""
    copy, table = fx.Graph(), {}
    names = iter(inputs)
    for node in graph.nodes:
        if node.op == "placeholder":
            name = next(names)
            table[node] = copy.placeholder(name.replace(".", "_"))
            table[node].meta = {"val": node.meta.get("val"), "input": name}
        else:
            table[node] = copy.node_copy(node, table.__getitem__)
            table[node].meta = {k: v for k, v in node.meta.items() if k != "stack_trace"}
    copy.lint()
    return fx.GraphModule(torch.nn.Module(), copy)


def input_name(node: fx.Node) -> str:
    """The region input behind a placeholder, else an empty string."""
    return node.meta.get("input", "") if node.op == "placeholder" else ""


def op_name(node: fx.Node) -> str:
    """`ftc.linear`, `ftc.linear.native`, `aten.add.Tensor`, `getitem`, ..."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        space, name = target.namespace, target._schema.name.split("::")[1]
        overload = target._overloadname
        return f"{space}.{name}" if overload == "default" else f"{space}.{name}.{overload}"
    return getattr(target, "__name__", str(target))


def argument(node: fx.Node, name: str) -> Any:
    """An argument of a call by its name in the schema."""
    for at, a in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if a.name == name:
            return node.args[at] if at < len(node.args) else node.kwargs.get(name, a.default_value)
    raise KeyError(name)


def stream_of(node: fx.Node) -> str:
    """The stream a node runs on: the one its op names, else "compute". Events belong to the stream they mark or hold."""
    if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
        if any(a.name == "stream" for a in node.target._schema.arguments):
            return argument(node, "stream")
    return "compute"


def text_of(module: fx.GraphModule) -> str:
    """One line a node: `name: type[shape] = op(arguments)`, with what passes wrote about it in braces."""
    return "\n".join(_lines(module))


def hash_of(module: fx.GraphModule) -> str:
    return hashlib.sha256(text_of(module).encode()).hexdigest()[:16]


def _lines(module: fx.GraphModule) -> Iterator[str]:
    for node in module.graph.nodes:
        if node.op == "placeholder":
            yield f"{node.name}: {type_of(node)} = input {input_name(node)}"
        elif node.op == "output":
            yield f"return {fx.node.map_arg(node.args[0], lambda n: n.name)}".replace("'", "")
        else:
            arguments = arguments_of(node)
            notes = ", ".join(f"{k}={node.meta[k]}" for k in ("format", "kernel") if k in node.meta)
            yield f"{node.name}: {type_of(node)} = {op_name(node)}({arguments})" + (f"  {{{notes}}}" if notes else "")


def arguments_of(node: fx.Node) -> str:
    """What a call is given, tensors by name; `key=value` for keywords, which decide as much (`approximate=tanh`)."""
    given = [("", a) for a in node.args] + [(f"{name}=", a) for name, a in node.kwargs.items()]
    return ", ".join(f"{name}{fx.node.map_arg(a, lambda n: _Name(n.name))}" for name, a in given)


class _Name(str):
    def __repr__(self) -> str:
        return str(self)


def type_of(node: fx.Node) -> str:
    """`float32[1, 256]`, or several of them in brackets; "?" where the tracer noted nothing."""
    value = node.meta.get("val")
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(_shape(v) for v in value) + ")"
    return _shape(value)


def _shape(value: object) -> str:
    if not isinstance(value, torch.Tensor):
        return "?"
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
