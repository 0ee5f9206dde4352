"""Page tables and pools for tests of context ops: shuffled pages, NaN where nothing may be read, a history by hand."""

from __future__ import annotations

import torch
from torch import Tensor


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def scalar(value: int) -> Tensor:
    return torch.tensor(value, dtype=torch.int32)


class Tables:
    """Sequences of up to `tokens` tokens each over pages of `size` tokens in shuffled order; `state` is a pool's."""

    def __init__(self, sequences: int, tokens: int, size: int = 16, seed: int = 0) -> None:
        per = -(-tokens // size)
        self.size, self.count = size, sequences * per
        order = torch.randperm(self.count, generator=torch.Generator().manual_seed(seed)).int()
        self.pages = order.view(sequences, per)
        self.state = ints(self.count, 0, 0, 0)

    def pool(self, *elements: int, layers: int = 2) -> Tensor:
        return torch.full((self.count, layers, self.size, *elements), float("nan"))

    def step(self, counts: list[int], lengths: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """(pages, offsets, lengths) as ops take them."""
        return self.pages, ints(0, *torch.tensor(counts).cumsum(0).tolist()), ints(*lengths)


def close(got: Tensor, want: Tensor, tolerance: float = 2e-6) -> None:
    assert torch.isfinite(got).all()
    error = (got.double() - want).abs().max().item() / want.abs().max().item()
    assert error <= tolerance, f"relative error {error:.2e} above {tolerance:.0e}"
