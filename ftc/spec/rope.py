"""Rotary position embeddings: frequencies, which part of the head turns, and how it is paired."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from ftc.errors import SpecError


class Linear(msgspec.Struct, frozen=True, tag="linear"):
    """Every position is divided by `factor`."""

    factor: float


class WavelengthBands(msgspec.Struct, frozen=True, tag="wavelength_bands"):
    """Long wavelengths are stretched by `factor`, short ones kept, the band between interpolated."""

    factor: float
    low: float
    high: float
    original_context: int


class Yarn(msgspec.Struct, frozen=True, tag="yarn"):
    """Interpolation by rotations per context with a ramp between `beta_fast` and `beta_slow` (Peng et al. 2023).

    `attention_factor` multiplies cos and sin; None is 0.1 ln(factor) + 1.
    """

    factor: float
    original_context: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None


class PairFactors(msgspec.Struct, frozen=True, tag="pair_factors"):
    """The frequency of each pair is divided by its own factor; cos and sin are multiplied by `amplitude`."""

    factors: tuple[float, ...]
    amplitude: float = 1.0


class Proportional(msgspec.Struct, frozen=True, tag="proportional"):
    """Only the first `fraction` of the pairs turn, divided by `factor`; the rest of the `dim` stands still."""

    fraction: float
    factor: float = 1.0


Scaling = Linear | WavelengthBands | Yarn | PairFactors | Proportional


class Rope(msgspec.Struct, frozen=True):
    """Rotates `dim` elements of each head, at its head or tail, in half-split or interleaved pairs.

    Pair i turns by theta ** (-2 i / spread) radians per position; `spread` None is `dim`.
    """

    theta: float
    dim: int
    at: Literal["head", "tail"] = "head"
    pairing: Literal["half_split", "interleaved"] = "half_split"
    scaling: Scaling | None = None
    spread: int | None = None

    def check(self, where: str, head_dim: int) -> None:
        """Raises SpecError where such a part of a head cannot be turned in pairs."""
        if self.dim % 2 or not 0 < self.dim <= head_dim:
            raise SpecError(
                f"rope needs an even number of at most {head_dim} elements", where=f"{where}: rope.dim", value=self.dim
            )
        if isinstance(self.scaling, PairFactors) and len(self.scaling.factors) != self.dim // 2:
            raise SpecError(
                f"rope needs a factor for each of its {self.dim // 2} pairs",
                where=f"{where}: rope.scaling.factors",
                value=len(self.scaling.factors),
            )

    def frequencies(self) -> list[float]:
        """Radians per position of each of the dim/2 pairs."""
        spread = self.dim if self.spread is None else self.spread
        base = [self.theta ** (-2.0 * i / spread) for i in range(self.dim // 2)]
        match self.scaling:
            case None:
                return base
            case Linear(factor=factor):
                return [f / factor for f in base]
            case WavelengthBands() as s:
                return [_banded(f, s) for f in base]
            case Yarn() as s:
                return _yarn(base, self.theta, self.dim, s)
            case Proportional(fraction=fraction, factor=factor):
                turning = int(fraction * self.dim // 2)
                return [f / factor if i < turning else 0.0 for i, f in enumerate(base)]
            case PairFactors(factors=factors):
                return [f / factor for f, factor in zip(base, factors, strict=True)]

    def amplitude(self) -> float:
        """Factor on cos and sin."""
        if isinstance(self.scaling, PairFactors):
            return self.scaling.amplitude
        if isinstance(self.scaling, Yarn):
            given = self.scaling.attention_factor
            return given if given is not None else (0.1 * math.log(self.scaling.factor) + 1.0)
        return 1.0


def _banded(frequency: float, s: WavelengthBands) -> float:
    wavelength = 2 * math.pi / frequency
    if wavelength > s.original_context / s.low:
        return frequency / s.factor
    if wavelength < s.original_context / s.high:
        return frequency
    smooth = (s.original_context / wavelength - s.low) / (s.high - s.low)
    return (1 - smooth) * frequency / s.factor + smooth * frequency


def _yarn(base: list[float], theta: float, dim: int, s: Yarn) -> list[float]:
    def pair_of(rotations: float) -> float:
        return dim * math.log(s.original_context / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_of(s.beta_fast), pair_of(s.beta_slow)
    if s.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    result = []
    for i, frequency in enumerate(base):
        stretched = min(max((i - low) / (high - low), 0.0), 1.0)
        result.append(frequency / s.factor * stretched + frequency * (1 - stretched))
    return result
