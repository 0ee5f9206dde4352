"""Binds each ftc op to a kernel: what tuning measured, else the target's first choice that exists, else the reference."""

from __future__ import annotations

from torch import fx

from ftc.ops.op import OPS, Op
from ftc.passes.base import Context, Facts
from ftc.trace.graph import op_name

PASS = Facts(level="region", numerics="bounded", needs=("formats",), gives=("bound",))


def run(graph: fx.GraphModule, ctx: Context) -> fx.GraphModule:
    for node in graph.graph.nodes:
        if node.op != "call_function" or not op_name(node).startswith("ftc."):
            continue
        op = OPS[op_name(node).split(".")[1]]
        variant = _variant(op, node, ctx)
        node.target = op.bound(variant)
        node.meta["kernel"] = variant
    graph.recompile()
    return graph


def tuning_name(op: str, node: fx.Node) -> str:
    """The key of a measured choice: op, shapes of its tensors, format."""
    shapes = [list(a.meta["val"].shape) for a in node.args if isinstance(a, fx.Node) and "val" in a.meta]
    return f"{op} {'x'.join(str(s) for s in shapes)} {node.meta.get('format', '')}".strip()


def _variant(op: Op, node: fx.Node, ctx: Context) -> str:
    measured = ctx.tuning.get(tuning_name(op.name, node))
    if measured in op.kernels and op.supports(measured, node.args):
        return measured
    return next((v for v in ctx.target.kernels if v in op.kernels and op.supports(v, node.args)), "reference")
