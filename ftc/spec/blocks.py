"""The choice of blocks of earlier tokens that the heads of a query attend to."""

from __future__ import annotations

import msgspec

from ftc.errors import SpecError
from ftc.spec.norm import Norm
from ftc.spec.parameter import Parameter, norm_parameters, require_divisor, require_positive


class BlockIndexer(msgspec.Struct, frozen=True):
    """Each of `heads` scorers chooses the `top_k` blocks of `block` tokens with the largest q . k of any token in them.

    Scorers serve equal shares of the query heads. Blocks are counted from the start of the sequence; the query's own and
    the `local` - 1 before it are always taken. Queries and the one key of a token are normed and turned as the layer's.
    """

    heads: int
    dim: int
    block: int
    top_k: int
    local: int = 1
    norm: Norm | None = None

    def parameters(self, hidden: int) -> list[Parameter]:
        return [
            Parameter("index_q", (self.heads * self.dim, hidden), linear=True),
            Parameter("index_k", (self.dim, hidden), linear=True),
            *norm_parameters("index_q_norm", self.norm, self.dim),
            *norm_parameters("index_k_norm", self.norm, self.dim),
        ]

    def check(self, where: str, heads: int) -> None:
        require_positive(where, heads=self.heads, dim=self.dim, block=self.block, top_k=self.top_k, local=self.local)
        what = f"scorers do not divide the {heads} query heads"
        require_divisor(where, heads, what, **{"block_indexer.heads": self.heads})
        if self.local > self.top_k:
            raise SpecError(
                f"more local blocks than the {self.top_k} taken", where=f"{where}: block_indexer.local", value=self.local
            )
