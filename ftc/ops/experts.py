"""Routed experts over a bank of records: one float32 row per (token, k), summed in k order and cast once."""

from __future__ import annotations

import torch
from torch import Tensor

from ftc.ops.activation import gated, pointwise
from ftc.ops.op import Op
from ftc.spec.ffn import Activation

# contract: x [N, H]; ids [N, K] int32; weights [N, K] float32; gate, up, down [ordinals * experts, I, H] strided views of
# one bank (gate None where ungated; down is stored [I, H]); ordinal 0-d int32: expert e is bank row ordinal * experts + e.
# gate_bias, up_bias [experts, I], down_bias [experts, H] of this layer, or None. Ids outside [0, experts) add nothing.
# -> [N, H] of x's type. Rows from rows[0] on are unspecified.


def _reference(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate: Tensor | None,
    up: Tensor,
    down: Tensor,
    ordinal: Tensor,
    experts: int,
    activation: str,
    limit: float,
    alpha: float,
    rows: Tensor,
    gate_bias: Tensor | None = None,
    up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
) -> Tensor:
    def linear(h: Tensor, w: Tensor, bias: Tensor | None, expert: int) -> Tensor:
        y = h @ w.float()
        return y if bias is None else y + bias[expert].float()

    live, base, wide = int(rows), int(ordinal) * experts, x.float()
    parts = torch.zeros((*ids.shape, x.shape[1]), dtype=torch.float32, device=x.device)
    chosen = ids[:live]
    for e in chosen.unique().tolist():
        if not 0 <= e < experts:
            continue
        t, k = (chosen == e).nonzero(as_tuple=True)
        h = linear(wide[t], up[base + e].T, up_bias, e)
        if gate is None:
            h = pointwise(h, activation, alpha)
        else:
            h = gated(linear(wide[t], gate[base + e].T, gate_bias, e), h, activation, limit, alpha)
        parts[t, k] = linear(h, down[base + e], down_bias, e)
    total = torch.zeros_like(wide)
    for k in range(ids.shape[1]):
        total[:live] += weights[:live, k, None] * parts[:live, k]
    return total.to(x.dtype)


def _fake(x: Tensor, *_: object) -> Tensor:
    return torch.empty_like(x)


experts_op = Op(
    "experts",
    "(Tensor x, Tensor ids, Tensor weights, Tensor? gate, Tensor up, Tensor down, Tensor ordinal, int experts,"
    " str activation, float limit, float alpha, Tensor rows, Tensor? gate_bias=None, Tensor? up_bias=None,"
    " Tensor? down_bias=None) -> Tensor",
    _reference,
    _fake,
)


def experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    bank: dict[str, Tensor],
    ordinal: Tensor,
    count: int,
    a: Activation,
    rows: Tensor,
    bias: dict[str, Tensor] | None = None,
) -> Tensor:
    """`bank`: matrix name -> view; `bias`: matrix name -> [count, width] (down: [count, hidden]) of this layer."""
    own = () if bias is None else (bias.get("gate"), bias["up"], bias["down"])
    return experts_op(
        x, ids, weights, bank.get("gate"), bank["up"], bank["down"], ordinal, count, a.kind, a.limit, a.alpha, rows, *own
    )
