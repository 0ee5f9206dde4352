"""What a step feeds to regions: static device buffers for tokens, positions, offsets, tables and state slots."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Shape(NamedTuple):
    """A compiled shape: `rows` tokens of at most `seqs` sequences. Decode has rows == seqs; a prefill chunk seqs == 1."""

    rows: int
    seqs: int

    @property
    def mode(self) -> str:
        return "decode" if self.rows == self.seqs else "prefill"

    def __str__(self) -> str:
        return f"{self.mode}-{self.rows}"


class Step:
    """The int32 input buffers of one program; a step fills them, regions read them.

    tokens [N]      token ids; rows from rows[0] on are padding and may hold anything legal
    positions [N]   position of each row in its sequence
    offsets [S+1]   rows of sequence s are offsets[s] .. offsets[s+1]-1; empty sequences are padding
    lengths [S]     tokens of the sequence that the caches hold before this step
    pages [S, P]    page numbers of the sequence, in order; -1 where none
    state_in [S]    slot the recurrent state is read from; -1 is a fresh (zero) state
    state_out [S]   slot it is written to
    select [S]      row whose logits are wanted, per sequence (padding: 0)
    rows [1]        live rows, equal to offsets[S]
    """

    NAMES = ("tokens", "positions", "offsets", "lengths", "pages", "state_in", "state_out", "select", "rows")

    def __init__(self, shape: Shape, pages: int, device: str = "cpu") -> None:
        def zeros(*size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.int32, device=device)

        n, s = shape
        self.shape = shape
        self.tokens, self.positions = zeros(n), zeros(n)
        self.offsets, self.lengths = zeros(s + 1), zeros(s)
        self.pages = torch.full((s, pages), -1, dtype=torch.int32, device=device)
        self.state_in, self.state_out, self.select = zeros(s), zeros(s), zeros(s)
        self.rows = zeros(1)

    def tensors(self) -> dict[str, Tensor]:
        """Name -> buffer, in the order of NAMES."""
        return {name: getattr(self, name) for name in self.NAMES}
