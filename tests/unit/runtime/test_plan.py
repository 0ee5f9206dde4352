"""Pages and slots from a budget: counted here by hand from the shapes of the groups."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
import torch

from ftc.errors import TargetError
from ftc.runtime import plan as plan_module
from ftc.runtime.plan import PAGE_TOKENS, cache_budget, pages_for, plan
from ftc.runtime.pools import Pools
from ftc.spec.load import read_model
from ftc.spec.model import Model

GIB = 1 << 30


@pytest.fixture
def model(demo: Path) -> Model:
    return read_model(demo)


# The embedded model: two attention layers of 2 heads x (64 + 64), six delta layers with 8 x 64 x 64 float32 and 1024 x 3.
PAGE_BYTES = 2 * 64 * 256 * 2
SLOT_BYTES = 6 * (8 * 64 * 64 * 4 + 1024 * 3 * 2)


def test_plenty_is_all_requests_at_full_context(model: Model) -> None:
    made = plan(model, torch.bfloat16, GIB, 8, None)
    assert (made.context_tokens, made.max_running, made.slots) == (4096, 8, 8)
    assert (made.pages, made.pages_reserved, made.pages_per_sequence) == (512, 512, 64)


def test_less_memory_gives_fewer_pages_and_keeps_the_reserve(model: Model) -> None:
    made = plan(model, torch.bfloat16, 8 * SLOT_BYTES + 100 * PAGE_BYTES + 5, 8, None)
    assert (made.pages, made.pages_reserved, made.context_tokens) == (100, 512, 4096)


def test_a_context_nobody_asked_for_is_cut_to_what_fits(model: Model) -> None:
    made = plan(model, torch.bfloat16, 8 * SLOT_BYTES + 10 * PAGE_BYTES, 8, None)
    assert (made.pages, made.context_tokens, made.pages_reserved) == (10, 640, 80)


def test_a_context_that_was_asked_for_is_not_cut(model: Model) -> None:
    budget = 8 * SLOT_BYTES + 10 * PAGE_BYTES
    assert plan(model, torch.bfloat16, budget, 8, 640).context_tokens == 640
    with pytest.raises(TargetError, match=r"need 7\.0 MiB.* room for 6\.9 MiB"):
        plan(model, torch.bfloat16, budget, 8, 641)
    with pytest.raises(TargetError, match="--context.*4096.*4097"):
        plan(model, torch.bfloat16, GIB, 8, 4097)


@pytest.mark.parametrize("budget", [-5, 0, SLOT_BYTES * 8, SLOT_BYTES * 8 + PAGE_BYTES - 1])
def test_not_even_a_page_is_an_error(model: Model, budget: int) -> None:
    with pytest.raises(TargetError, match="caches need"):
        plan(model, torch.bfloat16, budget, 8, None)


def test_float32_counts_double_where_the_group_runs_in_it(model: Model) -> None:
    budget = 4 * 6 * (8 * 64 * 64 * 4 + 1024 * 3 * 4) + 50 * 2 * PAGE_BYTES
    assert plan(model, torch.float32, budget, 4, None).pages == 50


def test_the_plan_is_what_the_pools_take(model: Model) -> None:
    made = plan(model, torch.bfloat16, GIB, 8, None)
    tensors = Pools(model.cache_groups(), torch.bfloat16, made).tensors.values()
    assert sum(data.numel() * data.element_size() for data, _ in tensors) == 8 * SLOT_BYTES + 512 * PAGE_BYTES


def test_a_model_without_attention_needs_no_pages(model: Model) -> None:
    recurrent = msgspec.structs.replace(model, blocks=tuple(block for i, block in enumerate(model.blocks) if i % 4 != 3))
    made = plan(recurrent, torch.bfloat16, 8 * SLOT_BYTES, 8, None)
    assert (made.pages, made.context_tokens) == (512, 4096)


def test_pages_for_rounds_up() -> None:
    assert [pages_for(n) for n in (0, 1, PAGE_TOKENS, PAGE_TOKENS + 1)] == [0, 1, 1, 2]


def test_the_budget_stays_inside_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = plan_module._left_in_container
    assert left(tmp_path) == math.inf
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert left(tmp_path) == math.inf
    (tmp_path / "memory.max").write_text("5000\n")
    assert left(tmp_path) == 4000
    (tmp_path / "memory.max").write_text("500\n")
    assert left(tmp_path) == 0
    monkeypatch.setattr(plan_module, "_left_in_container", lambda: 4000)
    assert cache_budget() == 2000
