"""How missing experts are shared between link and CPU: cost tables from measured times, kept up to date while serving."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ftc.ops.slots import MOST_ROUTES

UNIT_S = 1e-7  # one unit of cost; a table entry of 2**31 units would be 214 s
_MOST = 2**30


class Costs:
    """Time of fetching, and of computing on the CPU, 0 .. MOST_ROUTES experts of one layer, while both do."""

    def __init__(self, fetch: Sequence[float], cpu: Sequence[float]) -> None:
        """Seconds; index 0 is no time at all. Both are made to never fall."""
        self.fetch, self.cpu = _table(fetch), _table(cpu)

    @classmethod
    def linear(cls, fetch: tuple[float, float], cpu: tuple[float, float]) -> Costs:
        """From (fixed, per expert) seconds of each side."""
        counts = range(1, MOST_ROUTES + 1)
        return cls(
            [0.0, *(fetch[0] + n * fetch[1] for n in counts)],
            [0.0, *(cpu[0] + n * cpu[1] for n in counts)],
        )

    @classmethod
    def share(cls, fetched: float) -> Costs:
        """Tables whose optimum is to fetch this share (0 to 1) of the misses."""
        return cls.linear((0.0, (1 - fetched) * 1e-4), (0.0, fetched * 1e-4))

    def tensor(self) -> Tensor:
        """int32 [2, MOST_ROUTES + 1], as slot_map reads them."""
        return torch.tensor([self.fetch, self.cpu], dtype=torch.int32)


class Follower:
    """Feeds measured times of single layers into tables: each side is fixed cost + per expert, by recursive least squares.

    Old measurements fade with `memory` (weight of what is one measurement older), so a change of 2x is followed within
    about 1 / (1 - memory) layers: at 40 layers and 20 tokens a second well under a second.
    """

    def __init__(self, fetch: tuple[float, float], cpu: tuple[float, float], memory: float = 0.98) -> None:
        self._sides = {"fetch": _Line(*fetch, memory), "cpu": _Line(*cpu, memory)}

    def add(self, side: str, experts: int, seconds: float) -> None:
        """One layer in which `side` ("fetch" or "cpu") took `seconds` for so many experts."""
        if experts > 0:
            self._sides[side].add(experts, seconds)

    def costs(self) -> Costs:
        return Costs.linear(self._sides["fetch"].line(), self._sides["cpu"].line())


class _Line:
    def __init__(self, fixed: float, slope: float, memory: float) -> None:
        self._memory = memory
        # the start value counts as two measurements, at 1 and at 4 experts
        self._sums = [0.0] * 5
        for n in (1, 4):
            self._add(n, fixed + n * slope)

    def add(self, n: int, seconds: float) -> None:
        self._sums = [s * self._memory for s in self._sums]
        self._add(n, seconds)

    def _add(self, n: int, y: float) -> None:
        for i, more in enumerate((1.0, n, n * n, y, n * y)):
            self._sums[i] += more

    def line(self) -> tuple[float, float]:
        w, x, xx, y, xy = self._sums
        spread = w * xx - x * x
        slope = (w * xy - x * y) / spread if spread > 1e-6 * w * xx else y / x
        slope = min(max(slope, 0.0), y / x)
        return (y - slope * x) / w, slope


def _table(seconds: Sequence[float]) -> list[int]:
    table = [min(_MOST, round(s / UNIT_S)) for s in seconds]
    table[0] = 0
    for i in range(1, len(table)):
        table[i] = max(table[i], table[i - 1])
    table += [table[-1]] * (MOST_ROUTES + 1 - len(table))
    return table[: MOST_ROUTES + 1]
