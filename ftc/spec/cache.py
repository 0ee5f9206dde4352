"""Cache groups: what a sequence leaves behind in memory, per token or per sequence, and in which type."""

from __future__ import annotations

import math
from typing import Literal

import msgspec


class CacheGroup(msgspec.Struct, frozen=True):
    """One kind of state that a set of layers keeps; a layer names (group, index).

    `per` says how it grows: "token" (pages), or "sequence" (one slot). `shape` is what a layer keeps for each token
    or sequence. "run" is the type the model runs in.
    """

    name: str
    per: Literal["token", "sequence"]
    shape: tuple[int, ...]
    dtype: Literal["run", "float32"] = "run"

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


class CacheUse(msgspec.Struct, frozen=True):
    """A layer's place in a group: its `index` among the layers that share it."""

    group: CacheGroup
    index: int
