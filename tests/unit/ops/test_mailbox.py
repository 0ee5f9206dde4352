"""The CPU's side of the mailbox, asked as a GPU would ask: answers equal the reference, asleep, awake and when late."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ftc.errors import EngineError
from ftc.ops import native
from ftc.ops.cuda.mailbox import Worker
from ftc.ops.routed import LATE, expert_rows

pytestmark = pytest.mark.skipif(not native.available(), reason="the native library is not built")

EXPERTS, LAYERS, WIDTH, HIDDEN, ROWS, TOP_K = 6, 2, 48, 64, 3, 2


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    before = native.threads()
    yield
    native.set_threads(before)


def ask(mail: dict[str, torch.Tensor], ids: list[int], x: torch.Tensor, layer: int, number: int) -> None:
    mail["x"][: len(x)] = x
    mail["ids"][: len(ids)] = torch.tensor(ids, dtype=torch.int32)
    mail["note"][:4] = torch.tensor([layer, len(x), TOP_K, 0], dtype=torch.int32)
    mail["note"][4] = number


def answered(mail: dict[str, torch.Tensor], number: int) -> bool:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if int(mail["note"][5]) == number:
            return True
        time.sleep(0.0005)
    return False


def make_bank(dtype: torch.dtype, width: int) -> dict[str, torch.Tensor]:
    elements = 3 * width * HIDDEN
    memory = (torch.randn(EXPERTS * LAYERS, elements) / 8).to(dtype)
    return {m: torch.as_strided(memory, (EXPERTS * LAYERS, width, HIDDEN), (elements, HIDDEN, 1), i * width * HIDDEN)
            for i, m in enumerate(("gate", "up", "down"))}  # fmt: skip


def make_mail(rows: int) -> dict[str, torch.Tensor]:
    return {"x": torch.zeros(rows, HIDDEN), "ids": torch.full((rows * TOP_K,), -1, dtype=torch.int32),
            "rows": torch.full((rows * TOP_K, HIDDEN), float("nan")), "note": torch.zeros(8, dtype=torch.int32)}  # fmt: skip


def compare(mail: dict[str, torch.Tensor], bank: dict[str, torch.Tensor], ids: list[int], x: torch.Tensor, layer: int) -> None:
    chosen = torch.tensor(ids).view(len(x), TOP_K)
    want = expert_rows(
        x, chosen + layer * EXPERTS, chosen, chosen >= 0, bank["gate"], bank["up"], bank["down"], "silu", 0.0, 0.0, None, None,
        None,
    ).flatten(0, 1)  # fmt: skip
    for route, e in enumerate(ids):
        if e >= 0:
            assert torch.allclose(mail["rows"][route], want[route], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("awake", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_answers_equal_the_reference(awake: bool, dtype: torch.dtype) -> None:
    bank, mail = make_bank(dtype, WIDTH), make_mail(8)
    worker = Worker(mail, bank, EXPERTS, "silu", 0.0, 0.0)
    try:
        if awake:
            worker.begin()
        for number, ids in enumerate(([3, -1, 0, 5, -1, 3], [-1, 1, -1, -1, 4, 4]), 1):
            x, layer = torch.randn(ROWS, HIDDEN), number % LAYERS
            ask(mail, ids, x, layer, number)
            assert answered(mail, number), "no answer"
            compare(mail, bank, ids, x, layer)
        worker.end()
        told = worker.times()
        assert [n for n, _ in told] == [4, 3] and all(0 < s < 1 for _, s in told)
        assert worker.times() == []
    finally:
        worker.stop()


def tasks() -> set[str]:
    return {p.name for p in Path("/proc/self/task").iterdir()}


def test_it_is_warm_before_the_first_question() -> None:
    native.set_threads(2)
    before = tasks()
    mail = make_mail(64)
    worker = Worker(mail, make_bank(torch.float32, WIDTH), EXPERTS, "silu", 0.0, 0.0)
    try:
        there = tasks()
        assert len(there - before) >= 2, "its thread and that thread's team run"
        assert worker.times() == [] and mail["note"].tolist() == [0] * 8 and bool(mail["rows"].isnan().all())
        ask(mail, [1, 2] * 64, torch.randn(64, HIDDEN), 0, 1)
        assert answered(mail, 1)
        assert not tasks() - there, "the first answer starts no thread"
    finally:
        worker.stop()


def test_a_slow_answer_is_never_taken_for_the_next_one() -> None:
    # the GPU has given question 1 up and asks the next one over it while the worker still computes the first (6 Gflop)
    native.set_threads(1)
    bank, mail = make_bank(torch.float32, 8192), make_mail(1024)
    worker = Worker(mail, bank, EXPERTS, "silu", 0.0, 0.0)
    try:
        worker.begin()
        ask(mail, [n % EXPERTS for n in range(2048)], torch.randn(1024, HIDDEN), 0, 1)
        time.sleep(0.005)
        assert int(mail["note"][5]) == 0, "the first answer was to be slow"
        x, ids = torch.randn(ROWS, HIDDEN), [0, 1, 2, 3, 4, 5]
        ask(mail, ids, x, 1, 2)
        assert answered(mail, 2), "no answer"
        compare(mail, bank, ids, x, 1)
        assert [n for n, _ in worker.times()] == [2048, 6]
    finally:
        worker.stop()


def test_a_question_given_up_fails_the_step() -> None:
    mail = make_mail(8)
    worker = Worker(mail, make_bank(torch.float32, WIDTH), EXPERTS, "silu", 0.0, 0.0)
    worker.stop()  # a dead worker
    worker.check()
    ask(mail, [3, -1, 0, 5, -1, 3], torch.zeros(ROWS, HIDDEN), 1, 7)
    worker.check()
    mail["note"][LATE] = 7  # as the sum does when its patience ends
    with pytest.raises(EngineError, match=r"CPU branch: .*question 7 in time .*last asked 7, last answered 0.*layer 1, 3 rows"):
        worker.check()
    mail["note"][LATE] = 0
    worker.check()
