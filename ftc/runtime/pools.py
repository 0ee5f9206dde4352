"""Who holds which page and which slot: one numbering of pages and one of slots over the memory of all cache groups."""

from __future__ import annotations

import heapq

import torch
from torch import Tensor

from ftc.errors import EngineError
from ftc.runtime.plan import PAGE_TOKENS, Plan
from ftc.runtime.pool import Pool
from ftc.spec.cache import CacheGroup


class Numbers:
    """Hands out numbers below `live`, the lowest free one first, and counts how many hold each.

    Low numbers first keep what is in use together, so that memory is touched late and a shrink moves little.
    """

    def __init__(self, name: str, reserved: int, live: int) -> None:
        self.name, self.reserved, self.live = name, reserved, live
        self._holders = [0] * reserved
        self._free = list(range(live))

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return self.live - len(self._free)

    def allocate(self, count: int) -> list[int] | None:
        """`count` numbers, each held once, or None when fewer are free."""
        if count > len(self._free):
            return None
        taken = [heapq.heappop(self._free) for _ in range(count)]
        for number in taken:
            self._holders[number] = 1
        return taken

    def hold(self, numbers: list[int]) -> None:
        """One more holder of each; they must be held already."""
        for number in numbers:
            assert self._holders[number] > 0, f"{self.name}: {number} is free and cannot be shared"
            self._holders[number] += 1

    def release(self, numbers: list[int]) -> None:
        """One holder less of each; what nobody holds is free again."""
        for number in numbers:
            assert self._holders[number] > 0, f"{self.name}: {number} was given back twice"
            self._holders[number] -= 1
            if self._holders[number] == 0:
                heapq.heappush(self._free, number)

    def holders(self, number: int) -> int:
        return self._holders[number]

    def resize(self, live: int) -> dict[int, int]:
        """Changes how many exist; numbers in use above the new end move: {old: new}. Raises EngineError when it cannot be."""
        if not 1 <= live <= self.reserved:
            raise EngineError(f"must be from 1 to {self.reserved}, the number reserved", where=self.name, value=live)
        if live < self.used:
            raise EngineError(f"{self.used} are in use", where=self.name, value=live, hint="ask again when less runs.")
        moves: dict[int, int] = {}
        if live >= self.live:
            self._free += range(self.live, live)  # all greater than what is there: still a heap
        else:
            kept = [number for number in self._free if number < live]
            heapq.heapify(kept)
            for old in range(live, self.live):
                if self._holders[old]:
                    new = moves[old] = heapq.heappop(kept)
                    self._holders[new], self._holders[old] = self._holders[old], 0
            self._free = kept
        self.live = live
        return moves


class Pools:
    """All cache groups of a model: `pages` numbers those per token, `slots` those per sequence.

    A page number names the same page in every group per token, a slot number the same slot in every group per sequence.
    """

    def __init__(self, groups: dict[str, tuple[CacheGroup, int]], dtype: torch.dtype, plan: Plan) -> None:
        self.pages = Numbers("pages", plan.pages_reserved, plan.pages)
        self.slots = Numbers("states", plan.slots, plan.slots)
        self._pools = {
            name: Pool(group, layers, numbers.reserved, numbers.live, PAGE_TOKENS, dtype)
            for name, (group, layers) in groups.items()
            for numbers in (self.pages if group.per == "token" else self.slots,)
        }

    @property
    def tensors(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Group name -> (data, state), as programs take them."""
        return {name: (pool.data, pool.state) for name, pool in self._pools.items()}

    def resize(self, name: str, live: int) -> dict[int, int]:
        """Sets the live count of "pages" or "states" (slots) and moves what must move, in memory too: {old number: new number}.

        Whoever keeps these numbers must follow before the next step. Raises EngineError for a name or count that cannot be.
        """
        per = {"pages": "token", "states": "sequence"}.get(name)
        if per is None:
            raise EngineError("no such pool", where="resize", value=name, hint="the pools are 'pages' and 'states'.")
        moves = (self.pages if per == "token" else self.slots).resize(live)
        for pool in self._pools.values():
            if pool.group.per == per:
                pool.move(moves)
                pool.set_live(live)
        return moves

    def take_faults(self) -> dict[str, int]:
        """Group name -> rows that named a wrong page or slot since the last call; empty when all is well."""
        return {name: faults for name, pool in self._pools.items() if (faults := pool.take_faults())}

    def counts(self) -> dict[str, tuple[int, int, int]]:
        """Name -> (used, live, reserved)."""
        return {n.name: (n.used, n.live, n.reserved) for n in (self.pages, self.slots)}
