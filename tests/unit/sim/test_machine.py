"""The played machine: it runs what is queued in every order that events allow, and in no other."""

from __future__ import annotations

import pytest

from ftc.compile.sim import Machine
from ftc.errors import PassError

ORDERS = ["eager", "laziest", *range(8)]


def run(order: str | int, *, record: bool = True, wait: bool = True) -> list[str]:
    m, seen = Machine(order), []
    m.queue("compute", lambda: seen.append("a"))
    if record:
        m.record("ready", "compute")
    m.queue("compute", lambda: seen.append("b"))
    if wait:
        m.wait("ready", "copy")
    m.queue("copy", lambda: seen.append("c"))
    m.record("done", "copy")
    m.wait("done", "compute")
    m.queue("compute", lambda: seen.append("d"))
    m.finish()
    return seen


@pytest.mark.parametrize("order", ORDERS)
def test_events_hold(order: str | int) -> None:
    seen = run(order)
    assert seen.index("a") < seen.index("c") < seen.index("d") and seen.index("a") < seen.index("b")


def test_orders_differ_where_they_may() -> None:
    assert run("eager") == ["a", "c", "b", "d"]
    assert run("laziest") == ["a", "b", "c", "d"]
    assert len({tuple(run(seed)) for seed in range(8)}) == 2


@pytest.mark.parametrize("lost", ["record", "wait"])
def test_a_lost_event_shows(lost: str) -> None:
    assert run("eager", **{lost: False})[0] == "c"


def test_a_wait_is_for_what_was_recorded_before_it() -> None:
    m, seen = Machine("eager"), []
    m.queue("compute", lambda: seen.append("first"))
    m.record("e", "compute")
    m.wait("e", "copy")
    m.queue("copy", lambda: seen.append("copy"))
    m.queue("compute", lambda: seen.append("second"))
    m.record("e", "compute")
    m.finish()
    assert seen == ["first", "copy", "second"]


def test_streams_that_wait_for_each_other() -> None:
    m = Machine()
    m.record("a", "copy")
    m.record("b", "compute")
    # each waits for a record that stands behind the other's wait
    m._queues["copy"].rotate(1)
    m.wait("a", "compute")
    m.wait("b", "copy")
    m._queues["compute"].rotate(1)
    m._queues["copy"].rotate(1)
    with pytest.raises(PassError, match="wait for each other"):
        m.finish()
