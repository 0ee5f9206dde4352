"""Grouped-query attention: heads, rope, norms, gates, windows, sinks, and the choice of tokens."""

from __future__ import annotations

from typing import Literal

import msgspec

from ftc.errors import SpecError
from ftc.spec.blocks import BlockIndexer
from ftc.spec.cache import CacheGroup
from ftc.spec.indexer import Indexer
from ftc.spec.norm import Norm
from ftc.spec.parameter import Parameter, norm_parameters, require_divisor, require_positive
from ftc.spec.rope import Rope


class Gate(msgspec.Struct, frozen=True):
    """Multiplies the attention output before the output projection.

    `source`: "query" (the query projection is doubled, each head [q | gate]) or "own" (its own projection).
    """

    activation: Literal["sigmoid", "softplus"] = "sigmoid"
    per: Literal["element", "head"] = "element"
    source: Literal["query", "own"] = "query"


class Temperature(msgspec.Struct, frozen=True):
    """Queries grow with their position p: times 1 + scale * ln(1 + floor((p + 1) / floor))."""

    floor: int
    scale: float


class Attention(msgspec.Struct, frozen=True, tag="attention"):
    """Grouped-query attention; `kv_heads` == `heads` is multi-head. `scale` None is head_dim ** -0.5.

    `clip` > 0 limits queries, keys and values to -clip..clip, after norms and before rope. `value_scale` multiplies values.
    `value_norm` and `out_norm` are over each head of values and results. `chunk` > 0: only keys of the query's own chunk of
    that many tokens. `shares_cache`: no keys and values of its own, those of the last earlier layer in its cache group.
    At most one of `chunk`, `indexer` (chooses tokens) and `block_indexer` (chooses blocks of tokens) may be there.
    """

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int | None = None
    rope: Rope | None = None
    qk_norm: Norm | None = None
    qk_norm_at: Literal["before_rope", "after_rope"] = "before_rope"
    gate: Gate | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    scale: float | None = None
    window: int = 0
    softcap: float = 0.0
    sinks: bool = False
    indexer: Indexer | None = None
    block_indexer: BlockIndexer | None = None
    clip: float = 0.0
    value_scale: float = 1.0
    value_norm: Norm | None = None
    out_norm: Norm | None = None
    temperature: Temperature | None = None
    chunk: int = 0
    shares_cache: bool = False
    cache: str = "kv"

    @property
    def v_dim(self) -> int:
        return self.head_dim if self.value_dim is None else self.value_dim

    @property
    def query_width(self) -> int:
        """Columns of the query projection: twice the heads where the gate rides in it."""
        doubled = self.gate is not None and self.gate.source == "query"
        return self.heads * self.head_dim * (2 if doubled else 1)

    @property
    def qkv_width(self) -> int:
        return self.query_width + (0 if self.shares_cache else self.kv_heads) * (self.head_dim + self.v_dim)

    def groups(self) -> tuple[CacheGroup, ...]:
        own = [CacheGroup(self.cache, "token", (self.kv_heads * (self.head_dim + self.v_dim),))]
        if self.indexer is not None and self.indexer.mode == "full":
            own.append(CacheGroup("index", "token", (self.indexer.dim,)))
        if self.block_indexer is not None:
            own.append(CacheGroup("block_index", "token", (self.block_indexer.dim,)))
        return tuple(own)

    def parameters(self, hidden: int) -> list[Parameter]:
        own = [Parameter("qkv", (self.qkv_width, hidden), linear=True)]
        if self.qkv_bias:
            own.append(Parameter("qkv_bias", (self.qkv_width,)))
        wide = self.qk_norm is not None and self.qk_norm.over == "projection"
        own += norm_parameters("q_norm", self.qk_norm, self.head_dim * (self.heads if wide else 1))
        if not self.shares_cache:
            own += norm_parameters("k_norm", self.qk_norm, self.head_dim * (self.kv_heads if wide else 1))
            own += norm_parameters("v_norm", self.value_norm, self.v_dim)
        own += norm_parameters("out_norm", self.out_norm, self.v_dim)
        if self.gate is not None and self.gate.source == "own":
            width = self.heads if self.gate.per == "head" else self.heads * self.v_dim
            own.append(Parameter("gate", (width, hidden), linear=True))
        if self.sinks:
            own.append(Parameter("sinks", (self.heads,), "float32"))
        if self.indexer is not None:
            own += self.indexer.parameters(hidden, hidden)
        if self.block_indexer is not None:
            own += self.block_indexer.parameters(hidden)
        own.append(Parameter("out", (hidden, self.heads * self.v_dim), linear=True))
        if self.out_bias:
            own.append(Parameter("out_bias", (hidden,)))
        return own

    def constants(self) -> dict[str, list[float]]:
        """Radians per position of each rope pair."""
        own = {} if self.rope is None else {"rope": self.rope.frequencies()}
        return own if self.indexer is None else own | self.indexer.constants()

    def check(self, where: str) -> None:
        require_positive(where, heads=self.heads, kv_heads=self.kv_heads, head_dim=self.head_dim)
        what = f"key/value heads do not divide the {self.heads} query heads"
        require_divisor(where, self.heads, what, kv_heads=self.kv_heads)
        if self.rope is not None:
            self.rope.check(where, self.head_dim)
        if self.indexer is not None:
            self.indexer.check(where)
        if self.block_indexer is not None:
            self.block_indexer.check(where, self.heads)
        choices = {"chunk": self.chunk > 0, "indexer": self.indexer, "block_indexer": self.block_indexer}
        given = [name for name, there in choices.items() if there]
        if len(given) > 1:
            raise SpecError("only one thing may choose what a query attends to", where=where, value=given)

    def step_flops(self) -> int:
        """Per token, besides linears."""
        return 0

    def context_flops(self) -> int:
        """Per token and token of context."""
        scorers = 0 if self.block_indexer is None else 2 * self.block_indexer.heads * self.block_indexer.dim
        return 2 * self.heads * (self.head_dim + self.v_dim) + scorers

    def describe(self) -> str:
        text = f"attention, {self.heads} heads and {self.kv_heads} key/value heads of {self.head_dim}"
        if self.v_dim != self.head_dim:
            text += f" (values {self.v_dim})"
        text += ", no rope" if self.rope is None else f", rope on {self.rope.dim} with theta {self.rope.theta:g}"
        extras = (
            (self.qk_norm is not None, "query and key norms"),
            (self.gate is not None, "output gate"),
            (self.window > 0, f"window {self.window}"),
            (self.sinks, "sinks"),
            (self.clip > 0, f"clipped to {self.clip:g}"),
            (self.indexer is not None, f"top {self.indexer.top_k if self.indexer else 0} indexed tokens"),
        )
        if self.block_indexer is not None:
            b = self.block_indexer
            text += f", {b.top_k} of the blocks of {b.block} tokens by {b.heads} scorers"
        return ", ".join([text, *(word for there, word in extras if there)])
