"""The table of the zoo: each family's spec lines, primitives, error against the reference library, layouts it loads,
and the words of its layers that the CPU serves by their reference only, for want of a kernel.

`python -m tests.zoo.table [FAMILY ...]`; exits 1 where a spec has no family, a family no spec, or one of them a gap.
"""

from __future__ import annotations

import importlib
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch

from ftc.errors import FtcError
from ftc.ops.op import Op
from ftc.spec.load import read_config, registry, spec_modules
from ftc.spec.model import HyperConnections, Model
from tests import tiny
from tests.rig import Rig
from tests.zoo import FAMILIES

CLOSE = 1e-3
LINES = 150
TOKENS = 48
# layout of the tensors, and whether the config has the flat rope keys of older files
LAYOUTS = {"disk": ("disk", False), "runtime": ("runtime", False), "flat config": ("disk", True)}


class Row(msgspec.Struct):
    family: str
    module: str = ""
    lines: int = 0
    primitives: str = ""
    error: float = float("nan")
    loaded: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()
    gap: str = ""


def main(names: list[str]) -> int:
    rows = []
    print(f"{'family':<20}{'spec':<18}{'lines':>5}  {'error':>8}  {'layouts':<28}{'primitives':<48}reference kernels only")
    for family in names or FAMILIES:
        row = measured(family)
        rows.append(row)
        loaded = ", ".join(row.loaded)
        start = f"{row.family:<20}{row.module:<18}{row.lines:>5}  {row.error:>8.1e}  {loaded:<28}"
        print(start + (row.gap or f"{row.primitives:<48}{', '.join(row.slow) or '-'}"), flush=True)
    gaps = [f"{r.family}: {r.gap}" for r in rows if r.gap]
    if not names:
        used = {r.module for r in rows}
        gaps += [f"{m} has no family in tests/zoo" for m in map(short, spec_modules()) if m not in used]
    lines = sorted({r.module: r.lines for r in rows if r.module}.values())
    if lines:
        print(f"{len(lines)} spec files: median {statistics.median(lines):.0f} lines, longest {lines[-1]}")
    for gap in gaps:
        print(f"GAP {gap}")
    return 1 if gaps else 0


def measured(family: str) -> Row:
    row = Row(family)
    try:
        with tempfile.TemporaryDirectory() as folder, without_kernels() as slow:
            for layout, error in errors(family, Path(folder), row):
                if not error < CLOSE:
                    row.gap = f"relative error {error:.1e} with layout {layout}"
                    return row
                row.loaded, row.error = (*row.loaded, layout), max(error, 0 if row.error != row.error else row.error)
            row.slow = tuple(sorted(slow))
    except (FtcError, KeyError, ValueError) as e:
        row.gap = f"{type(e).__name__}: {str(e).splitlines()[0][:100]}"
    if not row.gap and row.lines > LINES:
        row.gap = f"{row.lines} lines are more than {LINES}"
    return row


@contextmanager
def without_kernels() -> Iterator[set[str]]:
    """The words called inside for which no native kernel takes the call."""
    found: set[str] = set()
    plain = Op.__call__

    def call(op: Op, *arguments: Any) -> Any:
        if "native" not in op.kernels or not op.supports("native", arguments):
            found.add(op.name)
        return plain(op, *arguments)

    Op.__call__ = call  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Op.__call__ = plain  # type: ignore[method-assign]


def errors(family: str, folder: Path, row: Row) -> Iterator[tuple[str, float]]:
    """(layout, largest relative error of a prompt, whole and then token by token) for each layout."""
    # not seed 0: there two index scores of one family tie exactly, and the reference itself differs with and without a cache
    tokens = torch.randint(1, tiny.VOCAB, (TOKENS,), generator=torch.Generator().manual_seed(1)).tolist()
    for name, (layout, flat) in LAYOUTS.items():
        at = folder / name
        reference = tiny.write(family, at, layout=layout, flat_rope=flat)  # type: ignore[arg-type]
        architecture = read_config(at)["architectures"][0]
        module = registry().get(architecture)
        if module is None:
            raise KeyError(f"no spec for {architecture}")
        with torch.no_grad():
            theirs = reference(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float()
        rig = Rig(at, torch.float32, sequences=1, context=TOKENS)
        describe(row, module, rig.model)
        line = rig.sequence()
        worst = distance(rig.prompt(line, tokens, None, every=True), theirs)
        rig.release(line)
        line = rig.sequence()
        ours = torch.cat([rig.decode([line], [t]) for t in tokens])
        yield name, max(worst, distance(ours, theirs))


def describe(row: Row, module: str, model: Model) -> None:
    row.module = short(module)
    row.lines = len(Path(importlib.import_module(module).__file__ or "").read_text(encoding="utf-8").splitlines())
    tags = [str(type(b.body).__struct_config__.tag) for block in model.blocks for b in block.branches]
    extra = ["hyper_connections"] if isinstance(model.residual, HyperConnections) else []
    row.primitives = ", ".join(dict.fromkeys([*tags, *extra]))


def distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float(((ours - theirs).abs().amax(-1) / theirs.abs().amax(-1)).max())


def short(module: str) -> str:
    return module.rpartition(".")[2]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
