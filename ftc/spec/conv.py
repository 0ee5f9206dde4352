"""Gated short convolution: a mixer that sees only the last few tokens."""

from __future__ import annotations

import msgspec

from ftc.spec.cache import CacheGroup
from ftc.spec.parameter import Parameter, require_positive


class ShortConv(msgspec.Struct, frozen=True, tag="short_conv"):
    """out(C * conv(B * x)), where [B | C | x] is one projection of the input, each `channels` wide; no activation.

    State per sequence: (width - 1) columns of the convolution's input.
    """

    channels: int
    width: int
    bias: bool = False

    def groups(self) -> tuple[CacheGroup, ...]:
        return (CacheGroup("conv", "sequence", (self.channels, self.width - 1)),)

    def parameters(self, hidden: int) -> list[Parameter]:
        own = [
            Parameter("in", (3 * self.channels, hidden), linear=True),
            Parameter("conv", (self.channels, self.width)),
            Parameter("out", (hidden, self.channels), linear=True),
        ]
        if self.bias:
            own += [Parameter(f"{p.path}_bias", p.shape[:1]) for p in own]
        return own

    def constants(self) -> dict[str, list[float]]:
        return {}

    def check(self, where: str) -> None:
        require_positive(where, channels=self.channels, width=self.width)

    def step_flops(self) -> int:
        """Per token, besides linears."""
        return 2 * self.channels * (self.width + 1)

    def context_flops(self) -> int:
        return 0

    def describe(self) -> str:
        return f"gated convolution over {self.width} tokens, {self.channels} channels"
