"""Inputs per layer: a second, narrow embedding of the tokens from which every layer takes its own part."""

from __future__ import annotations

import msgspec

from ftc.spec.norm import Norm
from ftc.spec.parameter import Parameter, norm_parameters, require_positive


class PerLayerTable(msgspec.Struct, frozen=True):
    """(norm(P e / sqrt(hidden)) + sqrt(width) * row) / sqrt(2) for each layer: `e` is the token's scaled embedding.

    The table has `vocab` rows of layers * width; the projection P is as wide.
    """

    width: int
    vocab: int
    norm: Norm

    def parameters(self, hidden: int, layers: int) -> list[Parameter]:
        return [
            Parameter("per_layer_table", (self.vocab, layers * self.width)),
            Parameter("per_layer_projection", (layers * self.width, hidden), linear=True),
            *norm_parameters("per_layer_norm", self.norm, self.width),
        ]


class PerLayerInput(msgspec.Struct, frozen=True, tag="per_layer_input"):
    """out(gelu(gate(x)) * the layer's own input): the branch that reads a PerLayerTable of the same width."""

    width: int

    def parameters(self, hidden: int) -> list[Parameter]:
        return [Parameter("gate", (self.width, hidden), linear=True), Parameter("out", (hidden, self.width), linear=True)]

    def check(self, where: str) -> None:
        require_positive(where, width=self.width)

    def describe(self) -> str:
        return f"input of its own layer, width {self.width}"
