"""The source algebra against torch: random expressions over random tensors, through the reader and its buffers."""

from __future__ import annotations

import itertools
import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from ftc.errors import CheckpointError
from ftc.spec.weights import (
    Concat,
    Reshape,
    Slice,
    Source,
    Stack,
    Tensor,
    Transpose,
    concat,
    reshape,
    rows,
    transpose,
)
from ftc.weights import reader
from ftc.weights.checkpoint import open_checkpoint
from ftc.weights.pieces import expand
from ftc.weights.reader import Reader

EXPERTS = 3


class Drawn:
    """A random expression and the tensors it reads; values are small whole numbers, exact in every type."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.tensors: dict[str, torch.Tensor] = {}
        self.count = itertools.count()
        self.source, self.shape = self.expression(draw(st.integers(0, 4)))

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def leaf(self, shape: tuple[int, ...], stacked: bool = False) -> Source:
        name = f"t{next(self.count)}" + (".{e}" if stacked else "")
        dtype = self.draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
        for e in range(EXPERTS if stacked else 1):
            self.tensors[name.replace("{e}", str(e))] = torch.randint(-9, 9, shape).to(dtype)
        return Tensor(name)

    def expression(self, depth: int) -> tuple[Source, tuple[int, ...]]:
        if depth == 0:
            shape = tuple(self.number(1, 5) for _ in range(self.number(1, 3)))
            if self.number(0, 2) == 0:
                return Stack(self.leaf(shape, stacked=True)), (EXPERTS, *shape)
            return self.leaf(shape), shape
        source, shape = self.expression(depth - 1)
        dim = self.number(0, len(shape) - 1)
        match self.draw(st.sampled_from(["concat", "slice", "transpose", "reshape"])):
            case "concat":
                size = self.number(1, 3)
                other = self.leaf((*shape[:dim], size, *shape[dim + 1 :]))
                parts = (source, other) if self.number(0, 1) else (other, source)
                return Concat(parts, dim), (*shape[:dim], shape[dim] + size, *shape[dim + 1 :])
            case "slice":
                step = self.number(1, 3)
                start = self.number(0, shape[dim] - 1)
                size = self.number(1, (shape[dim] - start - 1) // step + 1)
                return Slice(source, dim, start, size, step), (*shape[:dim], size, *shape[dim + 1 :])
            case "transpose" if len(shape) > 1:
                return Transpose(source), (*shape[:-2], shape[-1], shape[-2])
            case _:
                n = math.prod(shape)
                first = self.draw(st.sampled_from([d for d in range(1, n + 1) if n % d == 0]))
                new = self.draw(st.sampled_from([(n,), (first, n // first), (first, 1, n // first), (1, n)]))
                return Reshape(source, new), new

    def result(self, source: Source, e: int = 0) -> torch.Tensor:
        """What torch makes of it, in float32."""
        match source:
            case Tensor(name=name):
                return self.tensors[name.replace("{e}", str(e))].float()
            case Stack(part=part):
                return torch.stack([self.result(part, k) for k in range(EXPERTS)])
            case Concat(parts=parts, dim=dim):
                return torch.cat([self.result(p) for p in parts], dim)
            case Slice(part=part, dim=dim, start=start, size=size, step=step):
                index = torch.arange(start, start + (size - 1) * step + 1, step)
                return self.result(part).index_select(dim, index)
            case Transpose(part=part):
                return self.result(part).transpose(-1, -2)
            case Reshape(part=part, shape=shape):
                return self.result(part).reshape(shape)
        raise AssertionError(source)


@pytest.mark.parametrize("scratch_bytes", [16 << 20, 48])
@given(data=st.data())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_expressions(monkeypatch: pytest.MonkeyPatch, scratch_bytes: int, data: st.DataObject) -> None:
    monkeypatch.setattr(reader, "SCRATCH_BYTES", scratch_bytes)
    monkeypatch.setattr(reader, "SKIM_BYTES", 8)
    drawn = data.draw(st.composite(Drawn)())
    expected = drawn.result(drawn.source)
    assert tuple(expected.shape) == drawn.shape
    with tempfile.TemporaryDirectory() as folder:
        save_file(drawn.tensors, Path(folder) / "model.safetensors")
        checkpoint = open_checkpoint(Path(folder))
        pieces = expand(drawn.source, {n: t.shape for n, t in checkpoint.tensors.items()}, EXPERTS)
        assert pieces.shape == drawn.shape
        with Reader(checkpoint) as opened:
            for dtype in (torch.float32, torch.bfloat16):
                out = torch.full(drawn.shape, float("nan"), dtype=dtype)
                opened.fill(pieces, out)
                assert torch.equal(out.float(), expected)
            # The same into a transposed, gapped place, and nothing beside it.
            wide = torch.full((*reversed(drawn.shape), 2), float("nan"))
            place = wide[..., 0].permute(tuple(reversed(range(len(drawn.shape)))))
            opened.fill(pieces, place)
            assert torch.equal(place, expected) and wide[..., 1].isnan().all()


def test_every_element_is_written_once() -> None:
    source = rows(concat("a", transpose("b"), dim=1), 1, 3, dim=0, step=2)
    pieces = expand(source, {"a": (6, 2), "b": (5, 6)}, 0)
    seen = torch.zeros(pieces.shape)
    for p in pieces.items:
        seen[tuple(slice(a, a + n) for a, n in zip(p.at, p.view.shape, strict=True))] += 1
    assert pieces.shape == (3, 7) and (seen == 1).all()


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (concat("a", "b"), "b: cannot be joined along dimension 0 with a of shape [6, 2] (got [5, 6])"),
        (concat("a", "v"), "v: cannot be joined"),
        (concat("a", "a", dim=2), "a: cannot be joined along dimension 2"),
        (rows("a", 4, 3), "a: too small for 3 entries of dimension 0 from 4 (got [6, 2])"),
        (rows("v", 0, 1, dim=1), "v: too small"),
        (rows("a", 0, 0), "a: too small"),
        (transpose("v"), "v: has too few dimensions"),
        (reshape("a", 5), "a: cannot take the shape [5] (got [6, 2])"),
    ],
)
def test_shapes_that_do_not_go_together(source: Source, words: str) -> None:
    with pytest.raises(CheckpointError) as e:
        expand(source, {"a": (6, 2), "b": (5, 6), "v": (4,)}, 0)
    assert words in str(e.value)


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(1000)}, path)
    checkpoint = open_checkpoint(tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    with Reader(checkpoint) as opened, pytest.raises(CheckpointError, match="became shorter") as e:
        opened.fill(expand(Tensor("a"), {"a": (1000,)}, 0), torch.empty(1000))
    assert "model.safetensors" in str(e.value)
