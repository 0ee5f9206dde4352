"""The slot table's kernels: one program decides for a whole layer, without a word to the host."""

# Triton's own types are not Python's.
# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# state: CLOCK, LIVE, FAULTS, CARRY, HITS, FILLED, ON_CPU, LAYERS as in ftc.ops.slots; kinds 0 nothing, 1 hit, 2 fresh, 3 CPU
LATEST = tl.constexpr(2**31 - 1)


@triton.jit
def _victims(used, live, count, before, G: tl.constexpr, W: tl.constexpr):
    """Rows of the table as a tile, each row's least use: what finds the oldest slot again and again in two small steps."""
    g = tl.arange(0, G)[:, None]
    w = tl.arange(0, W)[None, :]
    at = g * W + w
    tile = tl.load(used + at, mask=at < live, other=LATEST, cache_modifier=".cg")
    return tl.min(tile, axis=1)


@triton.jit
def _oldest(used, live, lows, G: tl.constexpr, W: tl.constexpr):
    """(slot, its row of the tile, that row's uses with the slot taken as in use from now on)."""
    row = tl.argmin(lows, axis=0)
    w = tl.arange(0, W)
    at = row * W + w
    line = tl.load(used + at, mask=at < live, other=LATEST, cache_modifier=".cg")
    column = tl.argmin(line, axis=0)
    return row * W + column, row, tl.where(w == column, LATEST, line)


@triton.jit
def _take(row, slot, owner, place):
    old = tl.load(owner + slot, cache_modifier=".cg")
    if old >= 0:
        if tl.load(place + old, cache_modifier=".cg") == slot:
            tl.store(place + old, -1)
    tl.store(owner + slot, row)


@triton.jit
def _split(costs, WIDTH, missing, carry, Q: tl.constexpr):
    """The integer q of least max(fetch[q], cpu[missing - q]) and the carried fraction, as ftc.ops.slots.split has it."""
    q = tl.arange(0, Q)
    mine = q <= missing
    fetch = tl.load(costs + q, mask=mine, other=LATEST)
    cpu = tl.load(costs + WIDTH + missing - q, mask=mine, other=-1)
    below = tl.sum((mine & (fetch <= cpu)).to(tl.int32), axis=0) - 1
    best = below
    exact = below.to(tl.int64) * 65536
    if below < missing:
        fetch_0 = tl.load(costs + below).to(tl.int64)
        fetch_1 = tl.load(costs + below + 1).to(tl.int64)
        cpu_0 = tl.load(costs + WIDTH + missing - below).to(tl.int64)
        cpu_1 = tl.load(costs + WIDTH + missing - below - 1).to(tl.int64)
        gap = cpu_0 - fetch_0
        exact += gap * 65536 // (gap + fetch_1 - cpu_1)
        if fetch_1 < cpu_0:
            best = below + 1
    carry = (carry + exact - best.to(tl.int64) * 65536).to(tl.int32)
    if (carry >= 65536) & (best < missing):
        best += 1
        carry -= 65536
    elif (carry <= -65536) & (best > 0):
        best -= 1
        carry += 65536
    return best, tl.minimum(tl.maximum(carry, -65536), 65536)


@triton.jit
def _count(state, index: tl.constexpr, more):
    tl.store(state + index, tl.load(state + index) + more)


