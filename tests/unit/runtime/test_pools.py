"""Pools against a plain model of what each holder put there: nothing is lost, mixed up or leaked, whatever the order."""

from __future__ import annotations

import mmap
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ftc.errors import EngineError
from ftc.runtime.plan import PAGE_TOKENS, Plan
from ftc.runtime.pools import Numbers, Pools
from ftc.spec.cache import CacheGroup

GROUPS = {
    "kv": (CacheGroup("kv", "token", (6,)), 2),
    "index": (CacheGroup("index", "token", (3,), "float32"), 1),
    "line": (CacheGroup("line", "sequence", (4, 3)), 2),
    "matrix": (CacheGroup("matrix", "sequence", (2, 5, 5), "float32"), 3),
}
PER = {"pages": ("kv", "index"), "states": ("line", "matrix")}


def pools(pages: int = 12, slots: int = 5) -> Pools:
    return Pools(GROUPS, torch.bfloat16, Plan(1024, slots, pages, pages, slots))


def test_shapes_types_and_states() -> None:
    tensors = pools().tensors
    assert {name: (tuple(data.shape), data.dtype) for name, (data, _) in tensors.items()} == {
        "kv": ((12, 2, PAGE_TOKENS, 6), torch.bfloat16),
        "index": ((12, 1, PAGE_TOKENS, 3), torch.float32),
        "line": ((5, 2, 4, 3), torch.bfloat16),
        "matrix": ((5, 3, 2, 5, 5), torch.float32),
    }
    assert {name: state.tolist() for name, (_, state) in tensors.items()} == {
        "kv": [12, 0, 0, 0],
        "index": [12, 0, 0, 0],
        "line": [5, 0, 0, 0],
        "matrix": [5, 0, 0, 0],
    }
    assert all(not data.any() for data, _ in tensors.values())


class Holder:
    """Numbers of one pool together with the value written into each."""

    def __init__(self, numbers: list[int], value: int) -> None:
        self.numbers, self.value = numbers, value


@settings(max_examples=30, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from(["pages", "states"]))
def test_contents_survive_any_order_of_allocate_share_release_resize(chance: random.Random, name: str) -> None:
    all_pools = pools()
    numbers = all_pools.pages if name == "pages" else all_pools.slots
    tensors = [all_pools.tensors[group] for group in PER[name]]
    holders: list[Holder] = []
    live = numbers.reserved
    for value in range(1, 40):
        moves: dict[int, int] = {}
        used = {number for holder in holders for number in holder.numbers}
        match chance.choice(["take", "take", "share", "release", "resize"]):
            case "take":
                count = chance.randint(1, 4)
                taken = numbers.allocate(count)
                assert (taken is None) == (count > live - len(used))
                if taken is not None:
                    assert not used & set(taken) and len(set(taken)) == count and max(taken) < live
                    for data, _ in tensors:
                        data[taken] = float(value)
                    holders.append(Holder(taken, value))
            case "share" if holders:
                other = chance.choice(holders)
                numbers.hold(other.numbers)
                holders.append(Holder(list(other.numbers), other.value))
            case "release" if holders:
                numbers.release(holders.pop(chance.randrange(len(holders))).numbers)
            case "resize":
                wanted = chance.randint(1, numbers.reserved)
                if wanted < len(used):
                    with pytest.raises(EngineError, match="in use"):
                        all_pools.resize(name, wanted)
                else:
                    moves = all_pools.resize(name, wanted)
                    live = wanted
                    assert set(moves) == {n for n in used if n >= live}
                    for holder in holders:
                        holder.numbers = [moves.get(n, n) for n in holder.numbers]
        held = [n for holder in holders for n in holder.numbers]
        assert all_pools.counts()[name] == (len(set(held)), live, numbers.reserved)
        assert all(numbers.holders(n) == held.count(n) for n in range(numbers.reserved))
        for data, state in tensors:
            assert state.tolist() == [live, 0, 0, 0]
            ends = data.flatten(1)[:, [0, -1]].tolist()
            assert all(ends[n] == [holder.value] * 2 for holder in holders for n in holder.numbers)
            if moves:
                assert all(bool((data[holder.numbers] == holder.value).all()) for holder in holders)
    for holder in holders:
        numbers.release(holder.numbers)
    assert (numbers.used, numbers.free) == (0, live)
    assert sorted(numbers.allocate(live) or []) == list(range(live))


def test_growing_gives_the_same_addresses_and_zeros() -> None:
    all_pools = pools(pages=400)
    data, _ = all_pools.tensors["kv"]
    address = data.data_ptr()
    data.fill_(1.0)
    assert all_pools.resize("pages", 100) == {}
    assert all_pools.resize("pages", 400) == {}
    assert all_pools.tensors["kv"][0].data_ptr() == address
    bytes_per_page = data[0].numel() * 2
    border = -(-100 * bytes_per_page // mmap.PAGESIZE) * mmap.PAGESIZE
    assert bool((data[:100] == 1).all())
    assert not data.view(-1)[border // 2 :].any()


def test_shrinking_gives_memory_back() -> None:
    group = CacheGroup("kv", "token", (1024,), "float32")
    all_pools = Pools({"kv": (group, 1)}, torch.float32, Plan(1024, 1, 256, 256, 1))
    data, _ = all_pools.tensors["kv"]
    before = resident_bytes()
    data.fill_(1.0)
    full = resident_bytes()
    all_pools.resize("pages", 16)
    after = resident_bytes()
    assert full - before > 0.9 * 256 * PAGE_TOKENS * 4096
    assert full - after > 0.9 * 240 * PAGE_TOKENS * 4096


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE


def test_reserving_costs_addresses_not_memory() -> None:
    group = CacheGroup("kv", "token", (4096,), "float32")
    before = resident_bytes()
    plan = Plan(1 << 20, 1, 4, 1 << 14, 1)  # 16 TiB would not pass; 16 GiB is more than this test may touch
    data, state = Pools({"kv": (group, 1)}, torch.float32, plan).tensors["kv"]
    assert data.numel() * 4 == 1 << 34 and int(state[0]) == 4
    assert resident_bytes() - before < 64 << 20


@pytest.mark.parametrize(("name", "live"), [("pages", 0), ("pages", 13), ("states", -1), ("experts", 3)])
def test_impossible_sizes_are_refused_by_name(name: str, live: int) -> None:
    all_pools = pools()
    with pytest.raises(EngineError) as caught:
        all_pools.resize(name, live)
    assert name in str(caught.value)
    assert all_pools.counts() == {"pages": (0, 12, 12), "states": (0, 5, 5)}


def test_faults_are_told_once_by_group() -> None:
    all_pools = pools()
    assert all_pools.take_faults() == {}
    all_pools.tensors["line"][1][1] += 2
    assert all_pools.take_faults() == {"line": 2}
    assert all_pools.take_faults() == {}


def test_giving_back_twice_is_caught() -> None:
    numbers = Numbers("pages", 4, 4)
    taken = numbers.allocate(2) or []
    numbers.release(taken)
    with pytest.raises(AssertionError, match="twice"):
        numbers.release(taken)
    with pytest.raises(AssertionError, match="shared"):
        numbers.hold(taken)
