"""Grouped-query attention: heads, rope, norms, gates, windows, sinks, and the choice of tokens."""

from __future__ import annotations

from typing import Literal

import msgspec

from ftc.errors import SpecError
from ftc.spec.cache import CacheGroup
from ftc.spec.norm import Norm
from ftc.spec.parameter import Parameter, norm_parameters, require_positive
from ftc.spec.rope import Rope


class Gate(msgspec.Struct, frozen=True):
    """Multiplies the attention output before the output projection.

    `source`: "query" (the query projection is doubled, each head [q | gate]) or "own" (its own projection).
    """

    activation: Literal["sigmoid", "softplus"] = "sigmoid"
    per: Literal["element", "head"] = "element"
    source: Literal["query", "own"] = "query"


class Indexer(msgspec.Struct, frozen=True):
    """Chooses the `top_k` earlier tokens a query attends to: sum over heads of w_h * relu(q_h . k).

    "full" layers compute the choice and put it into the carry; "shared" layers take the one the carry holds.
    Queries with fewer than top_k earlier tokens take all.
    """

    heads: int
    dim: int
    top_k: int
    mode: Literal["full", "shared"] = "full"


class Attention(msgspec.Struct, frozen=True, tag="attention"):
    """Grouped-query attention; `kv_heads` == `heads` is multi-head. `scale` None is head_dim ** -0.5."""

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
        return self.query_width + self.kv_heads * (self.head_dim + self.v_dim)

    def groups(self) -> tuple[CacheGroup, ...]:
        own = [CacheGroup(self.cache, "token", (self.kv_heads * (self.head_dim + self.v_dim),))]
        if self.indexer is not None and self.indexer.mode == "full":
            own.append(CacheGroup("index", "token", (self.indexer.dim,)))
        return tuple(own)

    def parameters(self, hidden: int) -> list[Parameter]:
        own = [Parameter("qkv", (self.qkv_width, hidden), linear=True)]
        if self.qkv_bias:
            own.append(Parameter("qkv_bias", (self.qkv_width,)))
        wide = self.qk_norm is not None and self.qk_norm.over == "projection"
        own += norm_parameters("q_norm", self.qk_norm, self.head_dim * (self.heads if wide else 1))
        own += norm_parameters("k_norm", self.qk_norm, self.head_dim * (self.kv_heads if wide else 1))
        if self.gate is not None and self.gate.source == "own":
            width = self.heads if self.gate.per == "head" else self.heads * self.v_dim
            own.append(Parameter("gate", (width, hidden), linear=True))
        if self.sinks:
            own.append(Parameter("sinks", (self.heads,), "float32"))
        i = self.indexer
        if i is not None and i.mode == "full":
            own += [
                Parameter("index_q", (i.heads * i.dim, hidden), linear=True),
                Parameter("index_k", (i.dim, hidden), linear=True),
                Parameter("index_weights", (i.heads, hidden), linear=True),
            ]
        own.append(Parameter("out", (hidden, self.heads * self.v_dim), linear=True))
        if self.out_bias:
            own.append(Parameter("out_bias", (hidden,)))
        return own

    def constants(self) -> dict[str, list[float]]:
        """Radians per position of each rope pair."""
        return {} if self.rope is None else {"rope": self.rope.frequencies()}

    def check(self, where: str) -> None:
        require_positive(where, heads=self.heads, kv_heads=self.kv_heads, head_dim=self.head_dim)
        if self.heads % self.kv_heads:
            near = max(k for k in range(1, self.kv_heads + 1) if self.heads % k == 0)
            raise SpecError(
                f"key/value heads do not divide the {self.heads} query heads",
                where=f"{where}: kv_heads",
                value=self.kv_heads,
                hint=f"the nearest that would is {near}",
            )
        if self.rope is not None:
            self.rope.check(where, self.head_dim)

    def step_flops(self) -> int:
        """Per token, besides linears."""
        return 0

    def context_flops(self) -> int:
        """Per token and token of context."""
        return 2 * self.heads * (self.head_dim + self.v_dim)

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
            (self.indexer is not None, f"top {self.indexer.top_k if self.indexer else 0} indexed tokens"),
        )
        return ", ".join([text, *(word for there, word in extras if there)])
