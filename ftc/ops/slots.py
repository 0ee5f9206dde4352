"""The table of expert slots on the GPU: which slot a route reads, which experts are fetched and which the CPU computes."""

from __future__ import annotations

import torch
from torch import Tensor

from ftc.ops.op import Op

# contract of the tensors, all int32 on the device; R bank rows (ordinal * experts + expert), S slots reserved:
# state [16]: see the indices below; the declared mutation that orders every op which touches slots or mailboxes. ASKED is the
# number of the last question to the CPU, LATE that of the first one given up, 0 none.
# owner [S]: bank row in a slot, -1 none. used [S]: clock of its last use, 0 never, PINNED while a prefill needs it.
# place [R]: slot that holds a bank row, -1 none. Several slots may own a row that decode and prefill fetched at once;
# `place` names the one that counts.
# first [experts]: scratch. plan, chosen [1 + 2 n]: a copy list, count then (bank row, slot) pairs.
# costs [2, n]: microseconds / 16 or any one unit: [0, q] to copy q experts, [1, c] to compute c on the CPU; both
# begin with 0 and never fall.
CLOCK, LIVE, FAULTS, CARRY, HITS, FILLED, ON_CPU, LAYERS, ASKED, LATE = range(10)
STATE_ELEMENTS = 16
PINNED = 2**31 - 1
ONE = 1 << 16  # the carried fraction of an expert is in units of 1 / ONE

# where a (token, k) row comes from
NOTHING, HIT, FRESH, CPU = range(4)

MOST_ROUTES = 512  # rows * top_k of one slot_map


def split(fetch: list[int], cpu: list[int], missing: int, carry: int) -> tuple[int, int]:
    """How many of `missing` experts to fetch, and the fraction carried on (16.16).

    `fetch[q]` and `cpu[c]` are costs. The integer q of least max(fetch[q], cpu[missing - q]); what the interpolated
    crossing has more or less than that is carried, and moves q by one when it adds up to a whole expert.
    """
    below = max(q for q in range(missing + 1) if fetch[q] <= cpu[missing - q])
    best, exact = below, below * ONE
    if below < missing:
        gap, over = cpu[missing - below] - fetch[below], fetch[below + 1] - cpu[missing - below - 1]
        exact += gap * ONE // (gap + over)
        if fetch[below + 1] < cpu[missing - below]:
            best = below + 1
    carry += exact - best * ONE
    if carry >= ONE and best < missing:
        best, carry = best + 1, carry - ONE
    elif carry <= -ONE and best > 0:
        best, carry = best - 1, carry + ONE
    return best, max(-ONE, min(ONE, carry))


def oldest(used: Tensor, live: int, before: int) -> list[int]:
    """Slots whose last use is before a clock, least recently used first, ties to the lower slot."""
    order = used[:live].sort(stable=True)
    return order.indices[: int((order.values < before).sum())].tolist()


def _take(row: int, slot: int, owner: Tensor, place: Tensor) -> None:
    """Gives a slot to a bank row; its old owner is no longer resident."""
    old = int(owner[slot])
    if old >= 0 and int(place[old]) == slot:
        place[old] = -1
    owner[slot] = row


def _write_list(plan: Tensor, pairs: list[tuple[int, int]]) -> None:
    plan[0] = len(pairs)
    if pairs:
        plan[1 : 1 + 2 * len(pairs)] = torch.tensor(pairs, dtype=torch.int32, device=plan.device).flatten()


def read_list(plan: Tensor) -> list[tuple[int, int]]:
    """The (bank row, slot) pairs of a copy list."""
    count = int(plan[0])
    pairs = plan[1 : 1 + 2 * count].view(count, 2).tolist()
    return [(row, slot) for row, slot in pairs]


