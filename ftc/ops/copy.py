"""Work beside the computation: copies of expert records into slots, and the events between streams."""

from __future__ import annotations

from torch import Tensor

from ftc.ops.op import Op
from ftc.ops.slots import read_list

# Streams by name. Ops with a `stream` argument run there, all others on "compute", in order.
COMPUTE, COPY, FETCH, HOST = STREAMS = ("compute", "copy", "fetch", "host")


def _fill_reference(state: Tensor, plan: Tensor, bank: Tensor, records: Tensor, stream: str) -> None:
    for row, slot in read_list(plan):
        records[slot] = bank[row]


# contract: copies bank [R, elements] rows into records [S, elements] as the copy list says; host memory to slots.
slot_fill = Op(
    "slot_fill",
    "(Tensor(a!) state, Tensor plan, Tensor bank, Tensor records, str stream) -> ()",
    _fill_reference,
    lambda *_: None,
)


def _in_order(state: Tensor, event: str, stream: str) -> None:
    """Where ops run one after the other there is nothing to wait for."""


# contract: event_record marks how far `stream` is; event_wait holds `stream` until the last mark of that name is reached.
# A wait for an event that was never recorded is none.
event_record = Op("event_record", "(Tensor(a!) state, str event, str stream) -> ()", _in_order, lambda *_: None)
event_wait = Op("event_wait", "(Tensor(a!) state, str event, str stream) -> ()", _in_order, lambda *_: None)
