"""Where large tensors live: anonymous memory on huge pages, which streaming reads use up to twice as fast as small ones."""

from __future__ import annotations

import math
import mmap

import torch
from torch import Tensor

from ftc.errors import TargetError

HUGE_BYTES = 2 << 20


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An uninitialised contiguous tensor, 64-byte aligned; `mapped` from HUGE_BYTES on."""
    count = math.prod(shape) * dtype.itemsize
    return torch.empty(shape, dtype=dtype) if count < HUGE_BYTES else mapped(count).view(dtype).view(shape)


def mapped(count: int) -> Tensor:
    """`count` bytes (uint8) of anonymous memory, aligned to huge pages and on them where the kernel has any.

    Raises TargetError where there is no such memory.
    """
    try:
        memory = mmap.mmap(-1, count + HUGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as e:
        raise TargetError(f"no memory for weights: {e.strerror}", value=f"{count} bytes") from None
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        pass  # a kernel without huge pages: small ones give the same results
    raw = torch.frombuffer(memory, dtype=torch.uint8)
    skip = -raw.data_ptr() % HUGE_BYTES
    return raw[skip : skip + count]
