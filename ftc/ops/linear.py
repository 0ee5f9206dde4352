"""Dense linear layers: y = x W^T + b with float32 accumulation, padding rows left alone."""

from __future__ import annotations

import torch
from torch import Tensor

from ftc.ops.op import Op

# contract: x [N, in] any float, w [out, in], bias [out] or None, rows [1] int32 live rows -> [N, out] of `dtype`.
# One rounding, at the end. Rows from rows[0] on are unspecified.


def _reference(x: Tensor, w: Tensor, bias: Tensor | None, dtype: torch.dtype, rows: Tensor) -> Tensor:
    y = x.float() @ w.float().T
    return (y if bias is None else y + bias.float()).to(dtype)


def _fake(x: Tensor, w: Tensor, bias: Tensor | None, dtype: torch.dtype, rows: Tensor) -> Tensor:
    return x.new_empty((x.shape[0], w.shape[0]), dtype=dtype)


linear_op = Op("linear", "(Tensor x, Tensor w, Tensor? bias, ScalarType dtype, Tensor rows) -> Tensor", _reference, _fake)


def linear(x: Tensor, w: Tensor, rows: Tensor, bias: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
    return linear_op(x, w, bias, x.dtype if dtype is None else dtype, rows)