def _map_reference(
    ids: Tensor,
    rows: Tensor,
    ordinal: Tensor,
    experts: int,
    cpu: bool,
    state: Tensor,
    owner: Tensor,
    used: Tensor,
    place: Tensor,
    first: Tensor,
    plan: Tensor,
    costs: Tensor,
) -> tuple[Tensor, Tensor]:
    base, clock = int(ordinal) * experts, int(state[CLOCK]) + 1
    routes = ids[: int(rows)].tolist()
    wanted = dict.fromkeys(e for row in routes for e in row if 0 <= e < experts)
    before = {e: int(place[base + e]) for e in wanted}
    misses = [e for e in wanted if before[e] < 0]
    for slot in before.values():
        if slot >= 0:
            used[slot] = max(int(used[slot]), clock)
    free, carry = oldest(used, int(state[LIVE]), clock), int(state[CARRY])
    count = len(misses)
    if cpu:
        count, carry = split(costs[0].tolist(), costs[1].tolist(), len(misses), carry)
    pairs = []
    for e, slot in zip(misses[:count], free, strict=False):
        _take(base + e, slot, owner, place)
        place[base + e], used[slot] = slot, clock
        pairs.append((base + e, slot))
    _write_list(plan, pairs)
    left = len(misses) - len(pairs)
    state[CLOCK], state[CARRY] = clock, carry
    for index, more in ((HITS, len(wanted) - len(misses)), (FILLED, len(pairs)), (ON_CPU, left), (LAYERS, 1)):
        state[index] += more
    if left and not cpu:
        state[FAULTS] += left
    slots, kinds = torch.full_like(ids, -1), torch.zeros_like(ids)
    for t, row in enumerate(routes):
        for k, e in enumerate(row):
            if 0 <= e < experts:
                slots[t, k] = place[base + e]
                kinds[t, k] = HIT if before[e] >= 0 else FRESH if int(place[base + e]) >= 0 else CPU
    return slots, kinds


def _map_fake(ids: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return torch.empty_like(ids), torch.empty_like(ids)


_TABLE = "Tensor(a!) state, Tensor owner, Tensor used, Tensor place"

# contract: ids [N, K] int32 of which rows[0] rows live -> slots [N, K] int32 (-1: none) and kinds [N, K] int32, one of
# NOTHING, HIT, FRESH, CPU. Each expert is looked up once; misses are fetched in order of first appearance into the least
# recently used slots that this call does not need, and the rest is for the CPU. `cpu` False fetches all misses; those that
# find no slot are faults.
slot_map = Op(
    "slot_map",
    f"(Tensor ids, Tensor rows, Tensor ordinal, int experts, bool cpu, {_TABLE}, Tensor first, Tensor plan,"
    " Tensor costs) -> (Tensor, Tensor)",
    _map_reference,
    _map_fake,
)


def _layer_map_reference(
    ordinal: Tensor, experts: int, keep: int, state: Tensor, owner: Tensor, used: Tensor, place: Tensor, chosen: Tensor
) -> None:
    base, clock, live = int(ordinal) * experts, int(state[CLOCK]) + 1, int(state[LIVE])
    state[CLOCK] = clock
    for slot in (used[:live] == PINNED).nonzero().flatten().tolist():
        row = int(owner[slot])
        if row >= 0 and int(place[row]) == slot:
            if not base - keep * experts <= row < base + experts:
                used[slot] = clock
        else:  # chosen by a prefill that was given up
            owner[slot], used[slot] = -1, 0
    missing = []
    for row in range(base, base + experts):
        slot = int(place[row])
        if slot >= 0:
            used[slot] = PINNED
        else:
            missing.append(row)
    free = oldest(used, live, PINNED)
    pairs = list(zip(missing, free, strict=False))
    for row, slot in pairs:
        _take(row, slot, owner, place)
        used[slot] = PINNED
    state[FAULTS] += len(missing) - len(pairs)
    _write_list(chosen, pairs)


# contract: picks slots for the experts of a whole layer that are not resident, writes their copy list and pins all of the
# layer; unpins layers but this one and the `keep` before it. They are not resident before layer_ready.
layer_map = Op(
    "layer_map",
    f"(Tensor ordinal, int experts, int keep, {_TABLE}, Tensor chosen) -> ()",
    _layer_map_reference,
    lambda *_: None,
)


def _layer_ready_reference(state: Tensor, owner: Tensor, used: Tensor, place: Tensor, chosen: Tensor) -> None:
    for row, slot in read_list(chosen):
        if int(owner[slot]) != row:
            continue
        twin = int(place[row])
        if twin >= 0 and twin != slot:
            owner[twin], used[twin] = -1, 0
        place[row] = slot
    chosen[0] = 0


# contract: the copies of layer_map's list have arrived: its rows are resident from here on.
layer_ready = Op(
    "layer_ready",
    f"({_TABLE}, Tensor chosen) -> ()",
    _layer_ready_reference,
    lambda *_: None,
)


def _release_reference(state: Tensor, owner: Tensor, used: Tensor, place: Tensor) -> None:
    used.masked_fill_(used == PINNED, int(state[CLOCK]))


# contract: nothing is pinned any more; what was is recently used.
layer_release = Op("layer_release", f"({_TABLE}) -> ()", _release_reference, lambda *_: None)
