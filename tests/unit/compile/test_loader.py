"""Programs coming into a running engine: from a warm cache without compiling, or not at all, which only costs speed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ftc.compile import inductor, loader
from ftc.compile.job import Job, Plan
from ftc.compile.loader import Loader
from tests.rig import Rig, compile_here
from tests.unit.compile.conftest import SHAPES, open_rig

REGIONS = 8


def refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("a child was started")


def load(job: Job) -> Loader:
    made = Loader(job)
    made.start()
    made.join()
    return made


def test_a_warm_cache_compiles_nothing(compiled: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    job = compiled.opened.job
    folder = job.store().inductor_dir

    def libraries() -> dict[str, int]:
        return {str(p): p.stat().st_mtime_ns for p in folder.rglob("*.so")}

    before = libraries()
    assert before, "compiled code lies elsewhere now: this test sees nothing"
    monkeypatch.setattr(loader.subprocess, "Popen", refuse)
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    made = load(job)
    assert (made.loaded, made.compiled, made.state) == (REGIONS, 0, "compiled")
    assert {made.ready.get()[:2] for _ in range(REGIONS)} == {
        (shape, name) for shape in SHAPES for name in ("embed", "layer0", "layer1", "head")
    }
    assert libraries() == before


def test_a_failing_child_leaves_the_engine_uncompiled(
    folder_of: Callable[[int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loader.sys, "executable", "/bin/false")
    monkeypatch.setattr(logging.getLogger("ftc"), "propagate", True)
    rig = open_rig(folder_of(4))
    job = msgspec.structs.replace(rig.opened.job, cache=str(tmp_path))
    rig.programs._loader = made = load(job)
    assert (made.loaded, made.compiled, made.state) == (0, 0, "eager")
    assert "the compiling child failed" in caplog.text
    assert not rig.programs.wait()
    assert len(rig.greedy([1, 2, 3], 3)[0]) == 3


def test_a_region_that_cannot_be_loaded_is_asked_for_again(
    compiled: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job, asked = msgspec.structs.replace(compiled.opened.job, cache=str(tmp_path)), []

    def write(graph: object, example: object, threads: int, path: Path) -> None:
        path.write_bytes(b"of another build of torch")

    def child(self: Loader, missing: dict[Any, Any]) -> None:
        asked.append({shape: set(regions) for shape, regions in missing.items()})

    monkeypatch.setattr(inductor, "compile_graph", write)
    monkeypatch.setattr(Loader, "_compile", child)
    assert compile_here(job) == REGIONS
    made = load(job)
    every = {"embed", "layer0", "layer1", "head"}
    assert asked == [dict.fromkeys(SHAPES, every)] and made.loaded == 0
    plan = Plan(job)
    for shape in SHAPES:
        for region, graph in (plan.stored_graphs(shape) or {}).items():
            assert plan.store.find("kernels", plan.kernels(shape, region, graph)) is None


def test_what_a_child_needs_not_compile_is_loaded_all_the_same(compiled: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the lowered layer is gone: the child traces, finds every region stored, and tells of none."""
    job = compiled.opened.job
    plan = Plan(job)
    plan.store.discard("lowered", plan.lowered(SHAPES[0]))
    monkeypatch.setattr(loader.sys, "executable", _worker_here(job, monkeypatch))
    made = load(job)
    assert (made.loaded, made.compiled, made.state) == (REGIONS, 0, "compiled")


def _worker_here(job: Job, monkeypatch: pytest.MonkeyPatch) -> str:
    """A child that does nothing, after this process has done its work."""
    popen = loader.subprocess.Popen

    def start(command: list[str], **options: Any) -> Any:
        assert compile_here(job) == 0
        return popen(command, **options)

    monkeypatch.setattr(loader.subprocess, "Popen", start)
    return "/bin/true"
