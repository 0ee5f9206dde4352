"""Who has to leave the expert cache: the interface of a policy, and the host's own model of least recently used."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol


class Policy(Protocol):
    """Decides over slots 0 .. n - 1 of which some are empty. A replayer and the device's table follow the same calls."""

    name: str

    def touch(self, keys: Sequence[int]) -> None:
        """These keys, all resident, are used now."""

    def admit(self, keys: Sequence[int]) -> dict[int, int]:
        """Takes keys in, as many as find room beside what this step has touched: key -> slot."""

    def holds(self, key: int) -> bool:
        """Whether a key is resident."""


class LRU:
    """Least recently used leaves first; of those last used in the same step, the lowest slot."""

    name = "lru"

    def __init__(self, slots: int) -> None:
        self._empty = list(range(slots))
        self._slot: dict[int, int] = {}
        self._steps: OrderedDict[int, set[int]] = OrderedDict()  # step -> slots last used in it
        self._last: dict[int, int] = {}  # slot -> step
        self._key: dict[int, int] = {}  # slot -> key
        self._step = 0

    def holds(self, key: int) -> bool:
        return key in self._slot

    def slot(self, key: int) -> int:
        return self._slot[key]

    def touch(self, keys: Sequence[int]) -> None:
        self._step += 1
        self._steps[self._step] = set()
        for key in keys:
            self._use(self._slot[key])

    def admit(self, keys: Sequence[int]) -> dict[int, int]:
        given = {}
        for key in keys:
            slot = self._free()
            if slot is None:
                break
            if slot in self._key:
                del self._slot[self._key[slot]]
            self._key[slot], self._slot[key] = key, slot
            self._use(slot)
            given[key] = slot
        return given

    def _free(self) -> int | None:
        if self._empty:
            return self._empty.pop(0)
        for step, slots in self._steps.items():
            if step == self._step:
                break
            if slots:
                return min(slots)
        return None

    def _use(self, slot: int) -> None:
        before = self._last.get(slot)
        if before is not None:
            self._steps[before].discard(slot)
            if not self._steps[before] and before != self._step:
                del self._steps[before]
        self._last[slot] = self._step
        self._steps[self._step].add(slot)
