"""What is in a key: everything that would change the code, and nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import ftc
from ftc.compile import key
from ftc.compile.job import Job, Plan, formats, job_of
from ftc.passes.base import Context, apply
from ftc.passes.pipeline import pipeline
from ftc.runtime.plan import plan
from ftc.spec.load import build_model
from ftc.spec.model import Model
from ftc.target import Target
from ftc.trace.graph import hash_of
from ftc.trace.inputs import Shape
from ftc.trace.tracer import trace
from tests import odd
from tests.unit.compile.conftest import CHANGES

SHAPE = Shape(2, 2)
TARGET = Target("cpu", "avx2", 2, ())
replace = msgspec.structs.replace


def model_of(**changes: Any) -> Model:
    return build_model(odd.CONFIG | CHANGES | changes, spec=odd.SPEC)


def bare(**changes: Any) -> Model:
    """The model as a job holds it."""
    return job_of(model_of(**changes), "float32", TARGET, Path()).model


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return job_of(model_of(), "float32", TARGET, tmp_path)


def keys(job: Job) -> dict[str, str]:
    """Layer -> key of the three layers, for one shape and region."""
    plan = Plan(job)
    logical, lowered, kernels = plan.logical(SHAPE), plan.lowered(SHAPE), plan.kernels(SHAPE, "layer0", "graph")
    return {layer: key.key_of(f) for layer, f in (("logical", logical), ("lowered", lowered), ("kernels", kernels))}


def changed(job: Job, other: Job) -> set[str]:
    before, after = keys(job), keys(other)
    return {layer for layer in before if before[layer] != after[layer]}


@pytest.mark.parametrize("change,layers", [
    (lambda j: replace(j, dtype="bfloat16"), {"logical", "lowered"}),
    (lambda j: replace(j, model=bare(width=32)), {"logical", "lowered"}),
    (lambda j: replace(j, target=replace(j.target, kernels=("native",))), {"lowered"}),
    (lambda j: replace(j, off=("choose_kernels",)), {"lowered"}),
    (lambda j: replace(j, plan="cached"), {"lowered"}),
    (lambda j: replace(j, target=replace(j.target, isa="avx512")), {"kernels"}),
], ids=["type", "spec", "kernels", "passes", "plan", "instruction set"])  # fmt: skip
def test_each_factor_changes_the_keys_of_its_layers(job: Job, change: Callable[[Job], Job], layers: set[str]) -> None:
    assert changed(job, change(job)) == layers


def test_threads_count_where_several_are_used(job: Job) -> None:
    more = replace(job, target=replace(job.target, threads=4))
    one, other = (Plan(j).kernels(Shape(16, 1), "layer0", "graph") for j in (job, more))
    assert {f for f in one if one[f] != other[f]} == {"threads"}
    assert changed(job, more) == set()  # decode runs on one


@pytest.mark.parametrize("package", ["torch", "triton", "python"])
def test_versions(job: Job, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    before = keys(job)
    told = key.versions() | {package: "another"}
    monkeypatch.setattr(key, "versions", lambda: told)
    after = keys(job)
    assert {layer for layer in before if before[layer] != after[layer]} == {"kernels"}


def test_the_compiler(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    before = keys(job)
    monkeypatch.setattr(key, "cxx_version", lambda: "another")
    assert {layer for layer, k in keys(job).items() if k != before[layer]} == {"kernels"}


@pytest.mark.parametrize("package,layers", [
    ("spec", {"logical", "lowered"}), ("ops", {"logical", "lowered"}), ("trace", {"logical", "lowered"}),
    ("passes", {"lowered"}), ("compile", {"kernels"}), ("runtime", set()), ("text", set()),
])  # fmt: skip
def test_sources(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, layers: set[str]) -> None:
    """A comment in a copy of the package counts: nobody judges whether a change of the sources matters."""
    copy = tmp_path / "ftc"
    shutil.copytree(Path(ftc.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__", "*.so", "serve", "cli"))
    monkeypatch.setattr(ftc, "__file__", str(copy / "__init__.py"))
    monkeypatch.setattr(key, "sources", key.sources.__wrapped__)
    before = keys(job)
    source = sorted((copy / package).rglob("*.py"))[-1]
    source.write_text(source.read_text(encoding="utf-8") + "# a comment\n", encoding="utf-8")
    assert {layer for layer, k in keys(job).items() if k != before[layer]} == layers


def test_memory_and_context_are_no_factors(tmp_path: Path) -> None:
    model = model_of()
    small = replace(model, context_tokens=64)
    plans = {plan(m, torch.float32, budget, n, None) for m, budget, n in ((model, 1 << 30, 8), (small, 1 << 22, 2))}
    assert len(plans) == 2
    jobs = [job_of(m, "float32", TARGET, tmp_path) for m in (model, small)]
    assert keys(jobs[0]) == keys(jobs[1]) and jobs[0] == jobs[1]


def test_depth_is_no_factor(job: Job) -> None:
    assert changed(job, replace(job, model=bare(layers=40))) == set()
    assert changed(job, replace(job, model=bare(layers=1))) == {"logical", "lowered"}  # a kind is missing


def test_a_graph_is_known_by_its_text(job: Job) -> None:
    """Equal traces hash alike; another choice of kernels or another type does not."""
    one = {name: hash_of(g) for name, g in Plan(job).lower(SHAPE).regions.items()}
    assert one == {name: hash_of(g) for name, g in Plan(job).lower(SHAPE).regions.items()}
    assert len(set(one.values())) == 4
    for other in (replace(job, dtype="bfloat16"), replace(job, off=("choose_kernels",))):
        assert not set(one.values()) & {hash_of(g) for g in Plan(other).lower(SHAPE).regions.values()} - {one["embed"]}


def test_formats_are_in_the_graph(job: Job) -> None:
    def text(told: dict[str, str]) -> str:
        traced = trace(job.model, SHAPE, torch.float32)
        return hash_of(apply(traced, pipeline(), Context(TARGET, SHAPE, "resident", told)).regions["layer0"])

    told = formats(job.model, "float32")
    assert text(told) == text(dict(told)) != text({name: "bfloat16" for name in told})
