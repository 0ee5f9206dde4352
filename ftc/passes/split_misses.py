"""Part of the missing experts is computed on the CPU, at the same time: submit through the mailbox, run, join in the sum."""

from __future__ import annotations

from torch import fx

from ftc.ops.routed import combine, slot_experts
from ftc.ops.slots import slot_map
from ftc.passes.base import Context, Facts
from ftc.passes.map_slots import BIASES
from ftc.passes.rewrite import Writer, argument, calls, set_argument
from ftc.trace.graph import input_name

PASS = Facts(level="region", when="decode", plans=("cached", "streamed"), needs=("slots",), gives=("cpu branch",))


def run(graph: fx.GraphModule, ctx: Context) -> fx.GraphModule:
    for mapped, joined in zip(calls(graph.graph, slot_map), calls(graph.graph, combine), strict=True):
        _split(graph.graph, mapped, joined)
    graph.recompile()
    return graph


def submit(write: Writer, experts: fx.Node, x: fx.Node, ids: fx.Node, kinds: fx.Node, count: int, ordinal: fx.Node,
           rows: fx.Node) -> fx.Node:  # fmt: skip
    """The CPU branch up to its end on the host's stream. `experts` is a call whose matrices are the bank's or the slots'."""
    state, mail_x, mail_ids, note = write.inputs("slots.state", "mail.x", "mail.ids", "mail.note")
    write.call("cpu_submit", x, ids, kinds, ordinal, rows, state, mail_x, mail_ids, note)
    write.record("submitted", "compute")
    write.wait("submitted", "host")
    views = [argument(experts, m) for m in ("gate", "up", "down")]
    bank = [None if v is None else write.input(input_name(v).replace("slots.", "bank.")) for v in views]
    own = [argument(experts, n) for n in ("activation", "limit", "alpha", *BIASES)]
    mail_rows = write.input("mail.rows")
    write.call("cpu_run", state, mail_x, mail_ids, mail_rows, note, *bank, count, *own, "host")
    write.record("computed", "host")
    return mail_rows


def _split(graph: fx.Graph, mapped: fx.Node, joined: fx.Node) -> None:
    set_argument(mapped, "cpu", True)
    gpu = next(n for n in calls(graph, slot_experts) if n in joined.all_input_nodes)
    x, kinds, ids = (argument(gpu, n) for n in ("x", "kinds", "ids"))
    after = max(mapped.users, key=list(graph.nodes).index).next
    write = Writer(graph, after)
    rows = submit(write, gpu, x, ids, kinds, argument(mapped, "experts"), argument(mapped, "ordinal"), argument(mapped, "rows"))
    Writer(graph, joined).wait("computed", "compute")
    set_argument(joined, "mail_rows", rows)
    set_argument(joined, "mail_note", write.input("mail.note"))
