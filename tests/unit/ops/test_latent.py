"""Latent attention over pages against float64 multi-head attention with keys and values written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ftc.ops import latent
from ftc.ops.latent import latent_attention
from tests.unit.ops.pages import Tables, close, scalar

HEADS, PLAIN, SHARED, VALUE, LATENT = 3, 5, 4, 6, 7


def wanted(q: Tensor, entries: Tensor, up: Tensor, scale: float, selected: Tensor | None) -> Tensor:
    """q [n, nh, P + R] at the end of `entries` [t, L + R]: softmax attention over keys [t, nh, P + R] in float64."""
    n, t = q.shape[0], entries.shape[0]
    low, part = entries.double().split((LATENT, SHARED), -1)
    both = (low @ up.double().T).view(t, HEADS, PLAIN + VALUE)
    keys = torch.cat((both[..., :PLAIN], part.unsqueeze(1).expand(-1, HEADS, -1)), -1)
    out = torch.empty(n, HEADS, VALUE, dtype=torch.float64)
    for row in range(n):
        seen = list(range(t - n + row + 1))
        if selected is not None:
            seen = [i for i in seen if i in selected[row].tolist()]
        for head in range(HEADS):
            share = (keys[seen, head] @ q[row, head].double() * scale).softmax(0)
            out[row, head] = share @ both[seen, head, PLAIN:]
    return out


def run(counts: list[int], lengths: list[int], choose: bool) -> None:
    torch.manual_seed(0)
    tables, scale = Tables(len(counts), 80), 0.3
    pool, up = tables.pool(LATENT + SHARED), torch.randn(HEADS * (PLAIN + VALUE), LATENT)
    past = [torch.randn(n, LATENT + SHARED) for n in lengths]
    for s, rows in enumerate(past):
        for i, row in enumerate(rows):
            pool[tables.pages[s, i // 16].long(), 1, i % 16] = row
    q, entry = torch.randn(sum(counts), HEADS, PLAIN + SHARED), torch.randn(sum(counts), LATENT + SHARED)
    selected = None
    if choose:
        selected = torch.full((sum(counts), 4), -1, dtype=torch.int32)
        at = [length + i for count, length in zip(counts, lengths, strict=True) for i in range(count)]
        for row, position in enumerate(at):
            chosen = torch.randperm(position + 1)[:4].int()
            selected[row, : len(chosen)] = chosen
    pages, offsets, before = tables.step(counts, lengths)
    got = latent_attention(
        q, entry, up, pool, tables.state, scalar(1), pages, offsets, before, scale, VALUE, selected
    )
    start = 0
    for s, count in enumerate(counts):
        rows = slice(start, start + count)
        whole = torch.cat((past[s], entry[rows]))
        close(got[rows], wanted(q[rows], whole, up, scale, None if selected is None else selected[rows]))
        start += count
    assert int(tables.state[1]) == 0


@pytest.mark.parametrize("choose", [False, True])
@pytest.mark.parametrize(
    ("counts", "lengths"), [([1, 1, 1], [40, 0, 17]), ([33], [0]), ([20], [45]), ([3, 5], [60, 2])]
)
def test_attention_of_rows_and_chunks(counts: list[int], lengths: list[int], choose: bool) -> None:
    """Few rows over a long context leave keys in the latent, long chunks write them out: both must be the same thing."""
    run(counts, lengths, choose)


@pytest.mark.parametrize("length", [0, 45])
def test_logits_in_small_blocks_of_rows(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    monkeypatch.setattr(latent, "LOGITS", 500)
    run([33], [length], choose=False)


def test_a_page_that_is_not_live_is_a_fault() -> None:
    tables = Tables(1, 16)
    tables.state[0] = 0
    pool, up = tables.pool(LATENT + SHARED), torch.randn(HEADS * (PLAIN + VALUE), LATENT)
    got = latent_attention(
        torch.randn(1, HEADS, PLAIN + SHARED), torch.randn(1, LATENT + SHARED), up, pool, tables.state, scalar(0),
        *tables.step([1], [0]), 1.0, VALUE, None,
    )  # fmt: skip
    assert got.isnan().all() and int(tables.state[1]) == 1 and pool.isnan().all()
