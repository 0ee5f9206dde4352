"""How stored bytes get into a tensor: straight where the layouts agree, else through a small buffer of each thread."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType

import torch

from ftc.errors import CheckpointError
from ftc.weights.checkpoint import Checkpoint
from ftc.weights.pieces import Piece, Pieces, View

STORED = {
    "BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "I32": torch.int32, "I64": torch.int64,
}  # fmt: skip

# The buffer of one thread: large enough that a disk streams, small enough that eight of them do not matter.
SCRATCH_BYTES = 16 << 20

# A gap is read and thrown away where the parts between gaps are shorter than this: one read costs about as much.
SKIM_BYTES = 64 << 10


class Reader:
    """Open files of one checkpoint. `fill` may be called from several threads."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._files: dict[str, int] = {}
        self._lock = threading.Lock()
        self._own = threading.local()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    def fill(self, pieces: Pieces, out: torch.Tensor) -> None:
        """Writes all pieces into `out` (of the same shape, any strides), converted to its dtype."""
        for piece in pieces.items:
            self.fill_piece(piece, _box(out, piece))

    def fill_piece(self, piece: Piece, out: torch.Tensor) -> None:
        """Writes one piece into `out`, the box that it fills."""
        if not piece.view.elements:
            return
        if isinstance(piece.leaf, Pieces):
            made = self._made(piece.leaf, out.dtype)
            out.copy_(torch.as_strided(made, piece.view.shape, piece.view.strides, piece.view.offset))
            return
        # In the order of the file, so that a transposed view is one run of bytes too.
        order = sorted(range(len(piece.view.shape)), key=lambda k: -piece.view.strides[k])
        self._fill(piece.leaf, piece.view.permuted(order), out.permute(order))

    def _fill(self, name: str, view: View, out: torch.Tensor) -> None:
        tensor = self._checkpoint.tensors[name]
        dtype = STORED[tensor.dtype]
        span = view.span
        dense = span == view.elements
        begin = tensor.begin + view.offset * dtype.itemsize
        if dense and out.dtype == dtype and out.is_contiguous():
            self._read(tensor.file, begin, torch.as_strided(out, (span,), (1,), out.storage_offset()))
            return
        if view.shape:
            row = View(view.shape[1:], view.strides[1:], view.offset)
            skip = not dense and span > 2 * view.elements and row.span * dtype.itemsize >= SKIM_BYTES
            if skip or span * dtype.itemsize > SCRATCH_BYTES:
                many = 1 if skip else max(1, SCRATCH_BYTES // (view.strides[0] * dtype.itemsize))
                for k in range(0, view.shape[0], many):
                    count = min(many, view.shape[0] - k)
                    part = view.sliced(0, k, count)
                    if count == 1:
                        self._fill(name, View(part.shape[1:], part.strides[1:], part.offset), out[k])
                    else:
                        self._fill(name, part, out.narrow(0, k, count))
                return
        scratch = self._scratch(span, dtype)
        self._read(tensor.file, begin, scratch)
        out.copy_(torch.as_strided(scratch, view.shape, view.strides, scratch.storage_offset()))

    def _made(self, leaf: Pieces, dtype: torch.dtype) -> torch.Tensor:
        """The leaf's own result; the last one is kept, since the experts of a stack ask for the same one in turn."""
        kept: tuple[Pieces, torch.Tensor] | None = getattr(self._own, "made", None)
        if kept is not None and kept[0] is leaf and kept[1].dtype == dtype:
            return kept[1]
        made = torch.empty(leaf.shape, dtype=dtype)
        self.fill(leaf, made)
        self._own.made = (leaf, made)
        return made

    def _scratch(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        if not hasattr(self._own, "buffer"):
            self._own.buffer = torch.empty(SCRATCH_BYTES, dtype=torch.uint8)
        if elements * dtype.itemsize > SCRATCH_BYTES:
            return torch.empty(elements, dtype=dtype)
        return self._own.buffer[: elements * dtype.itemsize].view(dtype)

    def _read(self, file: str, begin: int, out: torch.Tensor) -> None:
        """Fills the contiguous one-dimensional `out` from byte `begin` on."""
        descriptor = self._open(file)
        rest = memoryview(out.view(torch.uint8).numpy())
        while rest:
            count = os.preadv(descriptor, [rest[: 1 << 30]], begin)
            if count == 0:
                raise CheckpointError(
                    f"the file became shorter while it was read: no byte at {begin}", where=str(self._path(file))
                )
            rest, begin = rest[count:], begin + count

    def _open(self, file: str) -> int:
        with self._lock:
            if file not in self._files:
                path = self._path(file)
                try:
                    self._files[file] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                except OSError as e:
                    raise CheckpointError(f"the file cannot be read: {e.strerror}", where=str(path)) from None
            return self._files[file]

    def _path(self, file: str) -> Path:
        return self._checkpoint.folder / file


def _box(out: torch.Tensor, piece: Piece) -> torch.Tensor:
    for dim, (at, size) in enumerate(zip(piece.at, piece.view.shape, strict=True)):
        if at or size != out.shape[dim]:
            out = out.narrow(dim, at, size)
    return out
