"""Whether padding is left alone: every region is run twice, with zeros and with garbage in the rows that are nobody's."""

from __future__ import annotations

import torch
from torch import Tensor

from ftc.compile.program import Binder, Memory
from ftc.trace.inputs import Shape, Step
from ftc.trace.interpret import region_function
from ftc.trace.regions import Kind
from tests.rig import Rig

# Decode with two of four rows live, a chunk with ten of sixteen; the second sequence has tokens in the caches already.
CASES = {Shape(4, 4): (2, [0, 70]), Shape(16, 1): (10, [66])}


def check_padding(rig: Rig) -> None:
    """Raises AssertionError where garbage in padding rows changes a live row or an entry of a pool."""
    model = rig.model
    for shape, (live, lengths) in CASES.items():
        for kind in Binder(model, _memory(rig)).layout.kinds.values():
            clean, dirty = (_run(rig, kind, shape, live, lengths, garbage) for garbage in (False, True))
            assert clean.keys() == dirty.keys()
            for name in clean:
                assert torch.equal(clean[name], dirty[name]), f"{shape} {kind.name}: {name}"


def _memory(rig: Rig) -> Memory:
    pools = {name: (data, state) for name, (data, state) in rig.pools.tensors.items()}
    return Memory(rig.opened.outer, rig.opened.blocks, rig.opened.bank, pools)


def _run(rig: Rig, kind: Kind, shape: Shape, live: int, lengths: list[int], garbage: bool) -> dict[str, Tensor]:
    """Live rows of what the region returns, and all pools after it."""
    generator = torch.Generator().manual_seed(1)
    memory = _memory(rig)
    for data, state in memory.pools.values():
        data.copy_(torch.rand(data.shape, generator=generator) * 0.5)
        state[1] = 0
    block = next((i for i, b in enumerate(rig.model.blocks) if b == kind.block), None)
    step = _step(rig, shape, live, lengths, garbage)
    arguments = Binder(rig.model, memory).arguments(kind, block, step)
    wanted = {c.name: c for c in rig.model.carry()}
    for at, name in enumerate(kind.inputs):
        if name.startswith("carry."):
            c = wanted[name.removeprefix("carry.")]
            arguments[at] = _carry((shape.rows, *c.shape), c.dtype, rig.opened.dtype, live, garbage, generator)
    outputs = region_function(rig.model, kind)(*arguments)  # type: ignore[arg-type]
    rows = len(lengths) if kind.name == "head" else live
    result = {name: out[:rows].clone() for name, out in zip(kind.outputs, outputs, strict=True)}
    for name, (data, state) in memory.pools.items():
        assert int(state[1]) == 0, f"{kind.name}: {name} counted a fault"
        result |= {f"pool {name}": data.clone(), f"state {name}": state.clone()}
    for name, out in result.items():
        assert bool(torch.isfinite(out.float()).all()), f"{shape} {kind.name}: {name}"
    return result


def _carry(
    size: tuple[int, ...], dtype: str, run: torch.dtype, live: int, garbage: bool, generator: torch.Generator
) -> Tensor:
    if dtype == "int32":
        value = torch.randint(0, 2, size, generator=generator, dtype=torch.int32)
        value[live:] = 123_456_789 if garbage else -1
        return value
    value = torch.randn(size, generator=generator).to(run)
    value[live:] = float("nan") if garbage else 0.0
    return value


def _step(rig: Rig, shape: Shape, live: int, lengths: list[int], garbage: bool) -> Step:
    """The live sequences with pages and slots of their own; what is nobody's is zero, or as wrong as it can be."""
    step, seqs = Step(shape, 4), len(lengths)
    if garbage:
        for buffer in step.tensors().values():
            buffer.fill_(1_000_000)
        step.tokens.fill_(rig.model.vocab - 1)  # the one promise: a padding row's token is a token
        step.select.zero_()
    counts = [live] if seqs == 1 else [1] * seqs
    ends = torch.tensor(counts).cumsum(0).int()
    step.offsets[0], step.offsets[1 : seqs + 1], step.offsets[seqs + 1 :] = 0, ends, live
    step.rows[0] = live
    for s, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        rows = slice(int(ends[s]) - count, int(ends[s]))
        step.tokens[rows] = torch.arange(count, dtype=torch.int32) + 3
        step.positions[rows] = torch.arange(length, length + count, dtype=torch.int32)
        step.lengths[s] = length
        step.pages[s] = torch.tensor([2 * s, 2 * s + 1, -1, -1], dtype=torch.int32)
        step.state_in[s], step.state_out[s] = (s if length else -1), s
        step.select[s] = rows.stop - 1
    return step
