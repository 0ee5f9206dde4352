"""One region for each kind of layer, however deep the model is: counted, and the compiled form shared between depths."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from ftc.compile import inductor
from ftc.compile.job import Job, Plan, job_of
from ftc.spec.load import read_model
from ftc.target import Target
from ftc.trace import tracer
from tests import odd
from tests.rig import Rig, compile_here
from tests.unit.compile.conftest import CHANGES, SHAPES, open_rig

FolderOf = Callable[[int], Path]


class Count:
    """How many regions were traced and compiled; compiling only writes a mark."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.traced = self.compiled = 0
        trace_region = tracer.trace_region

        def trace(*arguments: Any) -> Any:
            self.traced += 1
            return trace_region(*arguments)

        def write(graph: object, example: object, threads: int, path: Path) -> None:
            self.compiled += 1
            path.write_bytes(b"compiled")

        patch.setattr(tracer, "trace_region", trace)
        patch.setattr(inductor, "compile_graph", write)


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> Count:
    return Count(monkeypatch)


def job(folder: Path, cache: Path) -> Job:
    target = Target("cpu", "avx2", 2, ())
    made = job_of(read_model(folder, odd.SPEC), "float32", target, cache)
    return msgspec.structs.replace(made, shapes=SHAPES)


def test_4_and_40_layers_take_the_same_work(folder_of: FolderOf, tmp_path: Path, count: Count) -> None:
    seen = []
    for layers in (4, 40):
        count.traced = count.compiled = 0
        made = job(folder_of(layers), tmp_path / str(layers))
        assert len(made.model.blocks) == layers
        assert compile_here(made) == count.compiled
        entries = len(list((tmp_path / str(layers)).glob("v1/kernels/*.json")))
        seen.append((count.traced, count.compiled, entries))
    assert seen[0] == seen[1] == (8, 8, 8)  # embed, two kinds of layer and head, for two shapes


def test_what_was_made_for_4_layers_is_found_for_40(folder_of: FolderOf, tmp_path: Path, count: Count) -> None:
    compile_here(job(folder_of(4), tmp_path))
    count.traced = count.compiled = 0
    assert compile_here(job(folder_of(40), tmp_path)) == 0
    assert (count.traced, count.compiled) == (0, 0)


def test_every_layer_is_in_the_schedule(folder_of: FolderOf, tmp_path: Path) -> None:
    lowered = Plan(job(folder_of(40), tmp_path)).lower(SHAPES[0])
    assert [c.block for c in lowered.schedule] == [None, *range(40), None]
    assert len(lowered.regions) == 4


def test_compiled_for_4_layers_runs_40(folder_of: FolderOf, compiled: Rig) -> None:
    deep = open_rig(folder_of(40), compiled=True, sequences=2, context=64)
    assert (deep.programs.compiled, deep.programs.loaded) == (0, 8)
    text = [(29 * t + 11) % 64 for t in range(16)]
    wanted = odd.Odd(odd.write(folder_of(40), layers=40, **CHANGES), layers=40, **CHANGES).logits(text)
    line = deep.sequence()
    logits = torch.cat((deep.prompt(line, text[:14], None, every=True), *(deep.decode([line], [t]) for t in text[14:])))
    assert float(((logits - wanted).abs().amax(-1) / wanted.abs().amax(-1)).max()) < 1e-4
