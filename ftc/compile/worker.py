"""The background compiler: a niced child that reads one Job from stdin and tells what it made, one JSON line each."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from ftc import settings
from ftc.compile.job import Job, Plan, compile_missing


class Told(msgspec.Struct):
    """`path` of a finished artefact, or progress of `phase` (`done` of `total` regions)."""

    phase: str = ""
    done: int = 0
    total: int = 0
    path: str | None = None


def main() -> None:
    # the lowest priority: whatever serves goes first, compiling takes what is left
    os.nice(19)
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    settings.export(TORCHINDUCTOR_CACHE_DIR=str(job.store().inductor_dir))
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    sys.stdout = sys.stderr  # libraries that print must not disturb the lines

    def tell(told: Told) -> None:
        out.write(msgspec.json.encode(told) + b"\n")

    import torch

    torch.set_num_threads(1)
    for path in compile_missing(Plan(job), job.shapes, lambda phase, done, total: tell(Told(phase, done, total))):
        tell(Told(path=str(Path(path))))


if __name__ == "__main__":
    main()