@triton.jit(do_not_specialize=["routes"])
def _map(
    ids, rows, ordinal, state, owner, used, place, first, plan, costs, slots, kinds, routes, top_k, experts, width,
    CPU: tl.constexpr, P: tl.constexpr, G: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    base = tl.load(ordinal) * experts
    clock = tl.load(state) + 1
    live = tl.load(state + 1)
    carried = tl.load(state + 3)  # barriers lie between this, in all threads, and the store of the next one
    p = tl.arange(0, P)
    e = tl.load(ids + p, mask=p < tl.minimum(tl.load(rows) * top_k, routes), other=-1)
    valid = (e >= 0) & (e < experts)
    row = base + e
    if P <= 64:
        # the first route of each expert, by comparing all with all: no memory, no barrier
        same = (e[:, None] == e[None, :]) & valid[None, :]
        leader = valid & (tl.min(tl.where(same, p[None, :], P), axis=1) == p)
    else:
        tl.store(first + e, P, mask=valid)
        tl.debug_barrier()
        tl.atomic_min(first + e, p, mask=valid)
        tl.debug_barrier()
        leader = valid & (tl.load(first + e, mask=valid, other=-1, cache_modifier=".cg") == p)
    before = tl.load(place + row, mask=valid, other=-1)
    hit = valid & (before >= 0)
    last = tl.load(used + before, mask=hit, other=0)
    tl.debug_barrier()
    tl.store(used + before, tl.maximum(last, clock), mask=hit)
    miss = leader & (before < 0)
    rank = tl.cumsum(miss.to(tl.int32), axis=0) - 1
    missing = tl.sum(miss.to(tl.int32), axis=0)
    found = tl.sum((leader & hit).to(tl.int32), axis=0)
    count = missing
    if CPU:
        count, carry = _split(costs, width, missing, carried, 2 * P)
        tl.store(state + 3, carry)
    tl.debug_barrier()
    filled = 0
    if count > 0:
        lows = _victims(used, live, count, clock, G, W)
        while (filled < count) & (tl.min(lows, axis=0) < clock):
            slot, line, uses = _oldest(used, live, lows, G, W)
            tl.debug_barrier()  # warps that hold copies of a line all read it before the first thread writes into it
            taken = tl.sum(tl.where(miss & (rank == filled), row, 0), axis=0)
            _take(taken, slot, owner, place)
            tl.store(place + taken, slot)
            tl.store(used + slot, clock)
            tl.store(plan + 1 + 2 * filled, taken)
            tl.store(plan + 2 + 2 * filled, slot)
            lows = tl.where(tl.arange(0, G) == line, tl.minimum(tl.min(uses, axis=0), LATEST), lows)
            filled += 1
            tl.debug_barrier()
    tl.store(plan, filled)
    tl.store(state, clock)
    _count(state, 4, found)
    _count(state, 5, filled)
    _count(state, 6, missing - filled)
    _count(state, 7, 1)
    if not CPU:
        _count(state, 2, missing - filled)
    tl.debug_barrier()
    after = tl.load(place + row, mask=valid, other=-1, cache_modifier=".cg")
    tl.store(slots + p, tl.where(valid, after, -1), mask=p < routes)
    kind = tl.where(before >= 0, 1, tl.where(after >= 0, 2, 3))
    tl.store(kinds + p, tl.where(valid, kind, 0), mask=p < routes)


def tile(slots: int) -> tuple[int, int, int]:
    """Rows and columns of the table as a tile that is about square, and the warps that read it."""
    columns = max(32, 1 << ((max(slots, 1) - 1).bit_length() + 1) // 2)
    rows = triton.next_power_of_2(triton.cdiv(slots, columns))
    return rows, columns, 4 if slots <= 2048 else 8 if slots <= 8192 else 32


def slot_map(
    ids: Tensor, rows: Tensor, ordinal: Tensor, experts: int, cpu: bool, state: Tensor, owner: Tensor, used: Tensor,
    place: Tensor, first: Tensor, plan: Tensor, costs: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    slots, kinds = torch.empty_like(ids), torch.empty_like(ids)
    g, w, warps = tile(owner.shape[0])
    _map[(1,)](
        ids, rows, ordinal, state, owner, used, place, first, plan, costs, slots, kinds, ids.numel(), ids.shape[1], experts,
        costs.shape[1], CPU=cpu, P=max(16, triton.next_power_of_2(ids.numel())), G=g, W=w, num_warps=warps,
    )  # fmt: skip
    return slots, kinds


@triton.jit
def _layer(
    ordinal, state, owner, used, place, chosen, experts, keep,
    E: tl.constexpr, G: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    base = tl.load(ordinal) * experts
    clock = tl.load(state) + 1
    live = tl.load(state + 1)
    # what is pinned but no longer wanted becomes recently used, or free where it never arrived
    for s in range(0, live, W):
        at = s + tl.arange(0, W)
        pinned = (tl.load(used + at, mask=at < live, other=0) == LATEST) & (at < live)
        own = tl.load(owner + at, mask=pinned, other=-1)
        counts = pinned & (own >= 0)
        counts = counts & (tl.load(place + own, mask=counts, other=-1) == at)
        lost = pinned & ~counts
        tl.store(owner + at, -1, mask=lost)
        other = counts & ((own < base - keep * experts) | (own >= base + experts))
        tl.store(used + at, tl.where(lost, 0, clock), mask=lost | other)
    tl.debug_barrier()
    e = tl.arange(0, E)
    mine = e < experts
    slot = tl.load(place + base + e, mask=mine, other=-1)
    tl.store(used + slot, LATEST, mask=slot >= 0)
    missing = mine & (slot < 0)
    rank = tl.cumsum(missing.to(tl.int32), axis=0) - 1
    count = tl.sum(missing.to(tl.int32), axis=0)
    tl.debug_barrier()
    filled = 0
    lows = _victims(used, live, count, LATEST, G, W)
    while (filled < count) & (tl.min(lows, axis=0) < LATEST):
        victim, line, uses = _oldest(used, live, lows, G, W)
        tl.debug_barrier()  # as in _map
        row = base + tl.sum(tl.where(missing & (rank == filled), e, 0), axis=0)
        _take(row, victim, owner, place)
        tl.store(used + victim, LATEST)
        tl.store(chosen + 1 + 2 * filled, row)
        tl.store(chosen + 2 + 2 * filled, victim)
        lows = tl.where(tl.arange(0, G) == line, tl.min(uses, axis=0), lows)
        filled += 1
        tl.debug_barrier()
    tl.store(chosen, filled)
    tl.store(state, clock)
    _count(state, 2, count - filled)


def layer_map(
    ordinal: Tensor, experts: int, keep: int, state: Tensor, owner: Tensor, used: Tensor, place: Tensor, chosen: Tensor
) -> None:
    g, w, warps = tile(owner.shape[0])
    _layer[(1,)](
        ordinal, state, owner, used, place, chosen, experts, keep, E=triton.next_power_of_2(experts), G=g, W=w, num_warps=warps
    )


@triton.jit
def _ready(owner, used, place, chosen, E: tl.constexpr):
    count = tl.load(chosen)
    i = tl.arange(0, E)
    row = tl.load(chosen + 1 + 2 * i, mask=i < count, other=0)
    slot = tl.load(chosen + 2 + 2 * i, mask=i < count, other=0)
    mine = (i < count) & (tl.load(owner + slot, mask=i < count, other=-1) == row)
    twin = tl.load(place + row, mask=mine, other=-1)
    double = mine & (twin >= 0) & (twin != slot)
    tl.store(owner + twin, -1, mask=double)
    tl.store(used + twin, 0, mask=double)
    tl.store(place + row, slot, mask=mine)
    tl.debug_barrier()
    tl.store(chosen, 0)


def layer_ready(state: Tensor, owner: Tensor, used: Tensor, place: Tensor, chosen: Tensor) -> None:
    _ready[(1,)](owner, used, place, chosen, E=triton.next_power_of_2(chosen.shape[0] // 2), num_warps=4)


@triton.jit
def _release(state, used, slots, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    pinned = tl.load(used + at, mask=at < slots, other=0) == LATEST
    tl.store(used + at, tl.load(state), mask=pinned & (at < slots))


def layer_release(state: Tensor, owner: Tensor, used: Tensor, place: Tensor) -> None:
    _release[(triton.cdiv(used.shape[0], 1024),)](state, used, used.shape[0], BLOCK=1024, num_warps=4)
