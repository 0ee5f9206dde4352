"""Latent attention: keys and values of all heads are projected from one small vector per token, which is what is cached."""

from __future__ import annotations

import msgspec

from ftc.errors import SpecError
from ftc.spec.attention import Gate
from ftc.spec.cache import CacheGroup
from ftc.spec.indexer import Indexer
from ftc.spec.norm import RMSNorm
from ftc.spec.parameter import Parameter, norm_parameters, require_positive
from ftc.spec.rope import Rope


class LatentAttention(msgspec.Struct, frozen=True, tag="latent_attention"):
    """Multi-head latent attention. A head's query is [plain | turned], `plain_dim` and `rope_dim` wide.

    A token leaves `latent` + rope_dim elements: the normed latent times `latent_scale`, and one key part that all heads
    share (turned by `rope`, or as it is without one). Queries come through a latent of their own where `query_latent`.
    `scale` None is (plain_dim + rope_dim) ** -0.5.
    """

    heads: int
    latent: int
    plain_dim: int
    rope_dim: int
    value_dim: int
    norm: RMSNorm
    query_latent: int | None = None
    rope: Rope | None = None
    scale: float | None = None
    latent_scale: float = 1.0
    gate: Gate | None = None
    indexer: Indexer | None = None
    cache: str = "latent"

    @property
    def head_dim(self) -> int:
        """Elements of a head's query."""
        return self.plain_dim + self.rope_dim

    @property
    def query_in(self) -> int:
        """Rows of the input projection that belong to the queries, or to their latent."""
        return self.heads * self.head_dim if self.query_latent is None else self.query_latent

    @property
    def in_width(self) -> int:
        """Rows of the fused input projection [query or its latent | latent | rope]."""
        return self.query_in + self.latent + self.rope_dim

    def groups(self) -> tuple[CacheGroup, ...]:
        own = [CacheGroup(self.cache, "token", (self.latent + self.rope_dim,))]
        if self.indexer is not None and self.indexer.mode == "full":
            own.append(CacheGroup("index", "token", (self.indexer.dim,)))
        return tuple(own)

    def parameters(self, hidden: int) -> list[Parameter]:
        own = [Parameter("in", (self.in_width, hidden), linear=True)]
        if self.query_latent is not None:
            own += norm_parameters("query_norm", self.norm, self.query_latent)
            own.append(Parameter("query", (self.heads * self.head_dim, self.query_latent), linear=True))
        own += norm_parameters("latent_norm", self.norm, self.latent)
        own.append(Parameter("up", (self.heads * (self.plain_dim + self.value_dim), self.latent), linear=True))
        if self.indexer is not None:
            own += self.indexer.parameters(hidden, hidden if self.query_latent is None else self.query_latent)
        if self.gate is not None:
            width = self.heads if self.gate.per == "head" else self.heads * self.value_dim
            own.append(Parameter("gate", (width, hidden), linear=True))
        own.append(Parameter("out", (hidden, self.heads * self.value_dim), linear=True))
        return own

    def constants(self) -> dict[str, list[float]]:
        """Radians per position of each rope pair."""
        own = {} if self.rope is None else {"rope": self.rope.frequencies()}
        return own if self.indexer is None else own | self.indexer.constants()

    def check(self, where: str) -> None:
        require_positive(where, heads=self.heads, latent=self.latent, plain_dim=self.plain_dim, rope_dim=self.rope_dim,
                         value_dim=self.value_dim, query_latent=self.query_in)  # fmt: skip
        if self.rope is not None:
            self.rope.check(where, self.rope_dim)
            if self.rope.dim != self.rope_dim:
                raise SpecError(f"rope must turn all {self.rope_dim} elements", where=f"{where}: rope", value=self.rope.dim)
        if self.gate is not None and self.gate.source != "own":
            raise SpecError("the gate of latent attention has its own projection", where=f"{where}: gate", value="query")
        if self.indexer is not None:
            self.indexer.check(where)

    def step_flops(self) -> int:
        """Per token, besides linears: attention to what an indexer chose, which does not grow."""
        return 0 if self.indexer is None else self.indexer.top_k * self._flops_per_key

    def context_flops(self) -> int:
        """Per token and token of context."""
        return self._flops_per_key if self.indexer is None else self.indexer.context_flops()

    @property
    def _flops_per_key(self) -> int:
        """With keys and values left in the latent."""
        return 2 * self.heads * (2 * self.latent + self.rope_dim)

    def describe(self) -> str:
        text = f"latent attention, {self.heads} heads of {self.plain_dim} + {self.rope_dim} (values {self.value_dim})"
        text += f", latent {self.latent}"
        if self.query_latent is not None:
            text += f", query latent {self.query_latent}"
        text += ", no rope" if self.rope is None else f", rope with theta {self.rope.theta:g}"
        if self.gate is not None:
            text += f", output gate per {self.gate.per}"
        if self.indexer is not None:
            text += f", top {self.indexer.top_k} indexed tokens ({self.indexer.mode})"
        return text
