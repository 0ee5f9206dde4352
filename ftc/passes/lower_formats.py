"""Notes on every op that reads weights which number format they are in, and refuses formats it has no word for."""

from __future__ import annotations

from torch import fx

from ftc.errors import PassError
from ftc.passes.base import Context, Facts
from ftc.trace.graph import input_name, op_name

PASS = Facts(level="region", gives=("formats",))

# op -> formats its word takes as they are; a packed format brings its own word here
_TAKES = {
    "ftc.linear": {"float32", "bfloat16"},
    "ftc.experts": {"float32", "bfloat16"},
    "ftc.latent_attention": {"float32", "bfloat16"},
    "aten.embedding": {"float32", "bfloat16"},
}


def run(graph: fx.GraphModule, ctx: Context) -> fx.GraphModule:
    for node in graph.graph.nodes:
        takes = _TAKES.get(op_name(node)) if node.op == "call_function" else None
        if takes is None:
            continue
        names = [input_name(a) for a in node.all_input_nodes]
        formats = {n: ctx.formats[n] for n in names if n in ctx.formats}
        for name, given in formats.items():
            if given not in takes:
                raise PassError(f"{op_name(node)} has no variant for this number format", where=name, value=given)
        if len(set(formats.values())) > 1:
            raise PassError("one op reads weights of several formats", where=node.name, value=formats)
        if formats:
            node.meta["format"] = next(iter(formats.values()))
    return graph
