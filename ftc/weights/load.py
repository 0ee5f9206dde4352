"""Loads a checkpoint: final buffers first, then several threads that read each value into its place."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path

import msgspec
import psutil
import torch

from ftc import settings
from ftc.errors import CheckpointError, TargetError
from ftc.log import logger
from ftc.spec.load import read_config
from ftc.spec.model import Model
from ftc.spec.parameters import Precision, block_parameters, expert_record, model_parameters
from ftc.spec.show import bytes_text
from ftc.spec.size import measure
from ftc.weights.banks import Bank, empty_bank
from ftc.weights.checkpoint import DTYPE_BITS, Checkpoint, open_checkpoint
from ftc.weights.formats import refuse_format
from ftc.weights.head import settle_head
from ftc.weights.manifest import Entry, Manifest, resolve
from ftc.weights.memory import empty
from ftc.weights.pieces import Piece, Pieces
from ftc.weights.reader import Reader

PHASE = "load weights"

# More readers than this did not help any disk; fewer where the process may use fewer CPUs.
MOST_THREADS = 8

# One job's worth of bytes: small enough to share out, large enough that a job is mostly reading.
JOB_BYTES = 32 << 20

_log = logger("weights")

ProgressSink = Callable[[str, int, int], None]


def _unseen(phase: str, done: int, total: int) -> None:
    """Where nobody watches."""


class Weights(msgspec.Struct, frozen=True):
    """A model's parameters in host memory, each contiguous and 64-byte aligned.

    `model` and each of `blocks` hold paths as spec.parameters gives them, in that order; precision "run" is `dtype`.
    `bank` holds the routed experts, or None.
    """

    model: dict[str, torch.Tensor]
    blocks: list[dict[str, torch.Tensor]]
    bank: Bank | None
    dtype: torch.dtype

    @property
    def size_bytes(self) -> int:
        dense = sum(t.nbytes for part in (self.model, *self.blocks) for t in part.values())
        return dense + (self.bank.size_bytes if self.bank is not None else 0)


class _Job(msgspec.Struct, frozen=True):
    """Some boxes to be written; `file` and `begin` of the first byte give the order of reading."""

    file: str
    begin: int
    size_bytes: int
    parts: list[tuple[Piece, torch.Tensor]]


def load(model: Model, folder: Path, dtype: torch.dtype, progress: ProgressSink = _unseen) -> Weights:
    """Reads the whole checkpoint. Raises Problems where it does not fit the spec, TargetError where memory is short.

    `progress` is called from this thread with (PHASE, bytes done, bytes of all).
    """
    refuse_format(read_config(folder), str(folder / "config.json"))
    checkpoint = open_checkpoint(folder)
    manifest = resolve(model, checkpoint)
    for warning in manifest.warnings:
        _log.warning("%s", warning)
    if settle_head(model, checkpoint) != model:
        raise CheckpointError(
            "the stored head differs from the embedding it is tied to",
            where=str(folder), hint="give load the model that ftc.weights.head.settle_head returns",
        )  # fmt: skip
    _refuse_size(model, dtype)
    _tell_conversions(manifest, checkpoint, dtype)
    made = {
        path: empty(tuple(e.shape), _dtype(e.precision, dtype)) for path, e in manifest.entries.items() if not e.routed
    }
    jobs = [j for path, out in made.items() for j in _dense_jobs(manifest.entries[path], out, checkpoint)]
    bank = empty_bank(model, dtype)
    if bank is not None:
        jobs += _bank_jobs(model, manifest, bank, checkpoint)
    _run(jobs, checkpoint, progress)
    own = {p.path: made[p.path] for p in model_parameters(model)}
    blocks = [
        {p.path: made[f"blocks.{i}.{p.path}"] for p in block_parameters(model, block)} for i, block in enumerate(model.blocks)
    ]
    return Weights(own, blocks, bank, dtype)


def _dtype(precision: Precision, dtype: torch.dtype) -> torch.dtype:
    return dtype if precision == "run" else getattr(torch, precision)


def _run(jobs: list[_Job], checkpoint: Checkpoint, progress: ProgressSink) -> None:
    jobs.sort(key=lambda j: (j.file, j.begin))
    total, done = sum(j.size_bytes for j in jobs), 0
    progress(PHASE, 0, total)
    with Reader(checkpoint) as reader, ThreadPoolExecutor(min(settings.threads(), MOST_THREADS), "ftc-read") as pool:

        def work(job: _Job) -> int:
            for piece, out in job.parts:
                reader.fill_piece(piece, out)
            return job.size_bytes

        futures: list[Future[int]] = [pool.submit(work, job) for job in jobs]
        try:
            for future in as_completed(futures):
                done += future.result()
                progress(PHASE, done, total)
        except BaseException:
            for future in futures:
                future.cancel()
            raise


def _job(checkpoint: Checkpoint, parts: list[tuple[Piece, torch.Tensor]]) -> _Job:
    leaf = parts[0][0].leaf
    while isinstance(leaf, Pieces):
        leaf = leaf.items[0].leaf
    first = checkpoint.tensors[leaf]
    begin = first.begin + parts[0][0].view.offset * DTYPE_BITS[first.dtype] // 8
    return _Job(first.file, begin, sum(out.nbytes for _, out in parts), parts)


def _dense_jobs(entry: Entry, out: torch.Tensor, checkpoint: Checkpoint) -> list[_Job]:
    jobs = []
    for piece in entry.pieces.items:
        box = out[tuple(slice(a, a + n) for a, n in zip(piece.at, piece.view.shape, strict=True))]
        rows = box.shape[0] if box.dim() else 1
        many = max(1, JOB_BYTES * rows // max(box.nbytes, 1))
        if many >= rows or isinstance(piece.leaf, Pieces):
            jobs.append(_job(checkpoint, [(piece, box)]))
            continue
        for k in range(0, rows, many):
            count = min(many, rows - k)
            part = Piece(piece.leaf, piece.view.sliced(0, k, count), piece.at)
            jobs.append(_job(checkpoint, [(part, box.narrow(0, k, count))]))
    return jobs


def _bank_jobs(model: Model, manifest: Manifest, bank: Bank, checkpoint: Checkpoint) -> list[_Job]:
    """Jobs of some experts of one layer each, so that a record is written as a whole."""
    views = bank.views()
    many = max(1, JOB_BYTES // bank.record_bytes)
    jobs = []
    for ordinal, (i, branch) in enumerate(model.moe_branches):
        path = expert_record(model, branch).path
        own = {m: _by_expert(manifest.entries[f"blocks.{i}.{path}.{m}"].pieces) for m in bank.matrices}
        for start in range(0, bank.experts, many):
            parts = [
                (piece, _placed(views[m][ordinal * bank.experts + e], piece))
                for e in range(start, min(start + many, bank.experts))
                for m in bank.matrices
                for piece in own[m][e]
            ]
            jobs.append(_job(checkpoint, parts))
    return jobs


def _by_expert(pieces: Pieces) -> list[list[Piece]]:
    found: list[list[Piece]] = [[] for _ in range(pieces.shape[0])]
    for piece in pieces.items:
        for k in range(piece.view.shape[0]):
            found[piece.at[0] + k].append(Piece(piece.leaf, piece.view.sliced(0, k, 1), (0, *piece.at[1:])))
    return found


def _placed(matrix: torch.Tensor, piece: Piece) -> torch.Tensor:
    box = matrix[None]
    return box[tuple(slice(a, a + n) for a, n in zip(piece.at, piece.view.shape, strict=True))]


def _refuse_size(model: Model, dtype: torch.dtype) -> None:
    need = measure(model, dtype.itemsize).weight_bytes
    free = psutil.virtual_memory().available
    if need > free:
        raise TargetError(
            f"the weights take {bytes_text(need)}, and {bytes_text(free)} of memory are available",
            hint="close other programs, or take a smaller model or bfloat16",
        )


def _tell_conversions(manifest: Manifest, checkpoint: Checkpoint, dtype: torch.dtype) -> None:
    """A copy between types is never silent: one line says what was stored and what it becomes."""
    stored: dict[str, int] = {}
    for name in manifest.used:
        kind = checkpoint.tensors[name].dtype
        stored[kind] = stored.get(kind, 0) + 1
    kinds = ", ".join(f"{count} tensors of {kind}" for kind, count in sorted(stored.items()))
    _log.info("The checkpoint holds %s; the model runs in %s.", kinds, str(dtype).removeprefix("torch."))
