"""The lowering survives the compiler: order of starts, joins and what runs between, no copy of slots, equal tokens."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor.utils import run_and_get_code

from ftc.compile.inductor import compile_graph, load_compiled
from ftc.compile.program import Binder, Program
from ftc.compile.sim import SimPrograms, poison
from ftc.runtime.cache.experts import ExpertCache
from ftc.runtime.cache.split import Costs
from ftc.target import sim_target
from ftc.trace.inputs import Shape, Step
from tests.gpu.placement import TABLE, Small

SHAPE = Shape(4, 4)
ORDER = (
    "slot_map", "cpu_submit", "cpu_run", "slot_fill", "slot_experts", "event_wait", "slot_experts", "event_wait", "combine",
)  # fmt: skip


class Compiled:
    """Stands for SimPrograms: one decode program whose regions went through the compiler, run in program order."""

    decode_rows = (4,)

    def __init__(self, small: Small, folder: Path) -> None:
        self.cache = ExpertCache(small.model, small.bank, 10, 12, 8, 8, Costs.share(0.5))
        memory = small.memory("cpu", self.cache.inputs)
        poison(self.cache.inputs)
        sim = SimPrograms(small.model, memory, TABLE, sim_target(2, False), torch.float32, "streamed", "host")
        lowered, self.code = sim.lower(SHAPE), {}
        regions = dict(lowered.regions)
        for name in ("layer0",):  # the kind with experts; the others are as on a CPU
            graph = lowered.regions[name]
            example = [torch.empty_strided(v.shape, v.stride(), dtype=v.dtype) for v in
                       (n.meta["val"] for n in graph.graph.nodes if n.op == "placeholder")]  # fmt: skip
            _, (self.code[name], *_) = run_and_get_code(compile_graph, graph, example, 1, folder / name)
            regions[name] = load_compiled(folder / name)
        step, binder = Step(SHAPE, TABLE), Binder(small.model, memory)
        self._program = Program(binder, SHAPE, step, regions, lowered.segments, lowered.kinds)

    def decode(self, rows: int) -> Any:
        return self._program


@pytest.fixture(scope="module")
def small() -> Small:
    return Small()


@pytest.fixture(scope="module")
def made(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        return Compiled(small, tmp_path_factory.mktemp("regions"))


def test_order_in_the_generated_code(made: Compiled) -> None:
    code = made.code["layer0"].split("def call(")[1]
    seen = re.findall(r"torch\.ops\.ftc\.(\w+)\.", code)
    at = -1
    for word in ORDER:
        assert word in seen[at + 1 :], f"{word} is missing behind {seen[: at + 1]}"
        at = seen.index(word, at + 1)


def test_no_copy_of_slots_bank_or_mailbox(made: Compiled) -> None:
    code = made.code["layer0"].split("def call(")[1]
    assert "clone" not in code and ".copy_(" not in code


def test_equal_tokens(small: Small, made: Compiled) -> None:
    from ftc.compile.programs import Programs
    from ftc.ops import kernels

    plain = Programs(small.model, small.memory("cpu", {}), TABLE, kernels.bind(2), None)
    assert small.greedy(made, 3, False) == small.greedy(plain, 3, False)
    counts = made.cache.counts()
    assert counts.filled and counts.on_cpu and counts.hits
