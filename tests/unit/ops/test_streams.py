"""The mixture of residual streams against float64 loops, and what makes it doubly stochastic."""

from __future__ import annotations

import math

import torch

from ftc.ops.streams import doubly_stochastic
from tests.unit.ops.pages import close


def test_against_loops() -> None:
    torch.manual_seed(0)
    logits, n, eps = torch.randn(3, 4, 4), 4, 1e-3
    for case, got in zip(logits.tolist(), doubly_stochastic(logits, 3, eps), strict=True):
        m = [[math.exp(v) / sum(map(math.exp, row)) + eps for v in row] for row in case]
        for step in ("columns", "rows", "columns", "rows", "columns"):
            if step == "rows":
                m = [[v / (sum(row) + eps) for v in row] for row in m]
            else:
                sums = [sum(m[i][j] for i in range(n)) + eps for j in range(n)]
                m = [[m[i][j] / sums[j] for j in range(n)] for i in range(n)]
        close(got, torch.tensor(m, dtype=torch.float64))


def test_rows_and_columns_sum_to_one() -> None:
    torch.manual_seed(1)
    m = doubly_stochastic(torch.randn(5, 4, 4), 20, 1e-6)
    assert (m.sum(-1) - 1).abs().max() < 1e-3 and (m.sum(-2) - 1).abs().max() < 1e-5 and m.min() > 0
