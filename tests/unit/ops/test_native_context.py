"""Attention, convolution and delta rule of the native library over pools, against float64 loops written here."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ftc.errors import TargetError
from ftc.ops import native

pytestmark = pytest.mark.skipif(not native.available(), reason="no C++ compiler: the native library is not built")
DTYPES = (torch.float32, torch.bfloat16)


def runnable() -> list[str]:
    return list(native.ISAS[: native.ISAS.index(native.isa()) + 1]) if native.available() else []


@pytest.fixture(params=runnable())
def isa(request):
    before, threads = native.isa(), native.threads()
    native.set_isa(request.param)
    yield request.param
    native.set_isa(before)
    native.set_threads(threads)


def close(got: Tensor, want: Tensor, tolerance: float) -> None:
    assert torch.isfinite(got).all()
    error = (got.double() - want).abs().max().item() / max(want.abs().max().item(), 1e-30)
    assert error <= tolerance, f"relative error {error:.2e} above {tolerance:.0e}"


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def scalar(value: int) -> Tensor:
    return torch.tensor(value, dtype=torch.int32)


class Context:
    """Sequences with a history: their pool filled through the page tables, and the same keys and values kept aside."""

    def __init__(self, counts, lengths, heads, kv_heads, d, dv, dtype, pool_dtype, page_tokens=16, layers=2, padding=2):
        self.counts, self.page_tokens, self.layer = counts, page_tokens, layers - 1
        self.kv_heads, self.d, self.dv = kv_heads, d, dv
        rows = sum(counts) + padding
        width = (heads + kv_heads) * d + kv_heads * dv + 3
        packed = torch.randn(rows, width).to(dtype)
        packed[sum(counts) :] = float("nan")
        self.q = packed[:, : heads * d].view(rows, heads, d)
        self.k = packed[:, heads * d : (heads + kv_heads) * d].view(rows, kv_heads, d)
        self.v = packed[:, (heads + kv_heads) * d : -3].view(rows, kv_heads, dv)
        per = [math.ceil((n + c) / page_tokens) for n, c in zip(lengths, counts, strict=True)]
        pages = sum(per) + 2
        self.pool = torch.full((pages + 3, layers, page_tokens, kv_heads * (d + dv)), float("nan"), dtype=pool_dtype)
        numbers = torch.randperm(pages).int()
        self.pages = torch.full((len(counts), max(per) + 1), -7, dtype=torch.int32)
        self.state, self.lengths = ints(pages, 0, 0, 0), ints(*lengths)
        self.offsets = torch.tensor([0, *counts]).cumsum(0).int()
        self.past = []
        for s, count in enumerate(per):
            self.pages[s, :count], numbers = numbers[:count], numbers[count:]
            past = torch.randn(lengths[s], kv_heads * (d + dv)).to(pool_dtype)
            self.past.append(past)
            for i in range(lengths[s]):
                self.pool[self.pages[s, i // page_tokens], self.layer, i % page_tokens] = past[i]

    def run(self, scale, **options) -> Tensor:
        return native.attention(self.q, self.k, self.v, self.pool, self.state, scalar(self.layer), self.pages,
                                self.offsets, self.lengths, scale, **options)  # fmt: skip

    def reference(self, scale, window=0, softcap=0.0, sinks=None) -> Tensor:
        rows, heads, _ = self.q.shape
        out = torch.zeros(int(self.offsets[-1]), heads, self.dv, dtype=torch.float64)
        for s, past in enumerate(self.past):
            begin, end = int(self.offsets[s]), int(self.offsets[s + 1])
            new = torch.cat([self.k[begin:end].flatten(1), self.v[begin:end].flatten(1)], 1).to(self.pool.dtype)
            tokens = torch.cat([past, new]).double()
            keys = tokens[:, : self.kv_heads * self.d].view(-1, self.kv_heads, self.d)
            values = tokens[:, self.kv_heads * self.d :].view(-1, self.kv_heads, self.dv)
            for row in range(begin, end):
                last = len(past) + row - begin + 1
                first = max(0, last - window) if window else 0
                for head in range(heads):
                    at = head // (heads // self.kv_heads)
                    x = keys[first:last, at] @ self.q[row, head].double() * scale
                    if softcap:
                        x = softcap * torch.tanh(x / softcap)
                    if sinks is not None:
                        x = torch.cat([x, sinks[head].double()[None]])
                    out[row, head] = torch.softmax(x, 0)[: last - first] @ values[first:last, at]
        return out


SHAPES = [
    ((1,), (0,), 2, 2, 16, 16),
    ((1, 0, 3, 2), (37, 5, 0, 300), 6, 2, 16, 24),
    ((1, 4, 2), (530, 9, 260), 8, 2, 20, 33),
    ((40, 0, 1, 9), (0, 3, 530, 20), 4, 1, 16, 16),
    ((25, 70), (70, 3), 8, 2, 64, 32),
    ((3, 20), (11, 29), 3, 3, 20, 33),
]


@pytest.mark.parametrize("counts,lengths,heads,kv_heads,d,dv", SHAPES)
@pytest.mark.parametrize("dtype,pool_dtype", [(torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16),
                                              (torch.float32, torch.bfloat16)])  # fmt: skip
def test_attention(isa, counts, lengths, heads, kv_heads, d, dv, dtype, pool_dtype):
    c = Context(counts, lengths, heads, kv_heads, d, dv, dtype, pool_dtype)
    want, live, results = c.reference(d**-0.5), sum(counts), []
    for threads in (1, 2):
        native.set_threads(threads)
        results.append(c.run(d**-0.5)[:live])
    assert torch.equal(*results)
    close(results[0], want, 1e-5 if dtype == torch.float32 else 8e-3)
    assert c.state.tolist()[1:] == [0, 0, 0]


def test_attention_writes_the_live_rows_and_nothing_else(isa):
    c = Context((1, 0, 12), (37, 5, 20), 4, 2, 16, 24, torch.float32, torch.bfloat16)
    want = c.pool.clone()
    for s in range(3):
        for j in range(c.counts[s]):
            position, row = int(c.lengths[s]) + j, int(c.offsets[s]) + j
            token = torch.cat([c.k[row].flatten(), c.v[row].flatten()]).bfloat16()
            want[c.pages[s, position // 16], c.layer, position % 16] = token
    c.run(0.25)
    assert torch.equal(c.pool.view(torch.int16), want.view(torch.int16))


@pytest.mark.parametrize("counts,lengths", [((1, 3), (37, 300)), ((40, 12), (0, 530))])
@pytest.mark.parametrize("window,softcap,sinks", [(1, 0.0, False), (20, 0.0, True), (0, 3.0, False), (50, 5.0, True)])
def test_attention_window_softcap_sinks(isa, counts, lengths, window, softcap, sinks):
    c = Context(counts, lengths, 4, 2, 16, 16, torch.float32, torch.float32)
    if window:  # pages that have left every window may be given to somebody else
        for s, length in enumerate(lengths):
            c.pages[s, : max(0, length - window + 1) // 16] = -1
    logits = torch.randn(4) * 2 if sinks else None
    want = c.reference(1.0, window, softcap, logits)
    close(c.run(1.0, window=window, softcap=softcap, sinks=logits)[: sum(counts)], want, 1e-5)
    assert c.state[1] == 0


@pytest.mark.parametrize("heads", [4, 8])
def test_attention_rows_do_not_depend_on_the_batch(isa, heads):
    c = Context((2, 1, 5), (37, 300, 5), heads, 2, 16, 24, torch.bfloat16, torch.bfloat16)
    batch = c.run(0.25)
    for s in range(3):
        counts = torch.zeros(3, dtype=torch.int32)
        counts[s] = c.counts[s]
        begin, end = int(c.offsets[s]), int(c.offsets[s + 1])
        one = native.attention(c.q[begin:end], c.k[begin:end], c.v[begin:end], c.pool, c.state, scalar(1), c.pages,
                               torch.cat([ints(0), counts.cumsum(0).int()]), c.lengths, 0.25)  # fmt: skip
        assert torch.equal(one, batch[begin:end])


def test_attention_chunks_agree_with_token_by_token(isa):
    whole = Context((75,), (10,), 4, 2, 16, 16, torch.float32, torch.float32)
    pool = whole.pool.clone()
    want = whole.run(0.25)[:75]
    steps, done = [], 0
    for count in (1, 1, 3, 40, 8, 9, 1, 12):
        part = slice(done, done + count)
        steps.append(native.attention(whole.q[part], whole.k[part], whole.v[part], pool, whole.state, scalar(1),
                                      whole.pages, ints(0, count), ints(10 + done), 0.25))  # fmt: skip
        done += count
    assert done == 75
    close(torch.cat(steps), want.double(), 1e-5)
    assert torch.equal(pool.view(torch.int32), whole.pool.view(torch.int32))


@pytest.mark.parametrize("counts", [(2, 1), (30, 20)])
def test_attention_faults_give_nan_and_are_counted(isa, counts):
    c = Context(counts, (40, 10), 4, 2, 16, 16, torch.float32, torch.float32)
    good = c.run(0.25)[: sum(counts)].clone()
    c.pages[0, 1] = int(c.state[0])
    got = c.run(0.25)[: sum(counts)]
    assert torch.isnan(got[: counts[0]]).all()
    assert torch.equal(got[counts[0] :], good[counts[0] :])
    assert c.state.tolist() == [int(c.state[0]), counts[0], 0, 0]


class Slots:
    """Slot numbers for four sequences: one starts from zeros, one is empty, one forks, one keeps no state."""

    counts = (3, 0, 9, 1)
    state_in, state_out = ints(-1, 2, 4, 1), ints(0, 2, 3, -1)
    offsets = ints(0, 3, 3, 12, 13)
    rows = 15  # two of them padding


def old_and_untouched(pool: Tensor, layer: int, written: list[int]) -> Tensor:
    rest = pool.clone()
    rest[written, layer] = 0
    return rest


@pytest.mark.parametrize("channels,width,bias,silu", [(64, 4, False, True), (100, 4, True, False), (7, 2, True, True),
                                                      (130, 5, False, True), (20, 16, True, False)])  # fmt: skip
@pytest.mark.parametrize("dtype,pool_dtype", [(torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16),
                                              (torch.bfloat16, torch.float32)])  # fmt: skip
def test_causal_conv(isa, channels, width, bias, silu, dtype, pool_dtype):
    x = torch.randn(Slots.rows, channels + 5).to(dtype)[:, :channels]
    x[13:] = float("nan")
    weight, shift = torch.randn(channels, width).to(dtype), torch.randn(channels).to(dtype) if bias else None
    pool, state = torch.randn(6, 2, channels, width - 1).to(pool_dtype), ints(5, 0)
    before = pool.clone()
    want = torch.zeros(13, channels, dtype=torch.float64)
    after = before.clone()
    for s in range(4):
        begin, end = int(Slots.offsets[s]), int(Slots.offsets[s + 1])
        if begin == end:
            continue
        slot = int(Slots.state_in[s])
        old = torch.zeros(channels, width - 1, dtype=torch.float64) if slot < 0 else before[slot, 1].double()
        line = torch.cat([old, x[begin:end].double().T], 1)
        y = torch.nn.functional.conv1d(line[None], weight.double()[:, None], groups=channels)[0].T
        y = y + shift.double() if bias else y
        want[begin:end] = torch.nn.functional.silu(y) if silu else y
        if Slots.state_out[s] >= 0:
            after[int(Slots.state_out[s]), 1] = line[:, -(width - 1) :].to(pool_dtype)
    results = []
    for threads in (1, 2):
        native.set_threads(threads)
        pool = before.clone()
        results.append(native.causal_conv(x, weight, shift, pool, state, scalar(1), Slots.state_in, Slots.state_out,
                                          Slots.offsets, silu)[:13])  # fmt: skip
    assert torch.equal(*results) and torch.equal(pool, after)
    close(results[0], want, 3e-6 if dtype == torch.float32 else 6e-3)
    assert state.tolist() == [5, 0]


def test_causal_conv_chunks_equal_the_whole(isa):
    x, weight = torch.randn(30, 70), torch.randn(70, 4)
    state, one = ints(1, 0), scalar(0)
    whole, pool = torch.zeros(1, 1, 70, 3), torch.zeros(1, 1, 70, 3)
    want = native.causal_conv(x, weight, None, whole, state, one, ints(-1), ints(0), ints(0, 30), True)
    parts, done = [], 0
    for count in (1, 1, 2, 7, 19):
        parts.append(native.causal_conv(x[done : done + count], weight, None, pool, state, one,
                                        ints(0 if done else -1), ints(0), ints(0, count), True))  # fmt: skip
        done += count
    assert torch.equal(torch.cat(parts), want) and torch.equal(pool, whole)


def test_causal_conv_of_too_many_taps_is_refused(isa):
    x, pool = torch.zeros(1, 4), torch.zeros(1, 1, 4, 16)
    with pytest.raises(TargetError, match="16 taps"):
        native.causal_conv(x, torch.zeros(4, 17), None, pool, ints(1, 0), scalar(0), ints(0), ints(0), ints(0, 1), False)


def delta_reference(q, k, v, g, beta, old, scale, normalize):
    q, k, v, g, beta, state = (t.double() for t in (q, k, v, g, beta, old))
    if normalize:
        q, k = (t * torch.rsqrt((t * t).sum(-1, keepdim=True) + 1e-6) for t in (q, k))
    repeat = v.shape[1] // k.shape[1]
    q, k = q.repeat_interleave(repeat, 1) * scale, k.repeat_interleave(repeat, 1)
    out = []
    for t in range(len(v)):
        decay = g[t].exp()
        state = state * (decay[:, None, None] if decay.dim() == 1 else decay[:, :, None])
        seen = torch.einsum("hkv,hk->hv", state, k[t])
        state = state + torch.einsum("hk,hv->hkv", k[t], beta[t, :, None] * (v[t] - seen))
        out.append(torch.einsum("hkv,hk->hv", state, q[t]))
    return torch.stack(out), state


DELTA_SHAPES = [(1, 1, 16, 16), (2, 4, 64, 64), (2, 2, 20, 37), (1, 2, 128, 128)]


@pytest.mark.parametrize("key_heads,value_heads,dk,dv", DELTA_SHAPES)
@pytest.mark.parametrize("per_key,normalize", [(False, True), (True, False)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_delta_rule(isa, key_heads, value_heads, dk, dv, per_key, normalize, dtype):
    rows, width = Slots.rows, 2 * key_heads * dk + value_heads * dv
    packed = torch.randn(rows, width + 3)[:, :width].to(dtype) / (1 if normalize else dk**0.5)
    packed[13:] = float("nan")
    q, k = (packed[:, i * key_heads * dk : (i + 1) * key_heads * dk].view(rows, key_heads, dk) for i in (0, 1))
    v = packed[:, 2 * key_heads * dk :].view(rows, value_heads, dv)
    g = -torch.rand(*((rows, value_heads, dk) if per_key else (rows, value_heads)))
    beta = torch.rand(rows, value_heads)
    before, state = torch.randn(6, 2, value_heads, dk, dv), ints(5, 0)
    want, after = torch.zeros(13, value_heads, dv, dtype=torch.float64), before.double()
    for s in range(4):
        part = slice(int(Slots.offsets[s]), int(Slots.offsets[s + 1]))
        if part.start == part.stop:
            continue
        slot = int(Slots.state_in[s])
        old = torch.zeros(value_heads, dk, dv) if slot < 0 else before[slot, 1]
        want[part], new = delta_reference(q[part], k[part], v[part], g[part], beta[part], old, dk**-0.5, normalize)
        if Slots.state_out[s] >= 0:
            after[int(Slots.state_out[s]), 1] = new
    results = []
    for threads in (1, 2):
        native.set_threads(threads)
        pool = before.clone()
        results.append(native.delta_rule(q, k, v, g, beta, pool, state, scalar(1), Slots.state_in, Slots.state_out,
                                         Slots.offsets, dk**-0.5, normalize)[:13])  # fmt: skip
    assert torch.equal(*results)
    close(results[0], want, 2e-5 if dtype == torch.float32 else 8e-3)
    close(pool, after, 2e-5)
    kept = [0, 3]
    assert torch.equal(old_and_untouched(pool, 1, kept), old_and_untouched(before, 1, kept))
    assert state.tolist() == [5, 0]


@pytest.mark.parametrize("dk,dv,per_key", [(64, 64, False), (128, 128, False), (48, 40, True)])
def test_delta_rule_long_rows_agree_with_token_by_token(isa, dk, dv, per_key):
    rows, heads = 150, 2
    q, k, v = torch.randn(rows, 1, dk), torch.randn(rows, 1, dk), torch.randn(rows, heads, dv)
    g = -torch.rand(rows, heads, dk) if per_key else -torch.rand(rows, heads) * 2
    beta, state, layer = torch.rand(rows, heads), ints(1, 0), scalar(0)
    whole, pool = torch.zeros(1, 1, heads, dk, dv), torch.zeros(1, 1, heads, dk, dv)
    want, last = delta_reference(q, k, v, g, beta, whole[0, 0], 0.1, True)
    got = native.delta_rule(q, k, v, g, beta, whole, state, layer, ints(-1), ints(0), ints(0, rows), 0.1, True)
    close(got, want, 1e-5)
    close(whole[0, 0], last, 1e-5)
    done = 0
    for count in (1, 1, 7, 64, 65, 2, 10):
        part = slice(done, done + count)
        out = native.delta_rule(q[part], k[part], v[part], g[part], beta[part], pool, state, layer,
                                ints(0 if done else -1), ints(0), ints(0, count), 0.1, True)  # fmt: skip
        close(out, want[part], 1e-5)
        done += count
    assert done == rows


@pytest.mark.parametrize("bad_in,bad_out", [(5, 0), (0, 5), (-2, 0)])
def test_slots_that_are_not_live_are_faults(isa, bad_in, bad_out):
    state, pool = ints(5, 0), torch.zeros(6, 1, 8, 3)
    x, weight = torch.randn(4, 8), torch.randn(8, 4)
    into, out = ints(-1, bad_in), ints(1, bad_out)
    got = native.causal_conv(x, weight, None, pool, state, scalar(0), into, out, ints(0, 2, 4), False)
    assert torch.isfinite(got[:2]).all() and torch.isnan(got[2:]).all() and state.tolist() == [5, 1]
    assert (pool[[0, 2, 3, 4, 5]] == 0).all()
    q, g, beta, pool = torch.randn(4, 1, 16), -torch.rand(4, 1), torch.rand(4, 1), torch.zeros(6, 1, 1, 16, 16)
    got = native.delta_rule(q, q, q, g, beta, pool, state, scalar(0), into, out, ints(0, 2, 4), 0.25, True)
    assert torch.isfinite(got[:2]).all() and torch.isnan(got[2:]).all() and state.tolist() == [5, 2]
    assert (pool[[0, 2, 3, 4, 5]] == 0).all()
