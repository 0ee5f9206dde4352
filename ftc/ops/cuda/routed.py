"""Expert rows from slots, the mailbox to the CPU, and the sum that joins all rows."""

# Triton's own types are not Python's.
# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "relu2": 2}


def patience_ns(routes: int, hidden: int) -> int:
    """After this long without an answer a step fails instead of hanging the device.

    A second, and for each route the time of a record as wide as the model at 24 Gflop/s: two busy AVX2 cores were measured
    at 26 in float32, 75 in bfloat16. A decode step gets 1.07 s (64 routes, hidden 2048), a chunk's layer 5.3 s (4096).
    """
    return 1_000_000_000 + routes * hidden * hidden // 4


@triton.jit
def _act(g, u, limit, alpha, ACT: tl.constexpr, GATED: tl.constexpr, LIMITED: tl.constexpr, ALPHA: tl.constexpr):
    if not GATED:
        g = u
    elif LIMITED:
        g = tl.minimum(g, limit)
        u = tl.minimum(tl.maximum(u, -limit), limit)
    if ALPHA:
        h = g * tl.sigmoid(alpha * g)
        u = u + 1.0
    elif ACT == 0:
        h = g * tl.sigmoid(g)
    elif ACT == 1:
        # tanh(z) = 2 sigmoid(2 z) - 1
        h = g * tl.sigmoid(1.5957691216057308 * (g + 0.044715 * g * g * g))
    else:
        h = tl.maximum(g, 0.0)
        h = h * h
    return h * u if GATED else h


