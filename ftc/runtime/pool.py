"""The memory of one cache group: reserved once as addresses, backed by real memory only as far as it is live and used."""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

from ftc.errors import TargetError
from ftc.spec.cache import CacheGroup

# In Python's mmap module only from 3.13 on; the value is the same on every Linux architecture that torch runs on.
_MAP_NORESERVE = 0x4000


class Pool:
    """`data` is [entries, layers, page_tokens, elements] for a group per token, [entries, layers, *shape] per sequence.

    Its shape is the reserved one and never changes. `state` is int32 [4]: state[0] is how many entries are live, state[1] is
    what kernels count up when a table names an entry that is not. Entries start as zeros, and are zeros again after they
    were released.
    """

    def __init__(self, group: CacheGroup, layers: int, entries: int, live: int, page_tokens: int, dtype: torch.dtype) -> None:
        self.group, self.entries = group, entries
        kept = torch.float32 if group.dtype == "float32" else dtype
        inner = (page_tokens, group.elements) if group.per == "token" else group.shape
        shape = (entries, layers, *inner)
        self.entry_bytes = entry_bytes(group, layers, page_tokens, dtype)
        self._memory = _reserve(group.name, entries * self.entry_bytes)
        self.data: Tensor = torch.frombuffer(self._memory, dtype=kept, count=entries * (self.entry_bytes // kept.itemsize))
        self.data = self.data.view(shape)
        self.state = torch.tensor([live, 0, 0, 0], dtype=torch.int32)
        self._state = self.state.numpy()

    def set_live(self, live: int) -> None:
        """Makes the first `live` entries usable; the memory of the others goes back to the system."""
        before = int(self._state[0])
        self._state[0] = live
        if live < before:
            # Whole pages of the system only: the one that holds the border stays.
            start = -(-live * self.entry_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
            if start < before * self.entry_bytes:
                self._memory.madvise(mmap.MADV_DONTNEED, start, before * self.entry_bytes - start)

    def move(self, moves: dict[int, int]) -> None:
        """Copies entries, old -> new number; no new number is an old one."""
        if moves:
            self.data[list(moves.values())] = self.data[list(moves)]

    def take_faults(self) -> int:
        """How many rows named a wrong entry since the last call."""
        faults = int(self._state[1])
        if faults:
            self._state[1] = 0
        return faults


def entry_bytes(group: CacheGroup, layers: int, page_tokens: int, dtype: torch.dtype) -> int:
    """Bytes of one page (group per token) or slot (per sequence) over all `layers`."""
    kept = torch.float32 if group.dtype == "float32" else dtype
    return layers * (page_tokens if group.per == "token" else 1) * group.elements * kept.itemsize


def _reserve(name: str, size: int) -> mmap.mmap:
    try:
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    except (OSError, OverflowError) as error:
        raise TargetError(
            f"cannot reserve {size / 2**30:.1f} GiB of addresses: {error}",
            where=f"cache group {name}",
            hint="use a smaller --context or --max-running, or allow overcommit (sysctl vm.overcommit_memory=0).",
        ) from error
