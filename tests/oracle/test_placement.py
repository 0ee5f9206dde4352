"""Where experts live never changes tokens: any cache size, split, batch and prefill mode, on a played GPU, in float32."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from ftc.compile.sim import Order
from ftc.passes.base import Prefill
from ftc.spec.load import registry
from tests import tiny
from tests.rig import Rig
from tests.simrig import SimRig, batch_greedy
from tests.tiny import architecture

# They differ in mixer and router: grouped heads, gated delta, latent heads with grouped experts, sinks and biases, a scan,
# short convolutions, identity experts, a dense part beside one expert.
FAMILIES = (
    "qwen3_moe", "qwen3_5_moe_text", "deepseek_v3", "gpt_oss", "granitemoehybrid", "lfm2_moe", "longcat_flash", "llama4_text",
)  # fmt: skip
CORE = ("qwen3_moe", "qwen3_5_moe_text")
NEW_TOKENS = 8


class Case(NamedTuple):
    """`size`: share of all experts that has a slot, 0 the smallest legal cache. `prefill` None: what the size allows."""

    size: float
    share: float
    batch: int
    order: Order
    prefill: Prefill | None = None
    off: tuple[str, ...] = ()


SIZES, SHARES, BATCHES, ORDERS = (0, 0.1, 0.25, 0.5, 1.0), (0.0, 0.3, 1.0), (1, 3, 8), ("eager", "laziest", 5)
# Every pair of size, share, batch and order is met.
PAIRS = [
    Case(size, SHARES[(i + j) % 3], BATCHES[j], ORDERS[(2 * i + j) % 3]) for i, size in enumerate(SIZES) for j in range(3)
]
SPECIAL = [
    Case(1.0, 0.3, 3, "laziest", "single"),
    Case(1.0, 0.3, 3, 7, "host"),
    Case(0.5, 0.3, 3, "eager", None, ("overlap",)),
    Case(1.0, 0.3, 3, "laziest", None, ("split_misses",)),
    Case(0.5, 0.3, 1, 3, None, ("stream_layers",)),
]
ALL = [Case(*c) for c in itertools.product(SIZES, SHARES, BATCHES, ORDERS)]

MakeRig = Callable[[str], Rig]


@pytest.fixture(scope="module")
def rig_of(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeRig]:
    @cache
    def make(name: str) -> Rig:
        if name == "embedded":
            return Rig(demo, torch.float32, context=128)
        folder = tmp_path_factory.mktemp(name)
        tiny.write(name, folder)
        return Rig(folder, torch.float32, context=128)

    yield make


@pytest.fixture(scope="module")
def wanted(demo: Path, rig_of: MakeRig) -> Callable[[str, int], list[list[int]]]:
    """(name, batch) -> tokens of the uncompiled model, which other tests compare with the reference library."""

    @cache
    def tokens(name: str, batch: int) -> list[list[int]]:
        rig = rig_of(name)
        return [rig.greedy(p, NEW_TOKENS)[0] for p in prompts(demo, rig, name, batch)]

    return tokens


def prompts(demo: Path, rig: Rig, name: str, batch: int) -> list[list[int]]:
    if name == "embedded":
        cases = json.loads((demo / "golden.json").read_text(encoding="utf-8"))["cases"]
        return sorted((c["prompt_ids"] for c in cases), key=len)[:batch]
    draw = torch.Generator().manual_seed(11)
    return [torch.randint(1, tiny.VOCAB, (9 + 5 * n,), generator=draw).tolist() for n in range(batch)]


def check(name: str, case: Case, rig: Rig, demo: Path, wanted: Callable[[str, int], list[list[int]]]) -> SimRig:
    branches = [b.body for _, b in rig.model.moe_branches]
    experts = sum(b.experts.count for b in branches)
    least = 1
    if "split_misses" in case.off:  # then a step must find room for all it needs
        least = case.batch * max(b.router.top_k for b in branches)
    slots = max(least, round(case.size * experts))
    rows = (case.batch if case.batch in (1, 8) else 4,)
    sim = SimRig(rig, slots, case.share, order=case.order, prefill=case.prefill, off=case.off, decode_rows=rows)
    out = batch_greedy(sim, prompts(demo, rig, name, case.batch), NEW_TOKENS)
    assert sim.cache.take_faults() == 0
    assert out == wanted(name, case.batch), f"{name}: {case}"
    return sim


def family_cases(names: tuple[str, ...], cases: list[Case]) -> list[object]:
    known = [n for n in names if architecture(n) in registry()]
    return [pytest.param(n, c, id=f"{n}-{'-'.join(map(str, c))}") for n in known for c in cases]


@pytest.mark.parametrize(("name", "case"), family_cases(CORE[:1], PAIRS + SPECIAL))
def test_pairs(name: str, case: Case, rig_of: MakeRig, demo: Path, wanted: Callable) -> None:  # type: ignore[type-arg]
    check(name, case, rig_of(name), demo, wanted)


@pytest.mark.parametrize(("name", "case"), family_cases(FAMILIES, PAIRS[3:7:3] + SPECIAL[:1]))
def test_families(name: str, case: Case, rig_of: MakeRig, demo: Path, wanted: Callable) -> None:  # type: ignore[type-arg]
    check(name, case, rig_of(name), demo, wanted)


@pytest.mark.parametrize("case", [PAIRS[1], PAIRS[10]], ids=str)
def test_embedded(case: Case, rig_of: MakeRig, demo: Path, wanted: Callable) -> None:  # type: ignore[type-arg]
    sim = check("embedded", case, rig_of("embedded"), demo, wanted)
    counts = sim.cache.counts()
    assert counts.lookups and (case.size < 0.5 or (counts.hits and counts.filled)), "the cache was never used"


@pytest.mark.full
@pytest.mark.parametrize(("name", "case"), family_cases(FAMILIES, ALL + SPECIAL))
def test_everything(name: str, case: Case, rig_of: MakeRig, demo: Path, wanted: Callable) -> None:  # type: ignore[type-arg]
    check(name, case, rig_of(name), demo, wanted)


@pytest.mark.full
@pytest.mark.parametrize("case", PAIRS + SPECIAL, ids=str)
def test_embedded_everything(case: Case, rig_of: MakeRig, demo: Path, wanted: Callable) -> None:  # type: ignore[type-arg]
    check("embedded", case, rig_of("embedded"), demo, wanted)
