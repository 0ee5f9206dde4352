"""`ftc compile`: makes a model's artefacts for this machine ahead of time, and says what was there and why the rest was not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ftc import log, settings
from ftc.cli.job import DTYPES, job_here
from ftc.cli.progress import Progress
from ftc.errors import ArtefactError, FtcError, TargetError

if TYPE_CHECKING:
    from ftc.compile.job import Job, Plan

# A factor that is a hash says nothing to a reader but that it differs.
_HASH = re.compile(r"(?P<name>[^:;]+): [0-9a-f]{16,} -> [0-9a-f]{16,}")

_log = log.logger("compile")


class Report:
    """Counts of one run: entries by layer that had to be made, their reasons, and their factors for a look at the end."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.made: Counter[str] = Counter()
        self.why: Counter[tuple[str, str]] = Counter()
        self._logical: dict[str, str] = {}  # subject -> why its logical entry was missing

    def missed(self, layer: str, factors: Mapping[str, str]) -> None:
        self.made[layer] += 1
        reason = plain(self._plan.store.explain(layer, factors))
        subject = factors["subject"]
        if layer == "logical":
            self._logical[subject] = reason
        elif layer == "lowered" and subject in self._logical:
            # one of its factors is the layer below as a whole, and that one knows which of its own it was
            reason = reason.replace("other logical", f"other logical ({self._logical[subject]})")
        self.why[layer, reason] += 1

    def lines(self) -> list[str]:
        """A table of the layers, then the reasons, then where it all lies."""
        from ftc.cli.doctor import folder_bytes, size

        plan, store = self._plan, self._plan.store
        entries: dict[str, list[Path | None]] = {"logical": [], "lowered": [], "kernels": []}
        for shape in plan.job.shapes:
            entries["logical"].append(store.find("logical", plan.logical(shape)))
            entries["lowered"].append(store.find("lowered", plan.lowered(shape)))
            for region, graph in (plan.stored_graphs(shape) or {}).items():
                entries["kernels"].append(store.find("kernels", plan.kernels(shape, region, graph)))
        lines = [f"{'layer':<10}{'found':>7}{'made':>7}{'stored':>8}  size"]
        for layer, paths in entries.items():
            stored = [p for p in paths if p is not None]
            # two shapes may share one entry, where their graphs are the same
            held = sum(p.stat().st_size for p in set(stored))
            made = self.made[layer]
            lines.append(f"{layer:<10}{len(stored) - made:>7}{made:>7}{len(stored):>8}  {size(held)}")
        if self.why:
            lines += ["", "made because:"]
            lines += [f"  {layer}, {many} of them: {reason}" for (layer, reason), many in sorted(self.why.items())]
        folder = store.root
        return [*lines, "", f"artefacts: {folder}, {size(folder_bytes(folder))} with the compiler's own files"]


@click.command("compile")
@click.argument("model")
@click.option("--dtype", type=click.Choice(DTYPES), default="bfloat16", show_default=True, help="Number format of activations.")
@click.option("--spec", type=click.Path(path_type=Path), help="Your own spec file; it is run as code.")
@click.option("--off", metavar="PASS", multiple=True, help="Leave this pass out; may be given again.")
def command(model: str, dtype: str, spec: Path | None, off: tuple[str, ...]) -> None:
    """Compile what is missing of MODEL for this machine: a checkpoint folder, a hub id, or `demo`.

    Reads its config and headers only. `ftc serve` would do the same beside the first requests. It may be stopped at any
    time: what is finished stays, and the next run goes on from there.
    """
    log.configure()
    job = job_here(model, spec, dtype, off)
    from ftc.compile.job import Plan
    from ftc.compile.key import cxx_version

    if cxx_version() == "none":
        raise TargetError("compiling for a CPU needs a C++ compiler, and there is none", hint="install g++")
    plan = Plan(job)
    report = Report(plan)
    shapes = ", ".join(str(s) for s in job.shapes)
    click.echo(f"{job.model.name}: {job.dtype} for {job.target.kind} {job.target.isa}, {job.target.threads} threads: {shapes}")
    _compile(job, plan, report)
    for line in report.lines():
        click.echo(line)


def _compile(job: Job, plan: Plan, report: Report) -> None:
    # Inductor reads it when it is imported; artefacts refer to the code that lies there
    settings.export(TORCHINDUCTOR_CACHE_DIR=str(plan.store.inductor_dir))
    from ftc.compile.job import compile_missing

    now = "trace"
    with Progress() as progress:

        def told(phase: str, done: int, total: int) -> None:
            nonlocal now
            now = phase
            progress(phase.split()[0], done, total)

        try:
            for _ in compile_missing(plan, job.shapes, told, report.missed):
                pass
        except FtcError:
            raise
        except Exception as error:
            _log.debug("%s failed", now, exc_info=True)
            first = str(error).strip().splitlines()
            raise ArtefactError(
                f"the compiler failed: {type(error).__name__}: {first[0] if first else ''}",
                where=now,
                hint=f"{settings.LOG.name}=debug shows where; what was finished before is kept",
            ) from error


def plain(reason: str) -> str:
    """A reason of Store.explain for people: hashes become "other NAME"."""
    return _HASH.sub(lambda m: f"{' ' if m['name'].startswith(' ') else ''}other {m['name'].strip()}", reason)
