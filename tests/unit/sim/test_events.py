"""Every event that passes put in is needed: without any one of its records or waits some order gives wrong results."""

from __future__ import annotations

import pytest
import torch

from ftc.ops.copy import event_record, event_wait
from ftc.passes.base import Lowered
from ftc.passes.rewrite import argument, calls
from tests import tiny
from tests.rig import Rig
from tests.simrig import SimRig, batch_greedy

ORDERS = ("eager", "laziest", 1, 2, 3, 4)
PROMPTS = [[3, 50, 7, 101, 9, 200, 31], [90, 4, 77]]
TOKENS = 4

DECODE, LAYERS, HOST = (("mapped", "filled", "submitted", "computed"), ("chosen", "arrived"), ("submitted", "computed"))
LOSSES = [(mode, event, op) for mode, events in (("decode", DECODE), ("double", LAYERS), ("single", LAYERS), ("host", HOST))
          for event in events for op in (event_record, event_wait)]  # fmt: skip


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    folder = tmp_path_factory.mktemp("tiny")
    tiny.write("qwen3_moe", folder)
    return Rig(folder, torch.float32, context=128)


@pytest.fixture(scope="module")
def wanted(rig: Rig) -> list[list[int]]:
    return [rig.greedy(p, TOKENS)[0] for p in PROMPTS]


def sim_rig(rig: Rig, mode: str, change: object = lambda lowered: None, off: tuple[str, ...] = ()) -> SimRig:
    """For "decode" a cache that misses all the time, else one that holds the layers of the prefill mode."""
    slots, prefill = (6, "host") if mode == "decode" else (16, mode)
    return SimRig(rig, slots, 0.5, prefill=prefill, off=off, change=change, decode_rows=(4,), chunk_rows=(16,))  # type: ignore[arg-type]


def is_right(sim: SimRig, order: str | int, wanted: list[list[int]]) -> bool:
    sim.restart(order)
    try:
        return batch_greedy(sim, PROMPTS, TOKENS) == wanted and sim.cache.take_faults() == 0
    except (ArithmeticError, AssertionError):
        return False


@pytest.mark.parametrize("off", [(), ("overlap",)], ids=["all passes", "without overlap"])
def test_whole_it_is_right_in_every_order(rig: Rig, wanted: list[list[int]], off: tuple[str, ...]) -> None:
    for mode in ("decode", "double", "single", "host"):
        sim = sim_rig(rig, mode, off=off)
        assert [order for order in ORDERS if not is_right(sim, order, wanted)] == [], mode


@pytest.mark.parametrize(("mode", "event", "op"), LOSSES, ids=lambda v: getattr(v, "name", str(v)))
def test_without_it_some_order_is_wrong(rig: Rig, wanted: list[list[int]], mode: str, event: str, op: object) -> None:
    lost = []

    def lose(lowered: Lowered) -> None:
        if (lowered.shape.mode == "decode") != (mode == "decode"):
            return
        for graph in lowered.regions.values():
            for node in calls(graph.graph, op):  # type: ignore[arg-type]
                if argument(node, "event") == event:
                    graph.graph.erase_node(node)
                    lost.append(node)

    sim = sim_rig(rig, mode, lose)
    verdicts = (is_right(sim, order, wanted) for order in ORDERS)
    assert not all(verdicts), "no order needs it"
    assert lost, "there is no such event"

