"""Attention of decode steps over the paged cache: one program a sequence and key-value head."""

# Triton's own types are not Python's.
# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _write(
    k, v, pool, state, ordinal, pages, offsets, lengths, table, size, k_stride, v_stride, page_stride, layer_stride, row_stride,
    KEYS: tl.constexpr, VALUES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    s = tl.program_id(0)
    row = tl.load(offsets + s)
    if tl.load(offsets + s + 1) > row:
        at = tl.load(lengths + s)
        page = tl.load(pages + s * table + at // size)
        if (page < 0) | (page >= tl.load(state)):
            tl.atomic_add(state + 1, 1)
        else:
            layer = tl.load(ordinal).to(tl.int64) * layer_stride
            to = pool + page.to(tl.int64) * page_stride + layer + (at % size) * row_stride
            c = tl.arange(0, BLOCK)
            tl.store(to + c, tl.load(k + row * k_stride + c, mask=c < KEYS, other=0.0).to(pool.dtype.element_ty), mask=c < KEYS)
            value = tl.load(v + row * v_stride + c, mask=c < VALUES, other=0.0)
            tl.store(to + KEYS + c, value.to(pool.dtype.element_ty), mask=c < VALUES)


@triton.jit
def _attend(
    q, pool, state, ordinal, pages, offsets, lengths, out, table, size, q_stride, page_stride, layer_stride, row_stride,
    heads, kv_heads, scale, window, softcap,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr, G: tl.constexpr, T: tl.constexpr,
    SOFTCAP: tl.constexpr, IEEE: tl.constexpr,
):  # fmt: skip
    s = tl.program_id(0)
    head = tl.program_id(1)
    row = tl.load(offsets + s)
    if tl.load(offsets + s + 1) > row:
        group = heads // kv_heads
        g = tl.arange(0, G)
        c = tl.arange(0, BD)
        cv = tl.arange(0, BV)
        mine = head * group + g
        some = (g[:, None] < group) & (c[None, :] < D)
        query = tl.load(q + row * q_stride + mine[:, None] * D + c[None, :], mask=some, other=0.0)
        length = tl.load(lengths + s) + 1
        start = 0
        if window > 0:
            start = tl.maximum(length - window, 0) // T * T
        best = tl.full((G,), -1e30, tl.float32)
        total = tl.zeros((G,), tl.float32)
        acc = tl.zeros((G, BV), tl.float32)
        fault = 0
        live = tl.load(state)
        layer = tl.load(ordinal).to(tl.int64) * layer_stride
        for t0 in range(start, length, T):
            t = t0 + tl.arange(0, T)
            page = tl.load(pages + s * table + t0 // size)
            if (page < 0) | (page >= live):
                fault = 1
                page = 0
            inside = t < length
            if window > 0:
                inside = inside & (t >= length - window)
            at = page.to(tl.int64) * page_stride + layer + (t % size) * row_stride
            keys = tl.load(pool + at[None, :] + head * D + c[:, None], mask=inside[None, :] & (c[:, None] < D), other=0.0)
            if IEEE:
                score = tl.dot(query, keys, input_precision="ieee") * scale
            else:
                score = tl.dot(query, keys) * scale
            if SOFTCAP:
                z = score / softcap
                score = softcap * (2.0 * tl.sigmoid(2.0 * z) - 1.0)
            score = tl.where(inside[None, :], score, -1e30)
            high = tl.maximum(best, tl.max(score, axis=1))
            shrink = tl.exp(best - high)
            weight = tl.where(inside[None, :], tl.exp(score - high[:, None]), 0.0)
            there = inside[:, None] & (cv[None, :] < DV)
            value = tl.load(pool + at[:, None] + kv_heads * D + head * DV + cv[None, :], mask=there, other=0.0)
            if IEEE:
                more = tl.dot(weight, value, input_precision="ieee")
            else:
                more = tl.dot(weight.to(value.dtype), value)
            acc = acc * shrink[:, None] + more
            total = total * shrink + tl.sum(weight, axis=1)
            best = high
        y = acc / total[:, None]
        if fault == 1:
            y = tl.full((G, BV), float("nan"), tl.float32)
        to = out + (row * heads + mine[:, None]) * DV + cv[None, :]
        tl.store(to, y.to(out.dtype.element_ty), mask=(g[:, None] < group) & (cv[None, :] < DV))


def supports(*arguments: Any) -> bool:
    """Decode (a row a sequence), without sinks or a choice of tokens; `arguments` are tensors or graph nodes."""
    q, lengths = (_shape(arguments[i]) for i in (0, 8))
    return q[0] == lengths[0] and arguments[12] is None and arguments[13] is None and not any(arguments[14:])


def _shape(value: Any) -> Any:
    return value.shape if isinstance(value, Tensor) else value.meta["val"].shape


def attention(
    q: Tensor, k: Tensor, v: Tensor, pool: Tensor, state: Tensor, ordinal: Tensor, pages: Tensor, offsets: Tensor,
    lengths: Tensor, scale: float, window: int, softcap: float, sinks: None, selected: None, block: int = 0,
) -> Tensor:  # fmt: skip
    (n, heads, d), (_, kv_heads, dv) = q.shape, v.shape
    out = torch.empty((n, heads, dv), dtype=q.dtype, device=q.device)
    size, table = pool.shape[2], pages.shape[1]
    strides = pool.stride()[:3]
    k, v = k.reshape(n, -1), v.reshape(n, -1)
    q = q if q.stride(1) == d and q.stride(2) == 1 else q.contiguous()
    _write[(n,)](
        k, v, pool, state, ordinal, pages, offsets, lengths, table, size, k.stride(0), v.stride(0), *strides,
        KEYS=kv_heads * d, VALUES=kv_heads * dv, BLOCK=triton.next_power_of_2(kv_heads * max(d, dv)), num_warps=4,
    )  # fmt: skip
    _attend[(n, kv_heads)](
        q, pool, state, ordinal, pages, offsets, lengths, out, table, size, q.stride(0), *strides, heads, kv_heads, scale,
        window, softcap, D=d, DV=dv, BD=max(16, triton.next_power_of_2(d)), BV=max(16, triton.next_power_of_2(dv)),
        G=max(16, triton.next_power_of_2(heads // kv_heads)), T=min(64, size), SOFTCAP=softcap > 0,
        # whole tiles of float32 twice would not fit the shared memory of smaller GPUs
        IEEE=pool.dtype == torch.float32, num_warps=4, num_stages=1 if pool.dtype == torch.float32 else 2,
    )  # fmt: skip
    return out
