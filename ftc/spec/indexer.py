"""The choice of earlier tokens that a query attends to: a small scorer of its own beside the attention."""

from __future__ import annotations

from typing import Literal

import msgspec

from ftc.spec.norm import Norm
from ftc.spec.parameter import Parameter, norm_parameters, require_positive
from ftc.spec.rope import Rope


class Indexer(msgspec.Struct, frozen=True):
    """Chooses the `top_k` earlier tokens a query attends to: sum over heads of w_h * relu(q_h . k).

    "full" layers compute the choice and put it into the carry; "shared" layers take the one the carry holds.
    Queries with fewer than top_k earlier tokens take all. The one key of a token is normed, then turned.
    """

    heads: int
    dim: int
    top_k: int
    mode: Literal["full", "shared"] = "full"
    rope: Rope | None = None
    key_norm: Norm | None = None

    @property
    def scale(self) -> float:
        """On the weights: heads and widths of scorers are comparable then."""
        return self.dim**-0.5 * self.heads**-0.5

    def parameters(self, hidden: int, query_source: int) -> list[Parameter]:
        """What a full scorer learns; its queries are projected from `query_source` elements."""
        if self.mode == "shared":
            return []
        return [
            Parameter("index_q", (self.heads * self.dim, query_source), linear=True),
            Parameter("index_k", (self.dim, hidden), linear=True),
            *norm_parameters("index_k_norm", self.key_norm, self.dim),
            Parameter("index_weights", (self.heads, hidden), linear=True),
        ]

    def constants(self) -> dict[str, list[float]]:
        """Radians per position of each rope pair."""
        return {} if self.rope is None or self.mode == "shared" else {"index_rope": self.rope.frequencies()}

    def check(self, where: str) -> None:
        require_positive(where, heads=self.heads, dim=self.dim, top_k=self.top_k)
        if self.rope is not None:
            self.rope.check(where, self.dim)

    def context_flops(self) -> int:
        """Per token and token it chooses from."""
        return 2 * self.heads * self.dim if self.mode == "full" else 0
