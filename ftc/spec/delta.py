"""Gated delta rule: a recurrent mixer with a matrix state, and the short convolution before it."""

from __future__ import annotations

from typing import Literal

import msgspec

from ftc.spec.cache import CacheGroup
from ftc.spec.norm import GatedRMSNorm
from ftc.spec.parameter import Parameter, require_divisor, require_positive

# Multiplications and additions for each state element and token: decay 1, read 2, correct 2, query 2.
FLOPS_PER_ELEMENT = 7


class GatedDelta(msgspec.Struct, frozen=True, tag="gated_delta"):
    """Gated delta rule with a short causal convolution before it (Yang et al. 2024, "Gated Delta Networks").

    State per sequence: value_heads * key_dim * value_dim float32, and (conv_width - 1) columns of the convolution.
    `decay_per`: one decay per head, or per key channel. `decay_floor` below 0 bounds its logarithm:
    floor * sigmoid(exp(log_decay) * (a + bias)); else it is -exp(log_decay) * softplus(a + bias).
    `decay_rank`, `gate_rank`: decays and output gate come through a projection of this rank.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int
    norm: GatedRMSNorm
    decay_per: Literal["head", "channel"] = "head"
    decay_floor: float = 0.0
    decay_rank: int | None = None
    gate_rank: int | None = None

    @property
    def conv_channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def decays(self) -> int:
        return self.value_heads * (self.key_dim if self.decay_per == "channel" else 1)

    @property
    def in_parts(self) -> tuple[int, int, int, int]:
        """Columns of the fused input projection: [q k v | gate or its rank | b | decays or their rank]."""
        gate = self.value_heads * self.value_dim if self.gate_rank is None else self.gate_rank
        return self.conv_channels, gate, self.value_heads, self.decays if self.decay_rank is None else self.decay_rank

    def groups(self) -> tuple[CacheGroup, ...]:
        return (
            CacheGroup("conv", "sequence", (self.conv_channels, self.conv_width - 1)),
            CacheGroup("delta", "sequence", (self.value_heads, self.key_dim, self.value_dim), "float32"),
        )

    def parameters(self, hidden: int) -> list[Parameter]:
        inner = self.value_heads * self.value_dim
        own = [Parameter("in", (sum(self.in_parts), hidden), linear=True)]
        if self.gate_rank is not None:
            own.append(Parameter("gate_up", (inner, self.gate_rank), linear=True))
        if self.decay_rank is not None:
            own.append(Parameter("decay_up", (self.decays, self.decay_rank), linear=True))
        return [
            *own,
            Parameter("conv", (self.conv_channels, self.conv_width)),
            Parameter("log_decay", (self.value_heads,), "float32"),
            Parameter("decay_bias", (self.decays,), "float32"),
            Parameter("inner_norm", (self.value_dim,)),
            Parameter("out", (hidden, inner), linear=True),
        ]

    def constants(self) -> dict[str, list[float]]:
        return {}

    def check(self, where: str) -> None:
        require_positive(where, key_heads=self.key_heads, value_heads=self.value_heads, key_dim=self.key_dim,
                         value_dim=self.value_dim, conv_width=self.conv_width, decay_rank=self.in_parts[3],
                         gate_rank=self.in_parts[1])  # fmt: skip
        what = f"key heads do not divide the {self.value_heads} value heads"
        require_divisor(where, self.value_heads, what, key_heads=self.key_heads)

    def step_flops(self) -> int:
        """Per token, besides linears."""
        state = self.value_heads * self.key_dim * self.value_dim
        return FLOPS_PER_ELEMENT * state + 2 * self.conv_channels * self.conv_width

    def context_flops(self) -> int:
        return 0

    def describe(self) -> str:
        heads = f"{self.value_heads} value and {self.key_heads} key heads of {self.key_dim} x {self.value_dim}"
        return f"gated delta, {heads}, a decay per {self.decay_per}, convolution {self.conv_width}"
