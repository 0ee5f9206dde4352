"""Programs and the sizes they were not compiled for: other pools and tables, and pools that shrink and grow between steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ftc.weights.banks import RECORD_BYTES
from tests import odd
from tests.rig import Line, Rig
from tests.unit.compile.conftest import CHANGES, open_rig

PROMPT = [(13 * t + 7) % 64 for t in range(30)]
NEW = 12


@pytest.fixture(params=["compiled", "uncompiled"])
def rig(request: pytest.FixtureRequest) -> Rig:
    return request.getfixturevalue(request.param)


def test_compiled_equals_float64(compiled: Rig) -> None:
    model = compiled.model
    tensors = odd.write(Path(compiled.opened.job.cache) / "again", **CHANGES)
    wanted = odd.Odd(tensors, **CHANGES).logits(PROMPT)
    line = compiled.sequence()
    logits = compiled.prompt(line, PROMPT, None, every=True)
    compiled.release(line)
    assert logits.shape == (len(PROMPT), model.vocab)
    assert float(((logits - wanted).abs().amax(-1) / wanted.abs().amax(-1)).max()) < 1e-4


def test_one_compilation_serves_every_memory_plan(folder_of: Callable[[int], Path], compiled: Rig) -> None:
    record = compiled.opened.bank["up"]
    assert record.stride(0) * record.element_size() % RECORD_BYTES == 0  # padded, as the traced stand-in was not
    tokens, logits = compiled.greedy(PROMPT, NEW)
    for sizes in (dict(context=64, sequences=2), dict(context=448, sequences=7)):
        other = open_rig(folder_of(4), compiled=True, **sizes)
        assert other.programs.compiled == 0
        assert other.pools.tensors["kv"][0].shape != compiled.pools.tensors["kv"][0].shape
        again, rows = other.greedy(PROMPT, NEW)
        assert again == tokens and torch.equal(rows, logits)


def test_pools_halved_and_regrown_between_steps(rig: Rig) -> None:
    wanted, rows = rig.greedy(PROMPT, NEW)
    before = [rig.sequence() for _ in range(3)]
    line = rig.sequence()  # behind three others, so that a shrink has to move it
    for other in before:
        rig.release(other)
    state = _state(rig)
    full = {name: live for name, (_, live, _) in rig.pools.counts().items()}
    logits = [rig.prompt(line, PROMPT, None)]
    out = [int(logits[-1].argmax())]
    moved = 0
    while len(out) < NEW:
        for name, live in full.items():
            moved += _resize(rig, line, name, live // 2 if len(out) % 2 else live)
        logits.append(rig.decode([line], [out[-1]]))
        out.append(int(logits[-1].argmax()))
    for name, live in full.items():
        rig.pools.resize(name, live)
    rig.release(line)
    assert moved >= 3, "nothing had to move: the test tests nothing"
    assert out == wanted and torch.equal(torch.cat(logits), rows)
    assert _state(rig) == state, "programs changed"


def test_a_chunk_is_continued_after_its_pages_moved(rig: Rig) -> None:
    wanted = rig.greedy(PROMPT, 1)[1]
    before, line = rig.sequence(), rig.sequence()
    rig.release(before)
    for start in range(0, len(PROMPT), 10):
        logits = rig.chunk(line, PROMPT[start : start + 10])
        for name in ("pages", "states"):
            live = rig.pools.counts()[name][1]
            _resize(rig, line, name, live // 2)
            _resize(rig, line, name, live)
    rig.release(line)
    # chunks of 10 where the other run had 16: sums are in another order
    assert float((logits - wanted).abs().max()) < 1e-4 * float(wanted.abs().max())


def _resize(rig: Rig, line: Line, name: str, live: int) -> int:
    moves = rig.pools.resize(name, live)
    if name == "pages":
        line.pages = [moves.get(p, p) for p in line.pages]
    else:
        line.slot = moves.get(line.slot, line.slot)
    return len(moves)


def _state(rig: Rig) -> Any:
    programs = rig.programs
    made = {shape: (id(p), {n: id(r) for n, r in p.regions.items()}) for shape, p in programs._made.items()}
    return made, programs.loaded, programs.compiled
