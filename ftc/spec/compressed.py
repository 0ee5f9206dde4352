"""Compressed attention: a window of recent tokens beside learned summaries of everything before, one for every few tokens."""

from __future__ import annotations

import math

import msgspec

from ftc.errors import SpecError
from ftc.spec.cache import CacheGroup
from ftc.spec.indexer import Indexer
from ftc.spec.norm import RMSNorm
from ftc.spec.parameter import Parameter, norm_parameters, require_divisor, require_positive
from ftc.spec.rope import Rope

# An entry is kept in the page of the last token of its window, in the rows of this many tokens at most: pages are a
# multiple of it, so an entry never lies in two pages, of which one could be shared and the other not.
ENTRY_ROWS = 16


class Compressor(msgspec.Struct, frozen=True):
    """Pools every `rate` tokens into one entry: per channel, a softmax over the window of gates plus a learned bias by place.

    `overlap`: each token gives two candidates, one to its own window's entry and one to the next window's, so an entry
    pools 2 * rate tokens. `indexer` lets a query attend to top_k entries (it has entries of its own width to score), else
    to all whose window has ended.
    """

    rate: int
    overlap: bool = False
    indexer: Indexer | None = None

    def channels(self, dim: int) -> int:
        """Elements a token gives to entries of `dim`."""
        return dim * (2 if self.overlap else 1)

    @property
    def rows(self) -> int:
        """Tokens whose cache rows hold one entry."""
        return math.gcd(self.rate, ENTRY_ROWS)

    @property
    def held(self) -> int:
        """Tokens that are kept until their entries are made."""
        return self.rate * (2 if self.overlap else 1)

    @property
    def widths(self) -> tuple[tuple[str, int], ...]:
        """(name prefix, entry width) of the scorer's entries."""
        return () if self.indexer is None else (("index_", self.indexer.dim),)

    def groups(self, dim: int) -> tuple[CacheGroup, ...]:
        own = []
        for prefix, width in (("", dim), *self.widths):
            own.append(CacheGroup(f"{prefix}entry_{self.rate}", "token", (width // self.rows,)))
            own.append(CacheGroup(f"{prefix}pooling_{self.rate}", "sequence", (self.held, 2 * self.channels(width))))
        return tuple(own)


class CompressedAttention(msgspec.Struct, frozen=True, tag="compressed_attention"):
    """Attention of many query heads to one vector per token that is key and value at once, with a sink logit per head.

    A query sees the last `window` tokens and, with a `compressor`, entries for what its sequence held so far. Queries come
    through a latent. What rope turned in the values is turned back in the output, by the query's position. Heads fall into
    `out_groups`, each with its own projection to `out_rank`, before the common output projection.
    """

    heads: int
    head_dim: int
    query_latent: int
    window: int
    rope: Rope
    norm: RMSNorm
    out_groups: int
    out_rank: int
    compressor: Compressor | None = None
    cache: str = "shared"

    @property
    def pool_parts(self) -> tuple[int, ...]:
        """Columns of the compressor's projection: candidates and gates, then those of the scorer's entries."""
        if self.compressor is None:
            return ()
        return tuple(
            self.compressor.channels(w) for _, w in (("", self.head_dim), *self.compressor.widths) for _ in range(2)
        )

    def groups(self) -> tuple[CacheGroup, ...]:
        own = (CacheGroup(self.cache, "token", (self.head_dim,)),)
        return own if self.compressor is None else own + self.compressor.groups(self.head_dim)

    def parameters(self, hidden: int) -> list[Parameter]:
        own = [
            Parameter("in", (self.query_latent + self.head_dim, hidden), linear=True),
            *norm_parameters("query_norm", self.norm, self.query_latent),
            Parameter("query", (self.heads * self.head_dim, self.query_latent), linear=True),
            *norm_parameters("shared_norm", self.norm, self.head_dim),
            Parameter("sinks", (self.heads,), "float32"),
        ]
        c = self.compressor
        if c is not None:
            own.append(Parameter("pool", (sum(self.pool_parts), hidden), linear=True))
            for prefix, width in (("", self.head_dim), *c.widths):
                own.append(Parameter(f"{prefix}places", (c.rate, c.channels(width)), "float32"))
                own += norm_parameters(f"{prefix}entry_norm", self.norm, width)
            if c.indexer is not None:
                own.append(Parameter("index_q", (c.indexer.heads * c.indexer.dim, self.query_latent), linear=True))
                own.append(Parameter("index_weights", (c.indexer.heads, hidden), linear=True))
        inner = self.out_groups * self.out_rank
        own.append(Parameter("group_out", (inner, self.heads * self.head_dim // self.out_groups), linear=True))
        own.append(Parameter("out", (hidden, inner), linear=True))
        return own

    def constants(self) -> dict[str, list[float]]:
        """Radians per position of each rope pair."""
        return {"rope": self.rope.frequencies()}

    def check(self, where: str) -> None:
        require_positive(where, heads=self.heads, head_dim=self.head_dim, query_latent=self.query_latent,
                         window=self.window, out_groups=self.out_groups, out_rank=self.out_rank)  # fmt: skip
        self.rope.check(where, self.head_dim)
        require_divisor(where, self.heads, f"groups do not divide the {self.heads} heads", out_groups=self.out_groups)
        c = self.compressor
        if c is None:
            return
        require_positive(where, rate=c.rate)
        if c.indexer is not None:
            c.indexer.check(where)
            self.rope.check(where, c.indexer.dim)
        for _, width in (("", self.head_dim), *c.widths):
            if width % c.rows:
                raise SpecError(
                    f"an entry of a window of {c.rate} tokens must have a multiple of {c.rows} elements",
                    where=f"{where}: compressor.rate",
                    value=width,
                )

    def step_flops(self) -> int:
        """Per token, besides linears: the window, and the entries an indexer chose, which do not grow."""
        indexer = None if self.compressor is None else self.compressor.indexer
        return 4 * self.heads * self.head_dim * (self.window + (0 if indexer is None else indexer.top_k))

    def context_flops(self) -> int:
        """Per token and token of context."""
        c = self.compressor
        if c is None:
            return 0
        return (4 * self.heads * self.head_dim if c.indexer is None else c.indexer.context_flops()) // c.rate

    def describe(self) -> str:
        text = f"attention to shared keys and values, {self.heads} heads of {self.head_dim}, window {self.window}"
        if self.compressor is not None:
            text += f", an entry for every {self.compressor.rate} tokens"
            if self.compressor.indexer is not None:
                text += f", top {self.compressor.indexer.top_k} of them"
        return text + f", rope on {self.rope.dim} with theta {self.rope.theta:g}, sinks"
