"""Opens a checkpoint: weights into memory, ops bound to this machine's kernels, and programs once the pools exist."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from ftc import settings
from ftc.compile.job import Job, job_of
from ftc.compile.loader import Loader
from ftc.compile.program import Memory
from ftc.compile.programs import Programs
from ftc.ops import kernels
from ftc.spec.load import read_model
from ftc.spec.model import Model
from ftc.target import Target
from ftc.weights.checkpoint import open_checkpoint
from ftc.weights.head import settle_head
from ftc.weights.load import load

Progress = Callable[[str, int, int], None]


class Opened(msgspec.Struct, frozen=True):
    """A checkpoint in memory, ready for programs once the pools exist."""

    model: Model
    outer: dict[str, Tensor]
    blocks: list[dict[str, Tensor]]
    bank: dict[str, Tensor]
    dtype: torch.dtype
    target: Target
    job: Job

    def programs(self, pools: dict[str, tuple[Tensor, Tensor]], table_pages: int, *, compiled: bool = True) -> Programs:
        """Programs over `pools` (group -> pool, state) and page tables of `table_pages`; `compiled` False stays eager."""
        memory = Memory(self.outer, self.blocks, self.bank, pools)
        return Programs(self.model, memory, table_pages, self.target, Loader(self.job) if compiled else None, self.job.off)


def open_model(
    folder: Path,
    spec: Path | None = None,
    dtype: torch.dtype = torch.bfloat16,
    cache: Path | None = None,
    progress: Progress = lambda phase, done, total: None,
) -> Opened:
    """Reads a checkpoint; every problem is a SpecError, CheckpointError or TargetError. `cache` None: the setting's folder."""
    model = settle_head(read_model(folder, spec), open_checkpoint(folder))
    target = kernels.bind(settings.threads())
    weights = load(model, folder, dtype, progress)
    name = str(dtype).removeprefix("torch.")
    job = job_of(model, name, target, cache or settings.cache_dir())
    bank = {} if weights.bank is None else weights.bank.views()
    return Opened(model, weights.model, weights.blocks, bank, dtype, target, job)
