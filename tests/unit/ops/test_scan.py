"""The decayed scan against float64, in pieces and in batches, and what it does to slots that are not there."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ftc.ops.scan import decay_scan


def inputs(rows: int, key_heads: int, heads: int, dk: int, dv: int, per_key: bool) -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(rows + heads)
    q, k = (torch.randn(rows, key_heads, dk, generator=g) for _ in range(2))
    v = torch.randn(rows, heads, dv, generator=g)
    steps = torch.rand(rows, heads, generator=g)
    rates = -torch.rand(*((heads, dk) if per_key else (heads,)), generator=g)
    return q, k, v, steps, rates


def whole(q: Tensor, k: Tensor, v: Tensor, steps: Tensor, rates: Tensor) -> Tensor:
    """float64, without a recurrence: every token's share in every later one, written out."""
    q, k, v, steps, rates = (t.double() for t in (q, k, v, steps, rates))
    repeat = v.shape[1] // q.shape[1]
    q, k = q.repeat_interleave(repeat, 1), k.repeat_interleave(repeat, 1)
    rates = rates.unsqueeze(-1) if rates.dim() == 1 else rates
    until = (steps.unsqueeze(-1) * rates).cumsum(0)  # [N, heads, dk or 1]
    between = (until[:, None] - until[None]).clamp(max=0).exp()
    weights = torch.einsum("nhk,shk,nshk->hns", q, k, between.expand(-1, -1, -1, q.shape[2])).tril()
    return torch.einsum("hns,shv->nhv", weights, v * steps.unsqueeze(-1))


def run(
    pool: Tensor,
    parts: list[tuple[int, int]],
    slots_in: list[int],
    arguments: tuple[Tensor, ...],
    faults: int = 0,
    live: int = 4,
) -> Tensor:
    """Sequences are the row ranges `parts`, each with its slot; so many faults are expected."""
    q, k, v, steps, rates = arguments
    offsets = torch.tensor([parts[0][0], *(b for _, b in parts)], dtype=torch.int32)
    state = torch.tensor([live, 0, 0, 0], dtype=torch.int32)
    slots = torch.tensor(range(len(parts)), dtype=torch.int32)
    out = decay_scan(q, k, v, steps, rates, pool, state, torch.tensor(1, dtype=torch.int32),
                     torch.tensor(slots_in, dtype=torch.int32), slots, offsets)  # fmt: skip
    assert state[1] == faults
    return out


CASES = [
    pytest.param((2, 8, 16, 8, False), id="heads of one decay, two groups of keys"),
    pytest.param((4, 4, 8, 8, False), id="a key for each head"),
    pytest.param((1, 12, 4, 1, True), id="channels with a decay for each state element"),
]


@pytest.mark.parametrize("shape", CASES)
def test_against_float64(shape: tuple[int, int, int, int, bool]) -> None:
    arguments = inputs(150, *shape)
    pool = torch.full((4, 2, shape[1], shape[2], shape[3]), float("nan"))
    out = run(pool, [(0, 150)], [-1], arguments)
    assert torch.allclose(out.double(), whole(*arguments), atol=1e-4, rtol=1e-4)
    assert pool[0, 1].isfinite().all() and pool[0, 0].isnan().all() and pool[1:].isnan().all()


@pytest.mark.parametrize("shape", CASES)
def test_pieces_give_the_whole(shape: tuple[int, int, int, int, bool]) -> None:
    q, k, v, steps, rates = inputs(20, *shape)
    pool = torch.zeros((4, 2, shape[1], shape[2], shape[3]))
    expected = run(pool, [(0, 20)], [-1], (q, k, v, steps, rates))
    at, parts = 0, []
    for size in (7, 1, 12):
        piece = tuple(t[at : at + size] for t in (q, k, v, steps))
        parts.append(run(pool, [(0, size)], [-1 if at == 0 else 0], (*piece, rates)))
        at += size
    assert torch.allclose(torch.cat(parts), expected, atol=1e-5)


def test_sequences_in_one_batch_do_not_meet() -> None:
    shape = (2, 4, 8, 8, False)
    arguments = inputs(15, *shape)
    pool = torch.zeros((4, 2, 4, 8, 8))
    together = run(pool, [(0, 6), (6, 6), (6, 15)], [-1, -1, -1], arguments)
    one = tuple(t[:6] for t in arguments[:4])
    two = tuple(t[6:15] for t in arguments[:4])
    alone = [run(torch.zeros_like(pool), [(0, n)], [-1], (*a, arguments[4])) for n, a in ((6, one), (9, two))]
    assert torch.equal(together, torch.cat(alone))
    assert not pool[1].any()  # a sequence without rows is untouched


def test_a_slot_that_is_not_there_is_a_fault() -> None:
    out = run(torch.zeros((4, 2, 4, 8, 8)), [(0, 3)], [3], inputs(3, 2, 4, 8, 8, False), faults=1, live=2)
    assert out.isnan().all()
