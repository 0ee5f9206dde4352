"""Copies of expert records by a few multiprocessors, which read a list on the device and pinned host memory directly."""

# Triton's own types are not Python's.
# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ftc.ops.cuda.streams import on

# 16 programs of 512 threads reach 95-97 % of the copy engine's rate for records of 1.5 MiB and more on a PCIe gen 5 x16
# link, and leave the other multiprocessors to the hits and the shared expert.
PROGRAMS, WARPS, BLOCK = 16, 16, 4096


@triton.jit
def _fill(plan, bank, records, words, bank_stride, slot_stride, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    pieces = tl.cdiv(words, BLOCK)
    for piece in range(tl.program_id(0), tl.load(plan) * pieces, tl.num_programs(0)):
        i = piece // pieces
        at = (piece % pieces) * BLOCK + tl.arange(0, BLOCK)
        row = tl.load(plan + 1 + 2 * i).to(tl.int64)
        slot = tl.load(plan + 2 + 2 * i).to(tl.int64)
        if EVEN:  # without a mask the loads are 16 bytes wide
            tl.store(records + slot * slot_stride + at, tl.load(bank + row * bank_stride + at))
        else:
            inside = at < words
            tl.store(records + slot * slot_stride + at, tl.load(bank + row * bank_stride + at, mask=inside), mask=inside)


def slot_fill(state: Tensor, plan: Tensor, bank: Tensor, records: Tensor, stream: str) -> None:
    from_, to = _words(bank), _words(records)
    words = to.shape[1]
    with on(stream):
        _fill[(PROGRAMS,)](
            plan, from_, to, words, from_.stride(0), to.stride(0), BLOCK=BLOCK, EVEN=words % BLOCK == 0, num_warps=WARPS
        )


def _words(rows: Tensor) -> Tensor:
    """The same rows in the widest integers that fit their length and stride."""
    size = rows.element_size()
    for dtype in (torch.int64, torch.int32):
        if all(n * size % dtype.itemsize == 0 for n in (rows.shape[1], rows.stride(0), rows.storage_offset())):
            return rows.view(dtype)
    return rows.view(torch.int16)
