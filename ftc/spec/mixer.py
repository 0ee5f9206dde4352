"""Token mixers: attention over a paged cache, recurrent mixers over a state, and what hangs on them."""

from __future__ import annotations

from typing import Literal

import msgspec

from ftc.spec.cache import CacheGroup
from ftc.spec.norm import GatedRMSNorm, Norm
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


class GatedDelta(msgspec.Struct, frozen=True, tag="gated_delta"):
    """Gated delta rule with a short causal convolution before it (Yang et al. 2024, "Gated Delta Networks").

    State per sequence: value_heads * key_dim * value_dim float32, and (conv_width - 1) columns of the convolution.
    `decay_per`: one decay per head, or per key channel.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int
    norm: GatedRMSNorm
    decay_per: Literal["head", "channel"] = "head"

    @property
    def conv_channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def in_width(self) -> int:
        """Columns of the fused input projection [q k v | z | b | a]."""
        decays = self.value_heads * (self.key_dim if self.decay_per == "channel" else 1)
        return self.conv_channels + self.value_heads * self.value_dim + self.value_heads + decays

    def groups(self) -> tuple[CacheGroup, ...]:
        return (
            CacheGroup("conv", "sequence", (self.conv_channels, self.conv_width - 1)),
            CacheGroup("delta", "sequence", (self.value_heads, self.key_dim, self.value_dim), "float32"),
        )


Mixer = Attention | GatedDelta
