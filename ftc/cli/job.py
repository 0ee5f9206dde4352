"""What `ftc compile` and `ftc trace` work on: the job that `ftc serve` would have for a model on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ftc.cli.progress import Progress

if TYPE_CHECKING:
    from ftc.compile.job import Job

DTYPES = ("bfloat16", "float32")


def job_here(model: str, spec: Path | None, dtype: str, off: tuple[str, ...]) -> Job:
    """Reads config and headers of MODEL, never its weights. Raises FtcError for a model, spec or pass that is none."""
    from ftc import settings
    from ftc.weights.hub import locate

    # before anything heavy is imported: a wrong name should not take seconds
    with Progress() as progress:
        folder = locate(model, progress)
    threads = settings.threads()

    from ftc.ops import kernels
    from ftc.passes.pipeline import pipeline
    from ftc.spec.load import read_config, read_model
    from ftc.weights.checkpoint import open_checkpoint
    from ftc.weights.formats import refuse_format
    from ftc.weights.head import settle_head

    pipeline(frozenset(off))
    found = read_model(folder, spec)
    refuse_format(read_config(folder), str(folder / "config.json"))
    # the stored head decides whether a tied model has one of its own, and with it the last region
    found = settle_head(found, open_checkpoint(folder))

    from ftc.compile.job import job_of

    return job_of(found, dtype, kernels.bind(threads), settings.cache_dir(), off)
