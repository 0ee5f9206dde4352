"""The gated short convolution of a block."""

from __future__ import annotations

from torch import Tensor

from ftc.ops.recurrent import causal_conv
from ftc.spec.conv import ShortConv
from ftc.trace.layer import Layer


def short_conv(layer: Layer, name: str, m: ShortConv, h: Tensor) -> Tensor:
    before, after, x = layer.linear(h, f"{name}.in").chunk(3, -1)
    slots = layer.step("state_in", "state_out", "offsets")
    weight, bias = layer.weight(f"{name}.conv"), layer.optional(f"{name}.conv_bias")
    return layer.linear(after * causal_conv(before * x, weight, bias, *layer.pool(name, "conv"), *slots, False), f"{name}.out")
