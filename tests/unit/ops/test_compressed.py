"""Pooling of windows, and attention to a window and to entries, against float64 loops over whole sequences."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ftc.ops.compressed import choose_entries, compressed_attention, pool_windows, window_attention
from tests.unit.ops.pages import Tables, close, ints, scalar

DIM, HEADS, WINDOW = 32, 3, 5


def entries_of(kv: Tensor, gate: Tensor, places: Tensor, overlap: bool) -> Tensor:
    """All entries of one sequence, float64."""
    rate, dim, found = places.shape[0], places.shape[1] // (2 if overlap else 1), []
    kv, gate = kv.double(), gate.double() + places.double().repeat(kv.shape[0] // rate + 1, 1)[: kv.shape[0]]
    for w in range(kv.shape[0] // rate):
        own = slice(w * rate, (w + 1) * rate)
        values, gates = kv[own, -dim:], gate[own, -dim:]
        if overlap and w:
            early = slice((w - 1) * rate, w * rate)
            values, gates = torch.cat((kv[early, :dim], values)), torch.cat((gate[early, :dim], gates))
        found.append((values * gates.softmax(0)).sum(0))
    return torch.stack(found)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("chunks", [(37,), (3, 9, 1, 1, 6, 17), (1,) * 37])
def test_windows_end_in_any_chunk(chunks: tuple[int, ...], overlap: bool) -> None:
    torch.manual_seed(1)
    rate, dim = 4, 6
    channels = dim * (2 if overlap else 1)
    kv, gate, places = torch.randn(37, channels), torch.randn(37, channels), torch.randn(rate, channels)
    pool, state = torch.full((3, 2, rate * (2 if overlap else 1), 2 * channels), float("nan")), ints(3, 0, 0, 0)
    want, at, source = entries_of(kv, gate, places, overlap), 0, -1
    for n, count in enumerate(chunks):
        target = n % 2  # a step reads one slot and may write another
        got = pool_windows(
            kv[at : at + count], gate[at : at + count], places, pool, state, scalar(1), ints(source), ints(target),
            ints(0, count), ints(at), overlap,
        )  # fmt: skip
        for row in range(count):
            w, rest = divmod(at + row + 1, rate)
            if rest:
                assert not got[row].any()
            else:
                close(got[row], want[w - 1])
        at, source = at + count, target
    assert int(state[1]) == 0 and pool[2].isnan().all() and pool[:, 0].isnan().all()


@pytest.mark.parametrize("rate", [4, 8, 32])
@pytest.mark.parametrize("choose", [False, True])
def test_attention_to_window_and_entries(rate: int, choose: bool) -> None:
    torch.manual_seed(2)
    tables, scale, total = Tables(1, 80), 0.4, 71
    shared, q, sinks = torch.randn(total, DIM), torch.randn(total, HEADS, DIM), torch.randn(HEADS)
    entry = torch.randn(total, DIM)
    kept = min(rate, 16)
    pool, entry_pool, entry_state = tables.pool(DIM), tables.pool(DIM // kept), tables.state.clone()
    chosen = torch.full((total, 2), -1, dtype=torch.int32)
    for row in range(total):
        some = torch.randperm((row + 1) // rate)[:2].int()
        chosen[row, : len(some)] = some
    at = 0
    for count in (30, 1, 1, 39):
        rows = slice(at, at + count)
        got = compressed_attention(
            q[rows], shared[rows], entry[rows], pool, tables.state, scalar(0), entry_pool, entry_state, scalar(1),
            *tables.step([count], [at]), scale, WINDOW, rate, sinks, chosen[rows] if choose else None,
        )  # fmt: skip
        for row in range(at, at + count):
            ended = [w for w in range((row + 1) // rate) if not choose or w in chosen[row].tolist()]
            keys = torch.cat((shared[max(0, row - WINDOW + 1) : row + 1], entry[[(w + 1) * rate - 1 for w in ended]])).double()
            for head in range(HEADS):
                logits = keys @ q[row, head].double() * scale
                share = torch.cat((logits, sinks[head : head + 1].double())).softmax(0)[:-1]
                close(got[row - at, head], share @ keys)
        at += count
    assert int(tables.state[1]) == int(entry_state[1]) == 0


def test_an_entry_lies_in_the_page_of_its_windows_last_token() -> None:
    """Or sequences that share the page before it, and differ in this one, would overwrite each other's entries."""
    tables, rate = Tables(1, 64), 32
    pool = tables.pool(DIM // 16, layers=1)
    rows = torch.randn(32, DIM)
    choose_entries(
        torch.randn(32, HEADS, DIM), rows, torch.rand(32, HEADS), pool, tables.state, scalar(0),
        *tables.step([32], [0]), 2, rate,
    )  # fmt: skip
    written = (~pool.isnan()).flatten(1).any(1).nonzero().flatten().tolist()
    assert written == [int(tables.pages[0, 1])]
    assert torch.equal(pool[tables.pages[0, 1].long(), 0].flatten(), rows[-1])


def test_choice_of_entries() -> None:
    torch.manual_seed(3)
    tables, rate, total, top_k = Tables(1, 48), 4, 45, 3
    q, entry, weights = torch.randn(total, HEADS, DIM), torch.randn(total, DIM), torch.randn(total, HEADS)
    pool, at, got = tables.pool(DIM // 4), 0, []
    for count in (17, 1, 27):
        rows = slice(at, at + count)
        got.append(choose_entries(q[rows], entry[rows], weights[rows], pool, tables.state, scalar(1),
                                  *tables.step([count], [at]), top_k, rate))  # fmt: skip
        at += count
    for row, numbers in enumerate(torch.cat(got)):
        keys = entry[rate - 1 : row + 1 : rate].double()
        score = ((keys @ q[row].double().T).relu() * weights[row].double()).sum(-1)
        best = score.topk(min(top_k, len(keys))).indices.tolist() if len(keys) else []
        assert sorted(i for i in numbers.tolist() if i >= 0) == sorted(best)


def test_window_alone() -> None:
    torch.manual_seed(4)
    tables, total = Tables(2, 32), 20
    shared, q, sinks, pool = torch.randn(total, DIM), torch.randn(total, HEADS, DIM), torch.randn(HEADS), tables.pool(DIM)
    got = window_attention(q, shared, pool, tables.state, scalar(0), *tables.step([12, 8], [0, 0]), 0.5, WINDOW, sinks)
    for first, end in ((0, 12), (12, 20)):
        for row in range(first, end):
            keys = shared[max(first, row - WINDOW + 1) : row + 1].double()
            for head in range(HEADS):
                share = torch.cat((keys @ q[row, head].double() * 0.5, sinks[head : head + 1].double())).softmax(0)[:-1]
                close(got[row, head], share @ keys)
