"""A spec with shared indices, four streams and two mixers in a layer: the whole line, against float64 written by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from ftc.compile.job import Plan
from ftc.spec.load import read_model
from ftc.trace.inputs import Shape
from tests import odd
from tests.rig import Rig

SHAPES = (Shape(2, 2), Shape(64, 1))
TEXT = [(27 * t + 5) % 64 for t in range(40)]  # no token twice: equal tokens tie in the first choice
RELATIVE = 1e-4


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Tensor]]:
    folder = tmp_path_factory.mktemp("odd")
    return folder, odd.write(folder)


@pytest.fixture(scope="module")
def wanted(checkpoint: tuple[Path, dict[str, Tensor]]) -> Tensor:
    model = odd.Odd(checkpoint[1])
    logits = model.logits(TEXT)
    assert model.margin > 1e-5, "a choice is too close to be compared"
    return logits


@pytest.fixture(scope="module", params=[False, True], ids=["uncompiled", "compiled"])
def rig(request: pytest.FixtureRequest, checkpoint: tuple[Path, dict[str, Tensor]]) -> Rig:
    return Rig(checkpoint[0], torch.float32, spec=odd.SPEC, compiled=request.param, shapes=SHAPES, context=128)


def error(ours: Tensor, theirs: Tensor) -> float:
    return float(((ours - theirs).abs().amax(-1) / theirs.abs().amax(-1)).max())


def test_the_checkpoint_tells_the_parts_apart(checkpoint: tuple[Path, dict[str, Tensor]], wanted: Tensor) -> None:
    """If a part did not matter to the logits, agreeing on them would say nothing about it."""
    _, tensors = checkpoint
    for part in ("blocks.1.mixer.out", "blocks.1.memory.out", "blocks.1.ffn.router", "blocks.0.mixer.index_weights",
                 "blocks.0.mixer.streams", "blocks.3.memory.streams_base", "final.streams"):  # fmt: skip
        changed = odd.Odd(tensors | {part: -tensors[part]}).logits(TEXT)
        assert error(changed, wanted) > 100 * RELATIVE, part


@pytest.mark.parametrize("chunk", [None, 7], ids=["whole", "chunks of 7"])
def test_prefill(rig: Rig, wanted: Tensor, chunk: int | None) -> None:
    line = rig.sequence()
    assert error(rig.prompt(line, TEXT, chunk, every=True), wanted) < RELATIVE
    rig.release(line)


def test_decode_beside_another_text(rig: Rig, wanted: Tensor, checkpoint: tuple[Path, dict[str, Tensor]]) -> None:
    other = TEXT[::-1][:25]
    theirs = odd.Odd(checkpoint[1]).logits(other)
    one, two = rig.sequence(), rig.sequence()
    for n, token in enumerate(TEXT):
        if n < len(other):
            rows = rig.decode([two, one], [other[n], token])
            assert error(rows[:1], theirs[n : n + 1]) < RELATIVE, n
        else:
            rows = rig.decode([one], [token])
        assert error(rows[-1:], wanted[n : n + 1]) < RELATIVE, n
    rig.release(one)
    rig.release(two)


def test_one_region_for_each_kind_and_one_more_carry_tensor(checkpoint: tuple[Path, dict[str, Tensor]]) -> None:
    model = read_model(checkpoint[0], odd.SPEC)
    assert [c.name for c in model.carry()] == ["residual", "indices"]
    job = Rig(checkpoint[0], torch.float32, spec=odd.SPEC, sequences=1, context=64).opened.job
    for shape in SHAPES:
        lowered = Plan(job).lower(shape, check=True)
        assert list(lowered.regions) == ["embed", "layer0", "layer1", "head"]
        for name in ("layer0", "layer1"):
            assert lowered.kinds[name].inputs[:2] == lowered.kinds[name].outputs == ("carry.residual", "carry.indices")
        assert [call.kind for call in lowered.schedule] == ["embed", *("layer0", "layer1") * 2, "head"]
