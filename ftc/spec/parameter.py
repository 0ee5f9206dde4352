"""One parameter of a spec: path, shape and precision."""

from __future__ import annotations

from typing import Literal

import msgspec

from ftc.errors import SpecError
from ftc.spec.norm import LayerNorm, Norm, RMSNorm

Precision = Literal["run", "float32", "int32"]


class Parameter(msgspec.Struct, frozen=True):
    """`path` within its block (or the model). "run": the type the model runs in; "float32" and "int32": always that.

    `linear`: a matrix [out, in] used by a linear, so a number format may apply.
    """

    path: str
    shape: tuple[int, ...]
    precision: Precision = "run"
    linear: bool = False


def norm_parameters(path: str, norm: Norm | None, width: int) -> list[Parameter]:
    """What a norm over `width` elements learns."""
    match norm:
        case None | RMSNorm(weight="none"):
            return []
        case RMSNorm():
            return [Parameter(path, (width,))]
        case LayerNorm():
            return [Parameter(path, (width,)), Parameter(f"{path}_bias", (width,))]


def require_positive(where: str, **values: object) -> None:
    """Raises SpecError for the first value that is no whole number above 0."""
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise SpecError("must be a positive whole number", where=f"{where}: {name}", value=value)