@triton.jit
def _inner(
    x, slots, kinds, ids, kind, gate, up, h, gate_bias, up_bias, top_k, hidden, width, stride, limit, alpha,
    ACT: tl.constexpr, GATED: tl.constexpr, BIASED: tl.constexpr, LIMITED: tl.constexpr, ALPHA: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """h [routes, width]: act(gate x) * (up x) of the routes of one kind."""
    p = tl.program_id(0)
    if tl.load(kinds + p) == kind:
        at = tl.load(slots + p).to(tl.int64) * stride
        n = tl.program_id(1) * BN + tl.arange(0, BN)
        g = tl.zeros((BN, BK), tl.float32)
        u = tl.zeros((BN, BK), tl.float32)
        for k in range(0, hidden, BK):
            c = k + tl.arange(0, BK)
            both = at + n[:, None].to(tl.int64) * hidden + c[None, :]
            if EVEN:
                v = tl.load(x + (p // top_k) * hidden + c).to(tl.float32)[None, :]
                u += v * tl.load(up + both).to(tl.float32)
                if GATED:
                    g += v * tl.load(gate + both).to(tl.float32)
            else:
                inside = (n[:, None] < width) & (c[None, :] < hidden)
                v = tl.load(x + (p // top_k) * hidden + c, mask=c < hidden, other=0.0).to(tl.float32)[None, :]
                u += v * tl.load(up + both, mask=inside, other=0.0).to(tl.float32)
                if GATED:
                    g += v * tl.load(gate + both, mask=inside, other=0.0).to(tl.float32)
        us = tl.sum(u, axis=1)
        gs = tl.sum(g, axis=1)
        if BIASED:
            e = tl.load(ids + p) * width
            us += tl.load(up_bias + e + n, mask=n < width, other=0.0).to(tl.float32)
            if GATED:
                gs += tl.load(gate_bias + e + n, mask=n < width, other=0.0).to(tl.float32)
        tl.store(h + p * width + n, _act(gs, us, limit, alpha, ACT, GATED, LIMITED, ALPHA), mask=n < width)


@triton.jit
def _outer(
    h, slots, kinds, ids, kind, down, out, down_bias, hidden, width, stride,
    BIASED: tl.constexpr, BI: tl.constexpr, BH: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """out [routes, hidden] = h down, where down is stored [width, hidden]."""
    p = tl.program_id(0)
    if tl.load(kinds + p) == kind:
        at = tl.load(slots + p).to(tl.int64) * stride
        c = tl.program_id(1) * BH + tl.arange(0, BH)
        total = tl.zeros((BI, BH), tl.float32)
        for i in range(0, width, BI):
            n = i + tl.arange(0, BI)
            both = at + n[:, None].to(tl.int64) * hidden + c[None, :]
            if EVEN:
                total += tl.load(h + p * width + n)[:, None] * tl.load(down + both).to(tl.float32)
            else:
                inside = (n[:, None] < width) & (c[None, :] < hidden)
                v = tl.load(h + p * width + n, mask=n < width, other=0.0)[:, None]
                total += v * tl.load(down + both, mask=inside, other=0.0).to(tl.float32)
        y = tl.sum(total, axis=0)
        if BIASED:
            y += tl.load(down_bias + tl.load(ids + p) * hidden + c, mask=c < hidden, other=0.0).to(tl.float32)
        tl.store(out + p * hidden + c, y, mask=c < hidden)


def slot_experts(
    x: Tensor, slots: Tensor, kinds: Tensor, ids: Tensor, kind: int, state: Tensor, gate: Tensor | None, up: Tensor,
    down: Tensor, activation: str, limit: float, alpha: float, gate_bias: Tensor | None, up_bias: Tensor | None,
    down_bias: Tensor | None,
) -> Tensor:  # fmt: skip
    routes, (width, hidden) = slots.numel(), up.shape[1:]
    h = torch.empty((routes, width), dtype=torch.float32, device=x.device)
    out = torch.empty((*slots.shape, hidden), dtype=torch.float32, device=x.device)
    bn, bk = 4, min(512, triton.next_power_of_2(hidden))
    _inner[(routes, triton.cdiv(width, bn))](
        x, slots, kinds, ids, kind, up if gate is None else gate, up, h, up_bias if gate is None else gate_bias, up_bias,
        slots.shape[1], hidden, width, up.stride(0), limit, alpha, ACT=ACTIVATIONS[activation], GATED=gate is not None,
        BIASED=up_bias is not None, LIMITED=limit > 0, ALPHA=alpha > 0, BN=bn, BK=bk,
        EVEN=width % bn == 0 and hidden % bk == 0, num_warps=4,
    )  # fmt: skip
    bi, bh = 32, min(64, triton.next_power_of_2(hidden))
    _outer[(routes, triton.cdiv(hidden, bh))](
        h, slots, kinds, ids, kind, down, out, down_bias, hidden, width, down.stride(0), BIASED=down_bias is not None,
        BI=bi, BH=bh, EVEN=width % bi == 0 and hidden % bh == 0, num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _release(flag, value):
    """Writes `value` where the CPU polls, after all that this program wrote and a barrier. Only the first thread does.

    Inline assembly runs in every thread, and so does the load that `value` comes from: a warp that loads the counter after
    the first thread has stored the next number would ask a question that nobody waits for.
    """
    tl.inline_asm_elementwise(
        "{ .reg .pred first; .reg .u32 t; mov.u32 t, %tid.x; setp.eq.u32 first, t, 0; @first fence.acq_rel.sys;"
        " @first st.release.sys.global.u32 [$1], $2; mov.u32 $0, $2; }", "=r,l,r", [flag, value], dtype=tl.int32,
        is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def _tell(flag, value):
    """Writes from every thread that gets here: threads of a program end their waits one by one."""
    tl.inline_asm_elementwise(
        "{ st.relaxed.sys.global.u32 [$1], $2; mov.u32 $0, $2; }", "=r,l,r", [flag, value], dtype=tl.int32, is_pure=False,
        pack=1,
    )  # fmt: skip


@triton.jit
def _acquire(flag):
    return tl.inline_asm_elementwise(
        "ld.acquire.sys.global.u32 $0, [$1];", "=r,l", [flag], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _now():
    return tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)


@triton.jit
def _submit(
    x, ids, kinds, ordinal, rows, state, mail_x, mail_ids, note, routes, top_k, hidden,
    P: tl.constexpr, BLOCK: tl.constexpr, FLAG: tl.constexpr,
):  # fmt: skip
    p = tl.arange(0, P)
    mine = (tl.load(kinds + p, mask=p < routes, other=0) == 3) & (p < routes)
    count = tl.sum(mine.to(tl.int32), axis=0)
    live = tl.load(rows)
    if count > 0:
        e = tl.load(ids + p, mask=p < routes, other=-1)
        tl.store(mail_ids + p, tl.where(mine, e, -1), mask=p < routes)
        tl.store(note, tl.load(ordinal))
        tl.store(note + 1, live)
        tl.store(note + 2, top_k)
        tl.store(note + 3, count)
        for at in range(0, live * hidden, BLOCK):
            c = at + tl.arange(0, BLOCK)
            inside = c < live * hidden
            tl.store(mail_x + c, tl.load(x + c, mask=inside).to(tl.float32), mask=inside)
        if FLAG:
            number = tl.load(state + 8) + 1
            tl.debug_barrier()  # all threads load before the first one stores
            tl.store(state + 8, number)
            _release(note + 4, number)


def cpu_submit(
    x: Tensor, ids: Tensor, kinds: Tensor, ordinal: Tensor, rows: Tensor, state: Tensor, mail_x: Tensor, mail_ids: Tensor,
    mail_note: Tensor,
) -> None:  # fmt: skip
    _submit[(1,)](
        x, ids, kinds, ordinal, rows, state, mail_x, mail_ids, mail_note, ids.numel(), ids.shape[1], x.shape[1],
        P=triton.next_power_of_2(ids.numel()), BLOCK=1024, FLAG=x.is_cuda, num_warps=8,
    )  # fmt: skip


def cpu_run(state: Tensor, *arguments: object) -> None:
    """Nothing to launch: a native thread sees the flag that cpu_submit sets, and the sum waits for the one it answers with."""


@triton.jit(do_not_specialize=["patience"])
def _combine(
    weights, kinds, hit, fresh, mail, note, state, y, top_k, hidden, patience,
    BLOCK: tl.constexpr, P: tl.constexpr, MAIL: tl.constexpr, FLAG: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    t = tl.program_id(0)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = c < hidden
    late = 0
    if MAIL:
        own = tl.arange(0, P)
        here = tl.load(kinds + t * top_k + own, mask=own < top_k, other=0) == 3
        if tl.sum(here.to(tl.int32), axis=0) > 0:
            # a step that has failed waits no more, or each of its layers would take as long
            late = (tl.load(state + 9) != 0).to(tl.int32)
            if FLAG:
                number = tl.load(state + 8)
                end = _now() + patience
                waiting = 1 - late
                while waiting == 1:
                    if _acquire(note + 5) == number:
                        waiting = 0
                    elif _now() > end:
                        waiting = 0
                        late = 1
                        _tell(state + 9, number)
                        _tell(note + 6, number)
    total = tl.zeros((BLOCK,), tl.float32)
    for k in range(0, top_k):
        p = t * top_k + k
        kind = tl.load(kinds + p)
        at = p * hidden + c
        row = tl.zeros((BLOCK,), tl.float32)
        if PARTS:
            if kind == 1:
                row = tl.load(hit + at, mask=inside, other=0.0)
            elif kind == 2:
                row = tl.load(fresh + at, mask=inside, other=0.0)
        if kind == 3:
            if MAIL and (late == 0):
                row = tl.load(mail + at, mask=inside, other=0.0, cache_modifier=".cv")
            else:
                row = tl.full((BLOCK,), float("nan"), tl.float32)
        if kind > 0:
            total += tl.load(weights + p) * row
    tl.store(y + t * hidden + c, total, mask=inside)


def combine(
    x: Tensor, weights: Tensor, kinds: Tensor, hit: Tensor | None, fresh: Tensor | None, mail_rows: Tensor | None,
    mail_note: Tensor | None, state: Tensor,
) -> Tensor:  # fmt: skip
    y = torch.empty_like(x)
    (n, hidden), k = x.shape, kinds.shape[1]
    block = min(1024, triton.next_power_of_2(hidden))
    some = next(t for t in (hit, mail_rows) if t is not None)
    _combine[(n, triton.cdiv(hidden, block))](
        weights, kinds, some if hit is None else hit, some if fresh is None else fresh,
        some if mail_rows is None else mail_rows, state if mail_note is None else mail_note, state, y, k, hidden,
        patience_ns(n * k, hidden), BLOCK=block, P=triton.next_power_of_2(k), MAIL=mail_rows is not None,
        FLAG=mail_rows is not None and x.is_cuda, PARTS=hit is not None, num_warps=4,
    )  # fmt: skip
    return y
