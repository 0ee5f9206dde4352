"""Attention to chosen blocks: the choice against the reference library's indexer, the attention against a plain mask."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers.models.minimax_m3_vl.modeling_minimax_m3_vl import MiniMaxM3VLIndexer, MiniMaxM3VLTextConfig

from ftc.ops.attention import attention, choose_blocks
from tests.unit.ops.pages import Tables, close, scalar

DIM, SCORERS, TOKENS = 8, 2, 50


class Plain(MiniMaxM3VLIndexer):
    """The reference's choice alone: queries and keys are given."""

    def __init__(self, block: int, top_k: int, local: int) -> None:
        super().__init__(
            MiniMaxM3VLTextConfig(
                hidden_size=DIM,
                index_n_heads=SCORERS,
                index_head_dim=DIM,
                index_block_size=block,
                index_topk_blocks=top_k,
                index_local_blocks=local,
            ),
            0,
        )
        del self.q_proj, self.k_proj
        self.q_norm = self.k_norm = torch.nn.Identity()

    def choose(self, q: Tensor, k: Tensor) -> Tensor:
        positions = torch.arange(q.shape[0])[None]
        still = torch.ones(1, q.shape[0], DIM), torch.zeros(1, q.shape[0], DIM)
        self.q_proj = lambda _: q.flatten(1)[None]
        self.k_proj = lambda _: k[None]
        return self(q.new_empty(1, q.shape[0], DIM), still, None, positions)[0].transpose(0, 1)


def choose(table: Tables, pool: Tensor, q: Tensor, k: Tensor, parts: list[int], setting: tuple[int, int, int]) -> Tensor:
    found, start = [], 0
    for n in parts:
        step = table.step([n], [start])
        rows = slice(start, start + n)
        found.append(choose_blocks(q[rows], k[rows], pool, table.state, scalar(1), *step, *setting))
        start += n
    return torch.cat(found)


@pytest.mark.parametrize("setting", [(4, 3, 1), (8, 2, 2), (16, 4, 1), (5, 12, 1)], ids=str)
@pytest.mark.parametrize("parts", [[TOKENS], [7, 1, 20, 22], [1] * TOKENS], ids=["whole", "chunks", "token by token"])
def test_choice(setting: tuple[int, int, int], parts: list[int]) -> None:
    q, k = torch.randn(TOKENS, SCORERS, DIM), torch.randn(TOKENS, DIM)
    table = Tables(1, TOKENS)
    got = choose(table, table.pool(DIM), q, k, parts, setting)
    expected = Plain(*setting).choose(q, k)
    count = -(-TOKENS // setting[0])
    assert got.shape == (TOKENS, SCORERS, setting[1]) and table.state[1] == 0
    for n in range(TOKENS):
        for g in range(SCORERS):
            ours, theirs = (sorted(i for i in t[n, g].tolist() if i >= 0) for t in (got, expected))
            assert ours == theirs, f"row {n}, scorer {g}"
            assert n // setting[0] in ours and len(ours) == min(setting[1], n // setting[0] + 1, count)


def test_attention_sees_only_its_blocks() -> None:
    heads, kv_heads, dim, block = 4, 2, 16, 4
    q, k, v = torch.randn(TOKENS, heads, dim), torch.randn(TOKENS, kv_heads, dim), torch.randn(TOKENS, kv_heads, dim)
    selected = torch.stack([
        torch.stack([torch.randperm(n // block + 1)[:2] if n >= block else torch.tensor([0, -1]) for _ in range(SCORERS)])
        for n in range(TOKENS)
    ]).int()  # fmt: skip
    selected[:, :, 0] = torch.arange(TOKENS)[:, None] // block  # never without a key
    table = Tables(1, TOKENS)
    step = table.step([TOKENS], [0])
    pool = table.pool(kv_heads * 2 * dim)
    got = attention(q, k, v, pool, table.state, scalar(0), *step, 0.25, 0, 0.0, None, selected, block)
    expected = torch.zeros(TOKENS, heads, dim, dtype=torch.float64)
    for n in range(TOKENS):
        for h in range(heads):
            own = set(selected[n, h // (heads // SCORERS)].tolist())
            keys = [t for t in range(n + 1) if t // block in own]
            g = h // (heads // kv_heads)
            weights = (k[keys, g].double() @ q[n, h].double() * 0.25).softmax(0)
            expected[n, h] = weights @ v[keys, g].double()
    close(got, expected, 1e-5)
