"""Norms: what is normalised, with which weight form, and where it stands."""

from __future__ import annotations

from typing import Literal

import msgspec


class RMSNorm(msgspec.Struct, frozen=True, tag="rms"):
    """x / rms(x), times w ("w"), 1 + w ("1+w") or nothing ("none"), computed in float32; "input": of x times 1 + w.

    `over` is what one mean is taken over: the hidden vector, each head, or the whole projection.
    """

    eps: float
    weight: Literal["w", "1+w", "none", "input"] = "w"
    over: Literal["hidden", "head", "projection"] = "hidden"


class LayerNorm(msgspec.Struct, frozen=True, tag="layer"):
    """(x - mean) / std * w + b."""

    eps: float
    over: Literal["hidden", "head", "projection"] = "hidden"


class GatedRMSNorm(msgspec.Struct, frozen=True, tag="gated_rms"):
    """Norm of each head and a gate branch: norm then gate, or gate then norm; plain weight."""

    eps: float
    gate: Literal["silu", "sigmoid"] = "silu"
    order: Literal["norm_then_gate", "gate_then_norm"] = "norm_then_gate"


Norm = RMSNorm | LayerNorm
