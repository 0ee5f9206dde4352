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


def divisor_near(whole: int, value: int) -> int:
    """The divisor of `whole` nearest to `value`, the smaller of two."""
    return min((n for n in range(1, whole + 1) if whole % n == 0), key=lambda n: abs(n - value))


def require_divisor(where: str, whole: int, what: str, **values: int) -> None:
    """Raises SpecError for the first value that does not divide `whole`; `what` says what does not divide what."""
    for name, value in values.items():
        if whole % value:
            hint = f"the nearest that would is {divisor_near(whole, value)}"
            raise SpecError(what, where=f"{where}: {name}", value=value, hint=hint)
