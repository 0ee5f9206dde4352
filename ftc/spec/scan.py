"""Mixers whose state is a decayed sum of products of keys and values: selective scans, and attention with fixed decays."""

from __future__ import annotations

import msgspec

from ftc.spec.cache import CacheGroup
from ftc.spec.norm import GatedRMSNorm, RMSNorm
from ftc.spec.parameter import Parameter, norm_parameters, require_divisor, require_positive

# Multiplications and additions for each state element and token: decay 1, add 2, query 2.
FLOPS_PER_ELEMENT = 5


class StateSpace(msgspec.Struct, frozen=True, tag="state_space"):
    """State-space mixer with one learned decay per head (Dao and Gu 2024, "Transformers are SSMs").

    The fused input projection is [gate | x | B | C | step]; a short causal convolution runs over [x | B | C]. `groups`
    pairs of B and C serve the heads, and the norm runs over each of `groups` parts of the width. `step_limits` clamps
    the step. State per sequence: heads * state_dim * head_dim float32, and (conv_width - 1) columns of the convolution.
    """

    heads: int
    head_dim: int
    state_dim: int
    groups_of_heads: int
    conv_width: int
    norm: GatedRMSNorm
    conv_bias: bool = True
    bias: bool = False
    step_limits: tuple[float, float] | None = None

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def conv_channels(self) -> int:
        return self.inner + 2 * self.groups_of_heads * self.state_dim

    def groups(self) -> tuple[CacheGroup, ...]:
        return (
            CacheGroup("conv", "sequence", (self.conv_channels, self.conv_width - 1)),
            CacheGroup("scan", "sequence", (self.heads, self.state_dim, self.head_dim), "float32"),
        )

    def parameters(self, hidden: int) -> list[Parameter]:
        width = self.inner + self.conv_channels + self.heads
        return [
            *_linear("in", width, hidden, self.bias),
            *_conv(self.conv_channels, self.conv_width, self.conv_bias),
            Parameter("log_decay", (self.heads,), "float32"),
            Parameter("step_bias", (self.heads,), "float32"),
            Parameter("skip", (self.heads,), "float32"),
            Parameter("inner_norm", (self.inner,)),
            *_linear("out", hidden, self.inner, self.bias),
        ]

    def constants(self) -> dict[str, list[float]]:
        return {}

    def check(self, where: str) -> None:
        require_positive(where, heads=self.heads, head_dim=self.head_dim, state_dim=self.state_dim,
                         groups_of_heads=self.groups_of_heads, conv_width=self.conv_width)  # fmt: skip
        what = f"groups do not divide the {self.heads} heads"
        require_divisor(where, self.heads, what, groups_of_heads=self.groups_of_heads)

    def step_flops(self) -> int:
        """Per token, besides linears."""
        return FLOPS_PER_ELEMENT * self.inner * self.state_dim + 2 * self.conv_channels * self.conv_width

    def context_flops(self) -> int:
        return 0

    def describe(self) -> str:
        return f"state space, {self.heads} heads of {self.state_dim} x {self.head_dim}, convolution {self.conv_width}"


class SelectiveScan(msgspec.Struct, frozen=True, tag="selective_scan"):
    """State-space mixer with a learned decay per channel and state element (Gu and Dao 2023, "Mamba").

    The step is a projection of low `rank`; `norm` runs over it and over both state vectors. State per sequence:
    inner * state_dim float32, and (conv_width - 1) columns of the convolution.
    """

    inner: int
    state_dim: int
    rank: int
    conv_width: int
    norm: RMSNorm | None = None
    conv_bias: bool = True
    bias: bool = False

    def groups(self) -> tuple[CacheGroup, ...]:
        return (
            CacheGroup("conv", "sequence", (self.inner, self.conv_width - 1)),
            CacheGroup("scan", "sequence", (self.inner, self.state_dim, 1), "float32"),
        )

    def parameters(self, hidden: int) -> list[Parameter]:
        return [
            *_linear("in", 2 * self.inner, hidden, self.bias),
            *_conv(self.inner, self.conv_width, self.conv_bias),
            Parameter("select", (self.rank + 2 * self.state_dim, self.inner), linear=True),
            *norm_parameters("step_norm", self.norm, self.rank),
            *norm_parameters("key_norm", self.norm, self.state_dim),
            *norm_parameters("query_norm", self.norm, self.state_dim),
            Parameter("step", (self.inner, self.rank), linear=True),
            Parameter("step_bias", (self.inner,), "float32"),
            Parameter("log_decay", (self.inner, self.state_dim), "float32"),
            Parameter("skip", (self.inner,), "float32"),
            *_linear("out", hidden, self.inner, self.bias),
        ]

    def constants(self) -> dict[str, list[float]]:
        return {}

    def check(self, where: str) -> None:
        require_positive(where, inner=self.inner, state_dim=self.state_dim, rank=self.rank, conv_width=self.conv_width)

    def step_flops(self) -> int:
        """Per token, besides linears."""
        return FLOPS_PER_ELEMENT * self.inner * self.state_dim + 2 * self.inner * self.conv_width

    def context_flops(self) -> int:
        return 0

    def describe(self) -> str:
        return f"selective scan, {self.inner} channels of state {self.state_dim}, convolution {self.conv_width}"


class DecayAttention(msgspec.Struct, frozen=True, tag="decay_attention"):
    """Linear attention with a fixed decay per head and layer (Qin et al. 2024, "Lightning Attention-2").

    Queries, keys and values go through silu; no scale. Head h of H decays by exp(-2^(-8 (h + 1) / H) * factor), where
    `factors` has one for each layer of this kind, in order. The output is normed over the whole width, then gated by a
    sigmoid of its own projection. State per sequence: heads * head_dim * head_dim float32.
    """

    heads: int
    head_dim: int
    factors: tuple[float, ...]
    norm: RMSNorm

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    def groups(self) -> tuple[CacheGroup, ...]:
        return (CacheGroup("scan", "sequence", (self.heads, self.head_dim, self.head_dim), "float32"),)

    def parameters(self, hidden: int) -> list[Parameter]:
        return [
            Parameter("qkv", (3 * self.inner, hidden), linear=True),
            Parameter("gate", (self.inner, hidden), linear=True),
            *norm_parameters("inner_norm", self.norm, self.inner),
            Parameter("out", (hidden, self.inner), linear=True),
        ]

    def constants(self) -> dict[str, list[float]]:
        """`slopes` of the heads, and the `factors` of the layers: the ordinal picks one, so all layers are one region."""
        slopes = [2.0 ** (-8.0 * (h + 1) / self.heads) for h in range(self.heads)]
        return {"slopes": slopes, "factors": list(self.factors)}

    def check(self, where: str) -> None:
        require_positive(where, heads=self.heads, head_dim=self.head_dim, factors=len(self.factors))

    def step_flops(self) -> int:
        """Per token, besides linears."""
        return FLOPS_PER_ELEMENT * self.inner * self.head_dim

    def context_flops(self) -> int:
        return 0

    def describe(self) -> str:
        return f"linear attention with fixed decays, {self.heads} heads of {self.head_dim}"


def _linear(path: str, width: int, inputs: int, bias: bool) -> list[Parameter]:
    own = [Parameter(path, (width, inputs), linear=True)]
    return [*own, Parameter(f"{path}_bias", (width,))] if bias else own


def _conv(channels: int, width: int, bias: bool) -> list[Parameter]:
    own = [Parameter("conv", (channels, width))]
    return [*own, Parameter("conv_bias", (channels,))] if bias else own
