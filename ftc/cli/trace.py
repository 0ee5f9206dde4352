"""`ftc trace`: the schedule and the region graphs of a model, before and after passes, as text or as one HTML page."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ftc.cli.job import DTYPES, job_here
from ftc.errors import FtcError, PassError
from ftc.spec.show import numbers

if TYPE_CHECKING:
    from ftc.compile.job import Job
    from ftc.passes.base import Lowered
    from ftc.trace.inputs import Shape
    from ftc.trace.page import Stage

ROWS = {"decode": 1, "prefill": 64}


@click.command("trace")
@click.argument("model")
@click.option("--mode", type=click.Choice(tuple(ROWS)), default="decode", show_default=True, help="Which step.")
@click.option("--rows", type=click.IntRange(min=1), help="Tokens of the step.  [default: 1 in decode, 64 in prefill]")
@click.option("--after", metavar="PASS", help='Show what there is after this pass; "trace": before any.  [default: all passes]')
@click.option("--region", metavar="NAME", help="Show this region only.")
@click.option("--off", metavar="PASS", multiple=True, help="Leave this pass out; may be given again.")
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Write one page with drawings instead.")
@click.option("--dtype", type=click.Choice(DTYPES), default="bfloat16", show_default=True, help="Number format of activations.")
@click.option("--spec", type=click.Path(path_type=Path), help="Your own spec file; it is run as code.")
def command(
    model: str,
    mode: str,
    rows: int | None,
    after: str | None,
    region: str | None,
    off: tuple[str, ...],
    html: Path | None,
    dtype: str,
    spec: Path | None,
) -> None:
    """Show the graphs of MODEL: a checkpoint folder, a hub id, or `demo` for the embedded model.

    A region is the graph of one kind of layer; the schedule is the list of regions that a step runs.
    """
    rows = rows or ROWS[mode]
    if mode == "prefill" and rows == 1:
        raise FtcError("a prefill chunk has 2 rows or more", where="--rows", value=rows, hint="one row is --mode decode")
    if html is not None and not html.absolute().parent.is_dir():
        raise FtcError("there is no such folder to write to", where="--html", value=str(html))
    job = job_here(model, spec, dtype, off)
    from ftc.trace.inputs import Shape
    from ftc.trace.regions import lay_out

    known = list(lay_out(job.model).kinds)
    if region is not None and region not in known:
        raise FtcError("no such region", where="--region", value=region, hint=f"regions: {', '.join(known)}")
    shape = Shape(rows, rows if mode == "decode" else 1)
    _check_after(after, job, shape)
    stages, lowered = _stages(job, shape, None if html is not None else after)
    shown = [region] if region is not None else known
    if html is None:
        _print(job, shape, stages, lowered, shown)
        return
    _write(html, job, shape, stages, after or stages[-1].name, region or known[min(1, len(known) - 1)])


def _check_after(after: str | None, job: Job, shape: Shape) -> None:
    """Raises PassError where the pipeline of this job has no such pass, saying which there are."""
    from ftc.passes.base import Context
    from ftc.passes.pipeline import PIPELINE

    by_name = {p.name: p for p in PIPELINE}
    if after is None or after == "trace":
        return
    if after not in by_name:
        hint = f"passes: trace, {', '.join(by_name)}"
        raise PassError("no such pass", where="--after", value=after, hint=hint)
    if after in job.off:
        raise PassError("this pass is switched off", where="--after, --off", value=after)
    if not by_name[after].applies(Context(job.target, shape, job.plan, {})):
        what = f"this pass has nothing to do in {shape.mode} where experts are {job.plan}"
        raise PassError(what, where="--after", value=after)


def _stages(job: Job, shape: Shape, after: str | None) -> tuple[list[Stage], Lowered]:
    """What there was before the first pass and after each, up to `after`, as plain data: passes rewrite graphs in place."""
    from ftc.compile.job import Plan
    from ftc.passes.pipeline import PIPELINE
    from ftc.trace.page import Stage
    from ftc.trace.picture import picture

    docs = {p.name: p.doc for p in PIPELINE} | {"trace": "The spec as it was recorded, in words of ftc and aten."}
    stages: list[Stage] = []

    def keep(name: str, lowered: Lowered) -> None:
        pictures = {k: picture(g, lowered.kinds[k].outputs) for k, g in lowered.regions.items()}
        segments = [s.calls for s in lowered.segments] or [tuple(lowered.schedule)]
        calls = tuple(tuple((c.kind, c.block) for c in segment) for segment in segments)
        stages.append(Stage(name, docs[name].split("\n\n")[0], pictures, calls, bool(lowered.segments)))

    # the first pass is the earliest place to stop; its stage is dropped where what was before it is wanted
    first = next(p.name for p in PIPELINE) if after == "trace" else after
    lowered = Plan(job).lower(shape, after=first, watch=keep)
    return (stages[:1] if after == "trace" else stages), lowered


def _print(job: Job, shape: Shape, stages: list[Stage], lowered: Lowered, regions: list[str]) -> None:
    stage = stages[-1]
    target = job.target
    click.echo(f"{job.model.name}: {shape} in {job.dtype} for {target.kind} {target.isa}, after {stage.name}")
    from ftc.trace.page import changed_nodes

    for before, now in zip(stages, stages[1:], strict=False):
        count = sum(changed_nodes(before, now).values())
        what = f"{count} nodes changed" if count else "schedule cut" if now.schedule != before.schedule else "nothing changed"
        click.echo(f"  {now.name}: {what}, {1000 * lowered.seconds[now.name]:.1f} ms. {now.doc}")
    click.echo()
    for i, segment in enumerate(stage.schedule):
        label = f"segment {i}" if stage.is_cut else "schedule"
        click.echo(f"{label}: {', '.join(_runs(segment))}")
    for name in regions:
        nodes = stage.pictures[name].nodes
        ops = sum(n.role in ("aten", "word", "kernel") for n in nodes)
        click.echo(f"\nregion {name}: {ops} ops, {len(nodes) - ops - 1} inputs")
        click.echo(stage.pictures[name].text)


def _runs(segment: tuple[tuple[str, int | None], ...]) -> list[str]:
    """`embed`, `layer0 (blocks 0-2)`, ..."""
    found = []
    for name, calls in groupby(segment, lambda call: call[0]):
        blocks = [b for _, b in calls if b is not None]
        found.append(name if not blocks else f"{name} (block{'s' * (len(blocks) > 1)} {numbers(tuple(blocks))})")
    return found


def _write(html: Path, job: Job, shape: Shape, stages: list[Stage], after: str, region: str) -> None:
    from ftc.trace.page import page

    target = job.target
    rows = f"decode of {shape.rows} rows" if shape.mode == "decode" else f"prefill chunk of {shape.rows} rows"
    facts = (
        ("step", rows.replace(" 1 rows", " 1 row")),
        ("activations", job.dtype),
        ("target", f"{target.kind} {target.isa}, {target.threads} threads"),
        ("layers", str(len(job.model.blocks))),
    )
    text = page(f"{job.model.name}: trace", facts, stages, after, region)
    try:
        html.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FtcError(f"cannot be written: {error.strerror}", where="--html", value=str(html)) from None
    click.echo(f"{html}: {len(stages[0].pictures)} regions after {len(stages)} stages, {len(text.encode()) / 1024:.0f} KiB")
