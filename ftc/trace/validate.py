"""What a legal region graph is, before and after lowering; run between passes in tests and on demand."""

from __future__ import annotations

import torch
from torch import fx

from ftc.errors import PassError
from ftc.ops.op import OPS
from ftc.trace.graph import input_name, op_name, stream_of
from ftc.trace.regions import Kind

_POOLS = ("pool.", "state.", "bank.", "slots.", "mail.")
# ops that read a value on the host: a step must never wait for the device
_HOST_READS = {"aten._local_scalar_dense", "aten.item", "aten.nonzero", "aten.equal", "aten.is_nonzero"}
_PLAIN = {"getitem"}


def validate(kind: Kind, graph: fx.GraphModule, *, bound: bool = False) -> None:
    """Raises PassError at the first node that breaks the contract. `bound`: kernels have been chosen."""
    where = f"region {kind.name}"
    inputs = [input_name(n) for n in graph.graph.nodes if n.op == "placeholder"]
    if tuple(inputs) != kind.inputs:
        raise PassError("the graph's inputs are not the region's", where=where, value=inputs)
    for node in graph.graph.nodes:
        if node.op == "call_function":
            _call(node, where, bound)
        elif node.op == "output":
            (outputs,) = node.args
            if len(outputs) != len(kind.outputs):
                raise PassError(f"a region returns {kind.outputs}", where=where, value=len(outputs))
        elif node.op != "placeholder":
            raise PassError("only inputs, calls and one output are legal", where=f"{where}: {node.name}", value=node.op)
    _carry_shapes(graph, kind, where)


def _call(node: fx.Node, where: str, bound: bool) -> None:
    name, at = op_name(node), f"{where}: {node.name}"
    pools = [input_name(a) for a in node.all_input_nodes if input_name(a).startswith(_POOLS)]
    if name.startswith("ftc."):
        word = name.split(".")[1]
        if word not in OPS:
            raise PassError("no such op", where=at, value=name)
        if bound and "kernel" not in node.meta:
            raise PassError("no kernel was chosen for it", where=at, value=name)
        for pool in (p for p in pools if p.startswith("pool.")):
            if pool.replace("pool.", "state.") not in pools:
                raise PassError("touches a pool without the state that orders it", where=at, value=pool)
        cache = [p for p in pools if p.startswith(("slots.", "mail."))]
        if cache and "slots.state" not in cache:
            raise PassError("touches slots or mailbox without the state that orders them", where=at, value=cache)
        if stream_of(node) != "compute" and any(a.op != "placeholder" for a in node.all_input_nodes):
            raise PassError("work on a side stream may touch nothing that the compiler reuses", where=at, value=name)
        return
    if pools:
        raise PassError("only ftc ops may read pools and banks: the compiler would copy them", where=at, value=pools)
    if name in _HOST_READS:
        raise PassError("reads a value on the host inside a step", where=at, value=name)
    if name not in _PLAIN and not isinstance(node.target, torch._ops.OpOverload):
        raise PassError("neither aten nor ftc", where=at, value=name)
    if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
        raise PassError("only ftc ops may change what they are given", where=at, value=name)


def _carry_shapes(graph: fx.GraphModule, kind: Kind, where: str) -> None:
    if kind.block is None:
        return
    carry = {input_name(n): n for n in graph.graph.nodes if input_name(n).startswith("carry.")}
    (outputs,) = next(n for n in graph.graph.nodes if n.op == "output").args
    for name, node in zip(kind.outputs, outputs, strict=True):
        given, wanted = node.meta.get("val"), carry[name].meta.get("val")
        if given is None or wanted is None:
            continue
        if given.shape != wanted.shape or given.dtype != wanted.dtype:
            raise PassError(
                f"the carry must keep its shape and type, {wanted.dtype} {tuple(wanted.shape)}",
                where=f"{where}: {name}",
                value=f"{given.dtype} {tuple(given.shape)}",
            )
