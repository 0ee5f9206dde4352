"""Routed experts with biases against float64, one token at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from ftc.errors import TargetError
from ftc.ops import native
from ftc.ops.experts import experts_op
from ftc.spec import Activation, ReLU2, SwiGLU
from tests.unit.ops.pages import close, scalar

HIDDEN, WIDTH, EXPERTS, LAYERS, TOP_K = 40, 37, 5, 2, 3


def by_hand(x: Tensor, ids: Tensor, weights: Tensor, bank: dict[str, Tensor], bias: dict[str, Tensor], a: Activation,
            layer: int) -> Tensor:  # fmt: skip
    out = torch.zeros_like(x, dtype=torch.float64)
    wide = {m: t.double() for m, t in bank.items()}
    for t in range(x.shape[0]):
        for e, w in zip(ids[t].tolist(), weights[t].tolist(), strict=True):
            row, own = layer * EXPERTS + e, {m: b[e].double() for m, b in bias.items()}
            up = wide["up"][row] @ x[t].double() + own["up"]
            if a.gated:
                gate = wide["gate"][row] @ x[t].double() + own["gate"]
                gate, up = gate.clamp(max=a.limit), up.clamp(-a.limit, a.limit)
                h = gate * torch.sigmoid(a.alpha * gate) * (up + 1)
            else:
                h = up.clamp(min=0) ** 2
            out[t] += w * (h @ wide["down"][row] + own["down"])
    return out


@pytest.fixture(params=["reference", *(native.ISAS if native.available() else ())])
def kernel(request: pytest.FixtureRequest) -> Iterator[Callable[..., Tensor]]:
    """The reference, or the native kernel on one instruction set."""
    if request.param == "reference":
        yield experts_op.kernels["reference"]
        return
    before = native.isa()
    try:
        native.set_isa(request.param)
    except TargetError:
        pytest.skip("this CPU does not run it")
    yield native.experts
    native.set_isa(before)


@pytest.mark.parametrize("activation", [SwiGLU(2.0, 1.702), ReLU2()], ids=["gated", "ungated"])
@pytest.mark.parametrize("rows", [1, 7, 20, 60])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_biases(kernel: Callable[..., Tensor], activation: Activation, rows: int, dtype: torch.dtype) -> None:
    matrices = ("gate", "up", "down") if activation.gated else ("up", "down")
    bank = {m: torch.randn(LAYERS * EXPERTS, WIDTH, HIDDEN).to(dtype) for m in matrices}
    bias = {m: torch.randn(EXPERTS, HIDDEN if m == "down" else WIDTH).to(dtype) for m in matrices}
    x, weights = torch.randn(rows, HIDDEN).to(dtype), torch.rand(rows, TOP_K)
    ids = torch.stack([torch.randperm(EXPERTS)[:TOP_K] for _ in range(rows)]).int()
    a, live = activation, torch.tensor([rows], dtype=torch.int32)
    own = bank.get("gate"), bank["up"], bank["down"], scalar(1), EXPERTS, a.kind, a.limit, a.alpha, live
    got = kernel(x, ids, weights, *own, bias.get("gate"), bias["up"], bias["down"])
    close(got, by_hand(x, ids, weights, bank, bias, activation, 1), 1e-5 if dtype == torch.float32 else 8e-3)
