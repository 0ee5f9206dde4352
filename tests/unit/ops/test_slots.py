"""The slot table against the host's own model of it, and the split against exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ftc.ops import slots as table
from ftc.ops.slots import CPU, FRESH, HIT, NOTHING, layer_map, layer_ready, layer_release, read_list, slot_map
from ftc.runtime.cache.policy import LRU
from ftc.runtime.cache.split import Costs, Follower

EXPERTS, LAYERS = 8, 3


class Table:
    """The tensors of a slot table and the ops over them."""

    def __init__(self, slots: int, costs: Costs | None = None) -> None:
        def ints(n: int, value: int) -> Tensor:
            return torch.full((n,), value, dtype=torch.int32)

        self.state = ints(table.STATE_ELEMENTS, 0)
        self.state[table.LIVE] = slots
        self.owner, self.used, self.place = ints(slots + 2, -1), ints(slots + 2, 0), ints(EXPERTS * LAYERS, -1)
        self.first, self.plan, self.chosen = ints(EXPERTS, 0), ints(129, 0), ints(1 + 2 * EXPERTS, 0)
        self.costs = (costs or Costs.share(1.0)).tensor()
        self.cpu = costs is not None

    @property
    def parts(self) -> tuple[Tensor, ...]:
        return self.state, self.owner, self.used, self.place

    def map(self, layer: int, ids: list[list[int]], rows: int | None = None) -> tuple[Tensor, Tensor]:
        live = torch.tensor([len(ids) if rows is None else rows], dtype=torch.int32)
        given = torch.tensor(ids, dtype=torch.int32)
        ordinal = torch.tensor(layer, dtype=torch.int32)
        return slot_map(given, live, ordinal, EXPERTS, self.cpu, *self.parts, self.first, self.plan, self.costs)

    def check(self) -> None:
        """What holds between calls: `place` and `owner` say the same."""
        for row, slot in enumerate(self.place.tolist()):
            assert slot < int(self.state[table.LIVE])
            if slot >= 0:
                assert int(self.owner[slot]) == row


steps = st.lists(
    st.tuples(st.integers(0, LAYERS - 1), st.lists(st.lists(st.integers(-1, EXPERTS), min_size=2, max_size=2), max_size=4)),
    max_size=30,
)


@settings(max_examples=80)
@given(steps, st.integers(1, 12), st.sampled_from([0.0, 0.3, 0.5, 1.0]))
def test_as_the_hosts_model(steps: list, slots: int, share: float) -> None:
    costs = Costs.share(share)
    t, lru, carry = Table(slots, costs), LRU(slots), 0
    for layer, ids in steps:
        if not ids:
            continue
        got, kinds = t.map(layer, ids)
        wanted = list(dict.fromkeys(e for row in ids for e in row if 0 <= e < EXPERTS))
        keys = [layer * EXPERTS + e for e in wanted]
        hits = {key for key in keys if lru.holds(key)}
        misses = [key for key in keys if key not in hits]
        lru.touch([key for key in keys if key in hits])
        count, carry = table.split(costs.fetch, costs.cpu, len(misses), carry)
        taken = lru.admit(misses[:count])
        assert read_list(t.plan) == list(taken.items())
        for row, places, ways in zip(ids, got.tolist(), kinds.tolist(), strict=True):
            for e, slot, kind in zip(row, places, ways, strict=True):
                key = layer * EXPERTS + e
                if not 0 <= e < EXPERTS:
                    assert (slot, kind) == (-1, NOTHING)
                elif lru.holds(key):
                    assert (slot, kind) == (lru.slot(key), HIT if key in hits else FRESH)
                else:
                    assert (slot, kind) == (-1, CPU)
        t.check()
    assert int(t.state[table.FAULTS]) == 0


def test_padding_rows_touch_nothing() -> None:
    t = Table(4)
    _, kinds = t.map(0, [[1, 2], [3, 4]], rows=1)
    assert kinds.tolist() == [[FRESH, FRESH], [NOTHING, NOTHING]]
    assert t.place.tolist()[:5] == [-1, 0, 1, -1, -1]


def test_without_a_cpu_what_finds_no_slot_is_a_fault() -> None:
    t = Table(2)
    _, kinds = t.map(0, [[1, 2], [3, 1]])
    assert kinds.tolist() == [[FRESH, FRESH], [CPU, FRESH]]
    assert int(t.state[table.FAULTS]) == 1


def test_a_victim_is_never_what_this_call_needs() -> None:
    t = Table(3, Costs.share(1.0))
    t.map(0, [[0, 1]])
    t.map(0, [[2, 2]])
    slots, kinds = t.map(0, [[0, 1], [3, 4]])  # 2 is newer than 0 and 1, but they are needed
    assert kinds.tolist() == [[HIT, HIT], [FRESH, CPU]] and slots[1, 0] == 2


@given(st.integers(1, 40), st.integers(1, 2000), st.integers(1, 2000))
def test_the_split_is_exact_in_the_long_run(missing: int, fetch: int, cpu: int) -> None:
    """Linear costs: the average number fetched is missing * cpu / (fetch + cpu), though each one is whole."""
    exact, total, carry = Fraction(missing * cpu, fetch + cpu), 0, 0
    fetches, cpus = [fetch * n for n in range(65)], [cpu * n for n in range(65)]
    for _ in range(50):
        q, carry = table.split(fetches, cpus, missing, carry)
        assert abs(q - exact) < 2
        total += q
    assert abs(total - 50 * exact) <= 2


def test_fixed_costs_keep_a_single_miss_where_it_is_cheaper() -> None:
    fetches, cpus = [0, 500, 600, 700], [0, 100, 200, 300]
    assert table.split(fetches, cpus, 1, 0)[0] == 0
    q, carry = table.split(fetches, cpus, 1, 0)
    seen = [q]
    for _ in range(20):
        q, carry = table.split(fetches, cpus, 1, carry)
        seen.append(q)
    assert sum(seen) == 3  # a sixth of them: a cold cache warms


def test_a_follower_finds_new_times() -> None:
    follow = Follower((1e-4, 2e-4), (5e-5, 2e-4))
    for step in range(200):
        n = step % 6 + 1
        follow.add("fetch", n, 1e-4 + 4e-4 * n)  # the link became half as fast
        follow.add("cpu", n, 5e-5 + 2e-4 * n)
    costs = follow.costs()
    for n in range(1, 9):
        assert abs(costs.fetch[n] / (1000 + 4000 * n) - 1) < 0.05
        assert abs(costs.cpu[n] / (500 + 2000 * n) - 1) < 0.05


def _ordinal(layer: int) -> Tensor:
    return torch.tensor(layer, dtype=torch.int32)


def test_layers_are_fetched_pinned_and_released() -> None:
    t = Table(2 * EXPERTS)
    t.map(1, [[0, 1]])  # two experts of layer 1 are there
    for layer in range(LAYERS):
        layer_map(_ordinal(layer), EXPERTS, 1, *t.parts, t.chosen)
        pairs = read_list(t.chosen)
        assert len(pairs) == (EXPERTS - 2 if layer == 1 else EXPERTS)
        layer_ready(*t.parts, t.chosen)
        t.check()
        own = t.place[layer * EXPERTS : (layer + 1) * EXPERTS]
        assert (own >= 0).all() and (t.used[own.long()] == table.PINNED).all()
        if layer:
            assert (t.place[(layer - 1) * EXPERTS : layer * EXPERTS] >= 0).all(), "the layer before was not kept"
    assert int(t.state[table.FAULTS]) == 0
    _, kinds = t.map(0, [[0, 1]])
    assert (kinds == CPU).all(), "pinned slots were taken"
    layer_release(*t.parts)
    assert (t.used < table.PINNED).all()
    _, kinds = t.map(2, [[5, 6]])
    assert (kinds == HIT).all(), "decode must start warm"


def test_a_decode_step_between_fetch_and_arrival() -> None:
    """The step may fetch what is on its way already; both copies are right, and one of them goes."""
    t = Table(2 * EXPERTS + 2)
    layer_map(_ordinal(0), EXPERTS, 1, *t.parts, t.chosen)
    slots, kinds = t.map(0, [[3, 4]])
    assert (kinds == FRESH).all(), "what has not arrived was read"
    layer_ready(*t.parts, t.chosen)
    t.check()
    assert int((t.owner == 3).sum()) == 1 and int(t.place[3]) != int(slots[0, 0])


def test_a_prefill_that_was_given_up_leaves_no_pins() -> None:
    t = Table(2 * EXPERTS)
    layer_map(_ordinal(0), EXPERTS, 1, *t.parts, t.chosen)
    t.chosen[0] = 0  # never arrives
    layer_map(_ordinal(2), EXPERTS, 1, *t.parts, t.chosen)
    assert len(read_list(t.chosen)) == EXPERTS and int(t.state[table.FAULTS]) == 0
    assert int((t.used == table.PINNED).sum()) == EXPERTS
