"""The CPU's side of the mailbox, asked as a GPU would ask: answers equal the reference, asleep as awake."""

from __future__ import annotations

import time

import pytest
import torch

from ftc.ops import native
from ftc.ops.cuda.mailbox import Worker
from ftc.ops.routed import expert_rows

pytestmark = pytest.mark.skipif(not native.available(), reason="the native library is not built")

EXPERTS, LAYERS, WIDTH, HIDDEN, ROWS, TOP_K = 6, 2, 48, 64, 3, 2


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


@pytest.mark.parametrize("awake", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_answers_equal_the_reference(awake: bool, dtype: torch.dtype) -> None:
    elements = 3 * WIDTH * HIDDEN
    memory = (torch.randn(EXPERTS * LAYERS, elements) / 8).to(dtype)
    bank = {m: torch.as_strided(memory, (EXPERTS * LAYERS, WIDTH, HIDDEN), (elements, HIDDEN, 1), i * WIDTH * HIDDEN)
            for i, m in enumerate(("gate", "up", "down"))}  # fmt: skip
    mail = {"x": torch.zeros(8, HIDDEN), "ids": torch.full((16,), -1, dtype=torch.int32),
            "rows": torch.full((16, HIDDEN), float("nan")), "note": torch.zeros(8, dtype=torch.int32)}  # fmt: skip
    worker = Worker(mail, bank, EXPERTS, "silu", 0.0, 0.0)
    try:
        if awake:
            worker.begin()
        for number, ids in enumerate(([3, -1, 0, 5, -1, 3], [-1, 1, -1, -1, 4, 4]), 1):
            x, layer = torch.randn(ROWS, HIDDEN), number % LAYERS
            ask(mail, ids, x, layer, number)
            assert answered(mail, number), "no answer"
            chosen = torch.tensor(ids).view(ROWS, TOP_K)
            want = expert_rows(
                x, chosen + layer * EXPERTS, chosen, chosen >= 0, bank["gate"], bank["up"], bank["down"], "silu", 0.0, 0.0,
                None, None, None,
            ).flatten(0, 1)  # fmt: skip
            for route, e in enumerate(ids):
                if e >= 0:
                    assert torch.allclose(mail["rows"][route], want[route], rtol=1e-4, atol=1e-5)
        worker.end()
        told = worker.times()
        assert [n for n, _ in told] == [4, 3] and all(0 < s < 1 for _, s in told)
        assert worker.times() == []
    finally:
        worker.stop()
