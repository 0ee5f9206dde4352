"""`ftc spec`: what a model is made of, and whether a checkpoint fits its spec."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console

from ftc.cli.progress import Progress
from ftc.errors import CheckpointError, FtcError, Problems
from ftc.spec.draft import draft
from ftc.spec.load import build_model, read_config, read_model
from ftc.spec.model import Model
from ftc.spec.show import branches, numbers, short, summary
from ftc.spec.size import measure
from ftc.weights.checkpoint import open_checkpoint
from ftc.weights.formats import refuse_format
from ftc.weights.hub import locate
from ftc.weights.manifest import resolve

SPEC = click.Path(path_type=Path, dir_okay=False)


@click.group("spec")
def command() -> None:
    """Shows, checks or compares a model's spec, or drafts a new one."""


@command.command()
@click.argument("model")
@click.option("--spec", type=SPEC, help="Your own spec file instead of a known one; it is run as code.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def show(model: str, spec: Path | None, as_json: bool) -> None:
    """Layers by kind, sizes and arithmetic of MODEL: a folder, a config.json, a hub id, or "demo"."""
    found = _described(model, spec)
    size = measure(found)
    if as_json:
        kinds = [{**msgspec.to_builtins(k), "branches": dict(branches(found.blocks[k.blocks[0]]))} for k in size.kinds]
        fields = {key: getattr(found, key) for key in ("name", "hidden", "vocab", "context_tokens")}
        click.echo(json.dumps({**fields, **msgspec.to_builtins(size), "kinds": kinds}, indent=2))
        return
    console = Console(soft_wrap=not sys.stdout.isatty())
    console.print(f"[bold]{found.name}[/bold]", highlight=False)
    for label, text in summary(found, size):
        console.print(f"  {label:<12}{text}", highlight=False)
    for kind in size.kinds:
        title = f"\n{len(kind.blocks)} x {kind.name}, layers {numbers(kind.blocks)}: "
        title += f"{short(kind.parameters)} parameters each, {short(kind.active_parameters)} active"
        console.print(title, highlight=False)
        for name, text in branches(found.blocks[kind.blocks[0]]):
            console.print(f"  {name}: {text}", highlight=False)


@command.command()
@click.argument("model")
@click.option("--spec", type=SPEC, help="Your own spec file instead of a known one; it is run as code.")
def check(model: str, spec: Path | None) -> None:
    """Lists everything in which MODEL's files do not fit its spec; reads headers only."""
    with Progress() as progress:
        folder = locate(model, progress)
    found = read_model(folder, spec)
    refuse_format(read_config(folder), str(folder / "config.json"))
    checkpoint = open_checkpoint(folder)
    try:
        manifest = resolve(found, checkpoint)
    except Problems as e:
        click.echo(str(e))
        sys.exit(1)
    for warning in manifest.warnings:
        click.echo(f"warning: {warning}")
    used = f"{len(checkpoint.tensors)} tensors: {len(manifest.used)} used"
    click.echo(f"{used} for {len(manifest.entries)} parameters, {len(manifest.skipped)} skipped.")
    reasons: dict[str, list[str]] = {}
    for name, reason in manifest.skipped.items():
        reasons.setdefault(reason, []).append(name)
    for reason, skipped in reasons.items():
        more = f" and {len(skipped) - 3} more" if skipped[3:] else ""
        click.echo(f"  skipped ({reason}): {', '.join(skipped[:3])}{more}")


@command.command()
@click.argument("config", type=click.Path(path_type=Path, exists=True))
@click.option("--out", type=SPEC, help="Where the draft goes; stdout without it.")
def new(config: Path, out: Path | None) -> None:
    """Writes a first draft of a spec file from CONFIG: a config.json, or a checkpoint's folder, whose tensors tell more."""
    if out is not None and out.exists():
        raise click.UsageError(f"{out} exists; a draft does not replace it")
    values = read_config(config) if config.is_dir() else _json(config)
    checkpoint = open_checkpoint(config) if config.is_dir() else None
    made = draft(values, {n: t.shape for n, t in checkpoint.tensors.items()} if checkpoint else None)
    if out is None:
        click.echo(made.text, nl=False)
        return
    out.write_text(made.text, encoding="utf-8")
    click.echo(f"{out}: {len(made.taken)} keys taken, {len(made.guesses)} guesses, {len(made.unknown)} keys not understood")
    for key, value in made.unknown.items():
        click.echo(f"  not understood: {key} = {json.dumps(value)[:60]}")
    try:
        found = build_model(values, str(config), out)
        click.echo(f"It describes {short(measure(found).parameters).rstrip()} parameters.")
        if checkpoint is not None:
            resolve(found, checkpoint)
            click.echo("Every tensor of the checkpoint has its place.")
    except FtcError as e:
        click.echo(f"It does not fit yet: {e}")
    click.echo(f"Next: ftc spec check {config} --spec {out}; then ftc spec diff {config} --spec {out} --reference")


@command.command()
@click.argument("model")
@click.option("--spec", type=SPEC, help="Your own spec file instead of a known one; it is run as code.")
@click.option("--reference", is_flag=True, help="Compare with the reference library (transformers must be installed).")
def diff(model: str, spec: Path | None, reference: bool) -> None:
    """Runs one prompt through MODEL and through another implementation, and names where they part; exits 1 if they do."""
    if not reference:
        raise click.UsageError("say what to compare with: --reference")
    from ftc.cli.compare import compare

    with Progress() as progress:
        folder = locate(model, progress)
    found = compare(folder, spec)
    if found.agrees:
        worst = max(found.embedding, found.logits, *found.layers)
        click.echo(f"agrees: {len(found.layers)} layers and the logits, largest relative error {worst:.1e}")
        return
    click.echo(f"embedding  {found.embedding:.1e}")
    for i, error in enumerate(found.layers):
        click.echo(f"layer {i:<4} {error:.1e}")
    click.echo(f"logits     {found.logits:.1e}")
    for part in found.parts:
        told = "not comparable" if part.error is None else f"{part.error:.1e}"
        click.echo(f"  {told:<15} {part.path}")
    click.echo(f"first disagreement: {found.place}")
    sys.exit(1)


def _described(model: str, spec: Path | None) -> Model:
    path = Path(model).expanduser()
    if not path.is_file():
        with Progress() as progress:
            return read_model(locate(model, progress), spec)
    if path.suffix != ".json":
        locate(model)  # refuses a file, naming its type
    return build_model(_json(path), model, spec)


def _json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as e:
        raise CheckpointError(f"not valid JSON: {e}", where=str(path)) from None
    if not isinstance(values, dict):
        raise CheckpointError("not a JSON object", where=str(path))
    return values
