"""A prefill chunk reads whole layers from slots: the next layer is copied while one is computed, as far as two fit."""

from __future__ import annotations

import dataclasses

import torch
from torch import fx

from ftc.ops.experts import experts_op
from ftc.passes.base import Context, Facts, Lowered
from ftc.passes.map_slots import TABLE, activation, biases, matrices
from ftc.passes.rewrite import Writer, argument, calls
from ftc.passes.split_misses import submit
from ftc.trace.regions import Call, Kind

PASS = Facts(level="program", when="prefill", plans=("cached", "streamed"), gives=("layers",))


def run(lowered: Lowered, ctx: Context) -> None:
    """ctx.prefill: "double" holds two layers, "single" one, "host" none: the CPU computes."""
    used: dict[str, dict[str, fx.Node]] = {}
    for name, graph in lowered.regions.items():
        for node in calls(graph.graph, experts_op):
            used.setdefault(name, {})[_branch(node)] = node
    # a block may have several such branches: all of them must stay while it is computed
    keep = max((len(found) for found in used.values()), default=0) - (ctx.prefill == "single")
    if ctx.prefill != "host" and used:
        for branch, node in [(b, n) for found in used.values() for b, n in found.items()]:
            for step in ("fetch", "arrive"):
                _add_region(lowered, f"{step}.{branch}", node, keep)
        nodes = next(iter(used.values()))
        _add_region(lowered, "release", next(iter(nodes.values())), keep=0)
        lowered.schedule = _schedule(lowered.schedule, {k: list(v) for k, v in used.items()}, ctx.prefill == "double")
    for name, found in used.items():
        for node in found.values():
            (_on_cpu if ctx.prefill == "host" else _from_slots)(lowered.regions[name].graph, node)
        lowered.regions[name].recompile()


def _branch(node: fx.Node) -> str:
    return argument(node, "ordinal").meta["input"].split(".")[1]


def _from_slots(graph: fx.Graph, node: fx.Node) -> None:
    x, ids, weights, ordinal, experts, rows = (
        argument(node, n) for n in ("x", "ids", "weights", "ordinal", "experts", "rows")
    )
    write = Writer(graph, node)
    state, place = write.inputs("slots.state", "slots.place")
    made = write.call("layer_experts", x, ids, weights, state, place, ordinal, experts, *matrices(write, node),
                      *activation(node), rows, *biases(node))  # fmt: skip
    made.meta["format"] = node.meta.get("format", "")
    node.replace_all_uses_with(made)
    graph.erase_node(node)


def _on_cpu(graph: fx.Graph, node: fx.Node) -> None:
    x, ids, weights, ordinal, experts, rows = (
        argument(node, n) for n in ("x", "ids", "weights", "ordinal", "experts", "rows")
    )
    write = Writer(graph, node)
    kinds = write.call("cpu_kinds", ids, experts, rows)
    mail = submit(write, node, x, ids, kinds, experts, ordinal, rows)
    write.wait("computed", "compute")
    made = write.call("combine", x, weights, kinds, None, None, mail, *write.inputs("mail.note", "slots.state"))
    made.meta["format"] = node.meta.get("format", "")
    node.replace_all_uses_with(made)
    graph.erase_node(node)


def _add_region(lowered: Lowered, name: str, experts: fx.Node, keep: int) -> None:
    """A region without a carry: "fetch" starts the copies of a layer, "arrive" waits for the last fetch."""
    if name in lowered.regions:
        return
    graph = fx.Graph()
    ordinal, bank = argument(experts, "ordinal"), argument(experts, "up")
    for given in (ordinal, bank):
        graph.placeholder(given.name).meta = dict(given.meta)
    at = graph.output(())
    own = next(iter(graph.nodes))
    write = Writer(graph, at)
    table = write.inputs(*TABLE)
    step = name.partition(".")[0]
    if step == "fetch":
        (chosen,) = write.inputs("slots.chosen")
        write.call("layer_map", own, argument(experts, "experts"), keep, *table, chosen)
        write.record("chosen", "compute")
        write.wait("chosen", "fetch")
        write.call("slot_fill", table[0], chosen, *write.inputs("bank.records", "slots.records"), "fetch")
        write.record("arrived", "fetch")
    elif step == "arrive":
        write.wait("arrived", "compute")
        write.call("layer_ready", *table, write.input("slots.chosen"))
    else:
        write.call("layer_release", *table)
    graph.lint()
    lowered.regions[name] = fx.GraphModule(torch.nn.Module(), graph)
    inputs = tuple(n.meta["input"] for n in graph.nodes if n.op == "placeholder")
    lowered.kinds[name] = Kind(name, inputs, ())


def _schedule(schedule: list[Call], used: dict[str, list[str]], ahead: bool) -> list[Call]:
    """The calls of a chunk with its fetches. What an earlier chunk left on its way is waited for first."""
    layers = [Call(branch, call.block) for call in schedule for branch in used.get(call.kind, ())]
    fetches = [dataclasses.replace(c, kind=f"fetch.{c.kind}") for c in layers]
    arrives = [dataclasses.replace(c, kind=f"arrive.{c.kind}") for c in layers]
    result: list[Call] = [arrives[0], fetches[0]]
    at = 0
    for call in schedule:
        for _ in used.get(call.kind, ()):
            if not ahead and at > 0:
                result.append(fetches[at])
            result.append(arrives[at])
            if ahead and at + 1 < len(fetches):
                result.append(fetches[at + 1])
            at += 1
        if call.kind == "head":
            result.append(Call("release", layers[0].block))
        result.append(call)
    return result
