"""linear, experts and route of the native library against float64 torch, on every instruction set of this CPU."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from ftc.errors import TargetError
from ftc.ops import native

pytestmark = pytest.mark.skipif(not native.available(), reason="no C++ compiler: the native library is not built")
DTYPES = (torch.float32, torch.bfloat16)
MIXES = tuple(itertools.product(DTYPES, DTYPES))
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 8e-3}


def runnable() -> list[str]:
    if not native.available():
        return []
    best = native.ISAS.index(native.isa())
    return list(native.ISAS[: best + 1])


@pytest.fixture(params=runnable())
def isa(request):
    before, threads = native.isa(), native.threads()
    native.set_isa(request.param)
    yield request.param
    native.set_isa(before)
    native.set_threads(threads)


def close(got: Tensor, want: Tensor, tolerance: float) -> None:
    """Largest error within `tolerance` of the largest wanted value: what a sum of many terms can promise."""
    assert torch.isfinite(got).all()
    error = (got.double() - want).abs().max().item() / max(want.abs().max().item(), 1e-30)
    assert error <= tolerance, f"relative error {error:.2e} above {tolerance:.0e}"


def on_threads(call):
    """The result of `call`, which must have the same bits on one and on two threads."""
    results = []
    for count in (1, 2):
        native.set_threads(count)
        results.append(call())
    first, second = (r if isinstance(r, tuple) else (r,) for r in results)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)
    return results[0]


def test_an_unknown_instruction_set_is_refused():
    with pytest.raises(TargetError, match="instruction set"):
        native.set_isa("mmx")


@pytest.mark.parametrize("rows,ins,outs", [(1, 96, 5), (1, 1000, 300), (3, 33, 70), (8, 2048, 64), (9, 96, 33),
                                           (50, 257, 130), (100, 64, 1000), (13, 1, 1)])  # fmt: skip
@pytest.mark.parametrize("x_dtype,w_dtype", MIXES)
def test_linear(isa, rows, ins, outs, x_dtype, w_dtype):
    x = torch.randn(rows, ins + 7, dtype=torch.float32).to(x_dtype)[:, :ins]
    w = torch.randn(outs, ins + 3).to(w_dtype)[:, 3:]
    bias = torch.randn(outs).to(w_dtype)
    want = x.double() @ w.double().T
    for out_dtype in DTYPES:
        got = on_threads(lambda: native.linear(x, w, None, out_dtype))  # noqa: B023
        assert got.dtype == out_dtype
        close(got, want, max(ROUNDING[out_dtype] / 2, 1e-5))
    close(native.linear(x, w, bias, torch.float32), want + bias.double(), 1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_rounds_bfloat16_outputs_to_nearest(isa, dtype):
    x, w = torch.randn(12, 200).to(dtype), torch.randn(40, 200).to(dtype)
    for rows in (2, 12):
        exact = native.linear(x[:rows], w, None, torch.float32)
        assert torch.equal(native.linear(x[:rows], w, None, torch.bfloat16), exact.to(torch.bfloat16))


@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_rows_do_not_depend_on_the_batch(isa, dtype):
    x, w = torch.randn(8, 515).to(dtype), torch.randn(77, 515).to(dtype)
    batch = native.linear(x, w)
    for row in range(8):
        assert torch.equal(native.linear(x[row : row + 1], w)[0], batch[row])
    assert torch.equal(native.linear(x[:5], w), batch[:5])


@pytest.mark.parametrize("rows", [7, 30])
def test_linear_padding_rows_are_not_computed(isa, rows):
    x, w = torch.randn(rows, 96), torch.randn(20, 96)
    want = x[:5].double() @ w.double().T
    x[5:] = float("nan")
    close(native.linear(x, w, rows=torch.tensor(5, dtype=torch.int32))[:5], want, 1e-5)


def activation_of(name: str, gate: Tensor, up: Tensor | None, limit: float, alpha: float) -> Tensor:
    if limit > 0:
        gate = gate.clamp(max=limit)
        up = None if up is None else up.clamp(-limit, limit)
    if alpha > 0:
        return gate * torch.sigmoid(alpha * gate) * (1 if up is None else up + 1)
    act = {
        "silu": torch.nn.functional.silu,
        "gelu_tanh": lambda t: torch.nn.functional.gelu(t, approximate="tanh"),
        "relu2": lambda t: torch.relu(t) ** 2,
    }[name](gate)
    return act if up is None else act * up


def experts_reference(x, ids, weights, gate, up, down, layer, count, activation, limit, alpha):
    out = torch.zeros(x.shape, dtype=torch.float64)
    for t, k in itertools.product(range(ids.shape[0]), range(ids.shape[1])):
        e = int(ids[t, k])
        if not 0 <= e < count:
            continue
        row = layer * count + e
        a = up[row].double() @ x[t].double()
        g = a if gate is None else gate[row].double() @ x[t].double()
        h = activation_of(activation, g, None if gate is None else a, limit, alpha)
        out[t] += weights[t, k].double() * (h @ down[row].double())
    return out


def bank(layers, count, width, hidden, dtype, gated=True):
    """Views of one bank of records, with a gap after each record as alignment leaves one."""
    size = width * hidden
    store = (torch.randn(layers * count, 3 * size + 40) / hidden**0.5).to(dtype)
    parts = [store[:, i * size : (i + 1) * size].view(-1, width, hidden) for i in range(3)]
    return (parts[0] if gated else None), parts[1], parts[2]


@pytest.mark.parametrize("rows,hidden,width,count,top_k", [(1, 64, 48, 5, 2), (1, 256, 300, 4, 4), (8, 96, 33, 6, 3),
                                                           (20, 64, 48, 5, 2), (150, 100, 70, 3, 2)])  # fmt: skip
@pytest.mark.parametrize("x_dtype,w_dtype", MIXES)
def test_experts(isa, rows, hidden, width, count, top_k, x_dtype, w_dtype):
    gate, up, down = bank(2, count, width, hidden, w_dtype)
    x = torch.randn(rows, hidden).to(x_dtype)
    ids = torch.stack([torch.randperm(count)[:top_k] for _ in range(rows)]).int()
    weights = torch.rand(rows, top_k)
    ordinal = torch.tensor(1, dtype=torch.int32)
    want = experts_reference(x, ids, weights, gate, up, down, 1, count, "silu", 0, 0)
    got = on_threads(lambda: native.experts(x, ids, weights, gate, up, down, ordinal, count, "silu", 0.0, 0.0))
    assert got.dtype == x_dtype
    close(got, want, ROUNDING[x_dtype] if x_dtype == torch.bfloat16 else 1e-5)


@pytest.mark.parametrize("rows", [3, 40])
@pytest.mark.parametrize("activation,gated,limit,alpha", [("gelu_tanh", True, 0, 0), ("relu2", False, 0, 0),
                                                          ("silu", True, 0.5, 1.702), ("silu", True, 0.3, 0),
                                                          ("silu", False, 0, 0)])  # fmt: skip
def test_experts_activations(isa, rows, activation, gated, limit, alpha):
    gate, up, down = bank(1, 5, 48, 64, torch.float32, gated)
    x, weights = torch.randn(rows, 64), torch.rand(rows, 2)
    ids = torch.randint(0, 5, (rows, 2), dtype=torch.int32)
    want = experts_reference(x, ids, weights, gate, up, down, 0, 5, activation, limit, alpha)
    zero = torch.tensor(0, dtype=torch.int32)
    close(native.experts(x, ids, weights, gate, up, down, zero, 5, activation, limit, alpha), want, 1e-5)


@pytest.mark.parametrize("rows", [6, 30])
def test_experts_ids_outside_add_nothing_and_padding_is_not_read(isa, rows):
    gate, up, down = bank(1, 5, 48, 64, torch.bfloat16)
    x, weights = torch.randn(rows, 64), torch.rand(rows, 3)
    ids = torch.randint(0, 5, (rows, 3), dtype=torch.int32)
    ids[0] = torch.tensor([5, -1, 2])
    ids[1] = torch.tensor([7, 1 << 30, -5])
    live = rows - 2
    want = experts_reference(x[:live], ids[:live], weights[:live], gate, up, down, 0, 5, "silu", 0, 0)
    x[live:], ids[live:], weights[live:] = float("nan"), 1 << 29, float("nan")
    zero, count = torch.tensor(0, dtype=torch.int32), torch.tensor(live, dtype=torch.int32)
    got = on_threads(lambda: native.experts(x, ids, weights, gate, up, down, zero, 5, rows=count)[:live])
    close(got, want, 1e-5)
    assert (got[1] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_experts_rows_do_not_depend_on_the_batch(isa, dtype):
    gate, up, down = bank(1, 4, 300, 136, dtype)
    x, weights = torch.randn(8, 136).to(dtype), torch.rand(8, 2)
    ids = torch.randint(0, 4, (8, 2), dtype=torch.int32)
    zero = torch.tensor(0, dtype=torch.int32)
    batch = native.experts(x, ids, weights, gate, up, down, zero, 4)
    for r in range(8):
        one = native.experts(x[r : r + 1], ids[r : r + 1], weights[r : r + 1], gate, up, down, zero, 4)
        assert torch.equal(one[0], batch[r])


def route_reference(logits, bias, top_k, score, choose_first, groups, taken, group_score, renormalize, epsilon, scale):
    functions = {
        "softmax": lambda t: torch.softmax(t, -1),
        "sigmoid": torch.sigmoid,
        "sqrt_softplus": lambda t: torch.nn.functional.softplus(t).sqrt(),
    }
    logits = logits.double()
    scores = logits if choose_first else functions[score](logits)
    choice = scores if bias is None else scores + bias.double()
    if groups > 1:
        parts = choice.view(len(choice), groups, -1)
        rank = parts.amax(-1) if group_score == "max" else parts.topk(2).values.sum(-1)
        kept = torch.zeros_like(rank, dtype=torch.bool).scatter_(1, rank.topk(taken).indices, True)
        choice = parts.masked_fill(~kept[..., None], float("-inf")).flatten(1)
    ids = choice.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
    weights = scores.gather(1, ids)
    if choose_first:
        weights = functions[score](weights)
    if renormalize:
        weights = weights / (weights.sum(-1, keepdim=True) + epsilon)
    return ids, weights * scale


@pytest.mark.parametrize("score", ["softmax", "sigmoid", "sqrt_softplus"])
@pytest.mark.parametrize("choose_first", [False, True])
@pytest.mark.parametrize("experts,groups,taken,group_score", [(5, 1, 1, "max"), (128, 1, 1, "max"), (64, 8, 3, "max"),
                                                              (60, 4, 2, "top2_sum")])  # fmt: skip
def test_route(isa, score, choose_first, experts, groups, taken, group_score):
    logits = torch.randn(40, experts) * 3
    for bias in (None, torch.randn(experts) / 10):
        for renormalize in (False, True):
            options = (score, choose_first, groups, taken, group_score, renormalize, 1e-20, 2.5)
            want_ids, want = route_reference(logits, bias, 4, *options)
            ids, weights = on_threads(lambda: native.route(logits, bias, 4, *options))  # noqa: B023
            assert torch.equal(ids.long(), want_ids)
            assert torch.allclose(weights.double(), want, rtol=3e-6, atol=1e-7)


def test_route_ties_go_to_the_lower_id(isa):
    logits = torch.zeros(2, 37)
    logits[1, [9, 4, 30]] = 1.0
    ids, weights = native.route(logits, None, 3, "softmax", False, 1, 1, "max", True, 0.0, 1.0)
    assert ids.tolist() == [[0, 1, 2], [4, 9, 30]]
    assert torch.allclose(weights, torch.full((2, 3), 1 / 3))


def test_route_gives_distinct_ids_in_range_for_rows_without_numbers(isa):
    logits = torch.full((3, 20), float("nan"))
    logits[1, 3] = 1.0
    logits[2] = float("-inf")
    ids, _ = native.route(logits, None, 4, "sigmoid", True, 1, 1, "max", False, 0.0, 1.0)
    for row in ids.tolist():
        assert len(set(row)) == 4 and all(0 <= i < 20 for i in row)
    assert ids[1, 0] == 3


def test_route_leaves_padding_alone(isa):
    logits = torch.randn(6, 16)
    want = native.route(logits[:4], None, 2, "softmax", False, 1, 1, "max", True, 0.0, 1.0)
    logits[4:] = float("nan")
    live = torch.tensor(4, dtype=torch.int32)
    got = native.route(logits, None, 2, "softmax", False, 1, 1, "max", True, 0.0, 1.0, live)
    assert torch.equal(got[0][:4], want[0]) and torch.equal(got[1][:4], want[1])
