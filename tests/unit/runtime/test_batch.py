"""What stands in the step buffers, against buffers filled from nothing as the Step docstring says."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ftc.engine.messages import Sampling, Submit
from ftc.runtime.batch import Batch
from ftc.runtime.request import Request
from ftc.trace.inputs import Shape, Step

PAGES = 6


def request(length: int, computed: int, pages: list[int], slot: int) -> Request:
    tokens = [length * 100 + i for i in range(length)]
    made = Request(Submit(id="", tokens=tokens, sampling=Sampling(), max_tokens=1), 0, 0.0)
    made.computed, made.pages, made.slot = computed, pages, slot
    return made


def buffers(step: Step) -> dict[str, list]:
    return {name: tensor.tolist() for name, tensor in step.tensors().items()}


def expected_decode(requests: list[Request], seqs: int) -> dict[str, list]:
    n = len(requests)
    none = [-1] * PAGES
    return {
        "lengths": [r.computed for r in requests] + [0] * (seqs - n),
        "offsets": [min(s, n) for s in range(seqs + 1)],
        "pages": [(r.pages + none)[:PAGES] for r in requests] + [none] * (seqs - n),
        "state_in": [r.slot if r.computed else -1 for r in requests] + [-1] * (seqs - n),
        "state_out": [r.slot for r in requests] + [-1] * (seqs - n),
        "select": [*range(n)] + [0] * (seqs - n),
        "rows": [n],
    }


def test_decode_rows_come_go_grow_and_move() -> None:
    chance = random.Random(1)
    step = Step(Shape(4, 4), PAGES)
    step.pages.fill_(3)  # a step that was used before
    batch = Batch(step.shape, step)
    alive: list[Request] = []
    for number in range(300):
        if len(alive) < 4 and chance.random() < 0.4:
            computed = chance.choice([0, 1, 70])
            alive.insert(chance.randint(0, len(alive)), request(computed + 1, computed, [number], chance.randint(0, 9)))
        if alive and chance.random() < 0.3:
            alive.remove(chance.choice(alive))
        for one in alive:
            if chance.random() < 0.2 and len(one.pages) < PAGES:
                one.pages += [number]
            if chance.random() < 0.1:  # its pages were moved
                one.pages = [page + 1 for page in one.pages]
        if not alive:
            continue
        batch.fill_decode(alive)
        got = buffers(step)
        expected = expected_decode(alive, 4)
        assert {name: got[name] for name in expected} == expected
        assert got["tokens"][: len(alive)] == [r.tokens[-1] for r in alive]
        assert got["positions"][: len(alive)] == [r.computed for r in alive]


@pytest.mark.parametrize(("computed", "count"), [(0, 8), (8, 8), (64, 3), (0, 1)])
def test_a_chunk(computed: int, count: int) -> None:
    step = Step(Shape(8, 1), PAGES)
    batch = Batch(step.shape, step)
    batch.fill_chunk(request(30, 0, [1, 2, 3, 4, 5], 7), 8)
    one = request(computed + count, computed, [5, 4], 2)
    batch.fill_chunk(one, count)
    got = buffers(step)
    assert got["tokens"] == one.tokens[computed:] + [0] * (8 - count)
    assert got["positions"] == [*range(computed, computed + count)] + [0] * (8 - count)
    assert got["pages"] == [[5, 4, -1, -1, -1, -1]]
    assert (got["offsets"], got["lengths"], got["rows"], got["select"]) == ([0, count], [computed], [count], [count - 1])
    assert (got["state_in"], got["state_out"]) == ([2 if computed else -1], [2])
    before = {name: values for name, values in got.items() if name not in ("pages", "state_in", "state_out")}
    one.pages, one.slot = [0, 1], 3
    batch.move_chunk(one)
    after = buffers(step)
    assert after["pages"] == [[0, 1, -1, -1, -1, -1]]
    assert (after["state_in"], after["state_out"]) == ([3 if computed else -1], [3])
    assert {name: after[name] for name in before} == before


def test_a_row_that_stays_writes_only_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Step(Shape(1, 1), PAGES)
    batch = Batch(step.shape, step)
    one = request(1, 0, [1, 2], 0)
    batch.fill_decode([one])
    step.pages.fill_(9)
    one.pages.append(3)
    batch.fill_decode([one])
    assert step.pages.tolist() == [[9, 9, 3, 9, 9, 9]]
    assert np.shares_memory(step.pages.numpy(), batch._views["pages"])
