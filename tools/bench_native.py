"""Measures the native CPU kernels: time, rate, and share of the read bandwidth or of torch's matrix product in this run."""

from __future__ import annotations

import argparse
import itertools
import mmap
import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from ftc.ops import native

BF16 = torch.bfloat16


def seconds_of(call: Callable[[], object], budget: float) -> float:
    """Best time of one call, of as many as fit into `budget` seconds, at least three."""
    call()
    times, end = [], time.perf_counter() + budget
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


class Bench:
    """Prints one line a case. Bandwidth is read before each memory-bound case: a shared host moves by half in minutes."""

    def __init__(self, budget: float, only: str) -> None:
        self.budget, self.only = budget, only
        print(f"isa {native.isa()}, {native.threads()} threads, torch {torch.__version__} on {torch.get_num_threads()}")
        print(f"{'op':<14}{'shape':<40}{'time':>11}{'rate':>16}  share")

    def wanted(self, op: str) -> bool:
        return self.only in op

    def line(self, op: str, shape: str, seconds: float, rate: str, share: str = "") -> None:
        print(f"{op:<14}{shape:<40}{seconds * 1e6:>8.1f} us{rate:>16}  {share}", flush=True)

    def memory(self, op: str, shape: str, size: float, call: Callable[[], object]) -> None:
        """A case that reads `size` bytes from memory."""
        if not self.wanted(op):
            return
        shares, times = [], []
        for _ in range(3):
            limit = native.read_bandwidth(1 << 28, self.budget / 6)
            times.append(seconds_of(call, self.budget / 3))
            shares.append(size / times[-1] / limit)
        rate = f"{size / min(times) / 1e9:.1f} GB/s"
        self.line(op, shape, min(times), rate, f"{statistics.median(shares):.0%} of read bandwidth {limit / 1e9:.1f} GB/s")

    def compute(self, op: str, shape: str, flops: float, call: Callable[[], object], rival: Callable[[], object] | None = None,
                rival_flops: float = 0) -> None:  # fmt: skip
        """A case of `flops` operations, against a torch call of `rival_flops` (the same count by default)."""
        if not self.wanted(op):
            return
        best = other = float("inf")
        for _ in range(3):
            best = min(best, seconds_of(call, self.budget / 6))
            if rival is not None:
                other = min(other, seconds_of(rival, self.budget / 6))
        share = "" if rival is None else f"{flops / best / ((rival_flops or flops) / other):.0%} of torch mm's rate"
        self.line(op, shape, best, f"{flops / best / 1e9:.1f} GFLOP/s", share)

    def plain(self, op: str, shape: str, call: Callable[[], object]) -> None:
        if self.wanted(op):
            self.line(op, shape, seconds_of(call, self.budget / 2), "")


def huge(count: int, dtype: torch.dtype) -> Tensor:
    """Random finite numbers on huge pages, as the runtime keeps its weights."""
    buffer = mmap.mmap(-1, count * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    buffer.madvise(mmap.MADV_HUGEPAGE)
    out = torch.frombuffer(buffer, dtype=dtype)
    block = torch.randn(1 << 16).to(dtype)
    for start in range(0, count, len(block)):
        out[start : start + len(block)] = block[: count - start]
    return out


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def scalar(value: int) -> Tensor:
    return torch.tensor(value, dtype=torch.int32)


def rival() -> tuple[Callable[[], object], float]:
    """A bfloat16 matrix product of torch and its operations: the compute rate of this machine."""
    a, b = torch.randn(512, 2048).to(BF16), torch.randn(2048, 2048).to(BF16)
    return partial(torch.mm, a, b.T), 2 * 512 * 2048 * 2048


def linears(b: Bench) -> None:
    """Decode from memory and from cache, then prefill."""
    if not b.wanted("linear"):
        return
    for dtype, outs, ins in ((BF16, 32768, 2048), (BF16, 16384, 4096), (torch.float32, 16384, 2048)):
        w = huge(outs * ins, dtype).view(outs, ins)
        for rows in (1, 4, 8):
            x = torch.randn(rows, ins).to(dtype)
            b.memory("linear", f"{rows} x {ins} -> {outs} {name(dtype)}", w.nbytes, partial(native.linear, x, w))
    for outs, ins in ((256, 256), (1024, 256), (8192, 256)):
        x, w = torch.randn(1, ins).to(BF16), torch.randn(outs, ins).to(BF16)
        call, other = partial(native.linear, x, w), partial(torch.mm, x, w.T)
        b.compute("linear", f"1 x {ins} -> {outs} in cache", 2 * ins * outs, call, other)
    for dtype in (BF16, torch.float32):
        for rows, ins, outs in ((512, 2048, 2048), (1024, 256, 1024), (64, 2048, 2048), (512, 256, 32)):
            x, w = torch.randn(rows, ins).to(dtype), torch.randn(outs, ins).to(dtype)
            call, other = partial(native.linear, x, w), partial(torch.mm, x, w.T)
            b.compute("linear", f"{rows} x {ins} -> {outs} {name(dtype)}", 2 * rows * ins * outs, call, other)


def routed(b: Bench) -> None:
    """Experts of a wide layer, which come from memory in decode, and of a small one, which stay in cache."""
    if not b.wanted("experts"):
        return
    for hidden, width, count, top_k in ((2048, 768, 128, 8), (256, 64, 32, 4)):
        size = width * hidden
        store = huge(count * 3 * size, BF16).view(count, 3 * size)
        gate, up, down = (store[:, i * size : (i + 1) * size].view(-1, width, hidden) for i in range(3))
        shape = f"H {hidden} I {width} E {count} K {top_k}"
        for rows in (1, 4, 8, 64, 512):
            x, weights = torch.randn(rows, hidden).to(BF16), torch.rand(rows, top_k)
            picks = [torch.stack([torch.randperm(count)[:top_k] for _ in range(rows)]).int() for _ in range(16)]
            turns = itertools.cycle(picks)

            def step(x: Tensor = x, weights: Tensor = weights, turns: Iterator[Tensor] = turns) -> Tensor:
                return native.experts(x, next(turns), weights, gate, up, down, scalar(0), count)  # noqa: B023

            flops = 6 * rows * top_k * size
            if rows > 8:
                b.compute("experts", f"{rows} rows, {shape}", flops, step, *rival())
            elif size * count > 1 << 25:
                read = sum(p.unique().numel() for p in picks) / len(picks) * 3 * size * 2
                b.memory("experts", f"{rows} rows, {shape}", read, step)
            else:
                b.compute("experts", f"{rows} rows, {shape} in cache", flops, step)


def attentions(b: Bench) -> None:
    """One new token after a long and a short past, and whole prompts."""
    if not b.wanted("attention"):
        return
    shapes = ((32, 4, 128, 4096, 1), (8, 2, 64, 512, 1), (32, 4, 128, 0, 512), (8, 2, 64, 0, 1024))
    for heads, kv_heads, d, past, rows in shapes:
        pages = (past + rows + 63) // 64
        pool = torch.randn(pages, 8, 64, kv_heads * 2 * d).to(BF16)
        q, k, v = (torch.randn(rows, n, d).to(BF16) for n in (heads, kv_heads, kv_heads))
        tables = torch.arange(pages).int()[None], torch.tensor([0, rows]).int(), torch.tensor([past]).int()
        step = partial(native.attention, q, k, v, pool, torch.tensor([pages, 0, 0, 0]).int(), scalar(3), *tables, d**-0.5)
        shape = f"{rows} rows, {past} before, {heads}/{kv_heads} x {d}"
        b.compute("attention", shape, 4 * heads * d * rows * (past + (rows + 1) / 2), step, *rival())


def recurrents(b: Bench) -> None:
    """Delta rule and the convolution before it, one token and a prompt."""
    for key_heads, value_heads, d, rows in ((4, 8, 64, 1), (16, 32, 128, 1), (4, 8, 64, 1024), (16, 32, 128, 512)):
        q, k = (torch.randn(rows, key_heads, d).to(BF16) for _ in range(2))
        v, g, beta = torch.randn(rows, value_heads, d).to(BF16), -torch.rand(rows, value_heads), torch.rand(rows, value_heads)
        pool, slot = torch.zeros(2, 1, value_heads, d, d), torch.tensor([0]).int()
        place = torch.tensor([2, 0]).int(), scalar(0), slot, slot, torch.tensor([0, rows]).int()
        step = partial(native.delta_rule, q, k, v, g, beta, pool, *place, 0.1, True)
        flops = 6 * rows * value_heads * d * d
        b.compute("delta_rule", f"{rows} rows, {key_heads}/{value_heads} x {d}", flops, step, *rival())
        channels = (2 * key_heads + value_heads) * d
        x, weight = torch.randn(rows, channels).to(BF16), torch.randn(channels, 4).to(BF16)
        past = torch.zeros(2, 1, channels, 3).to(BF16)
        b.plain("causal_conv", f"{rows} rows, {channels} channels",
                partial(native.causal_conv, x, weight, None, past, *place, True))  # fmt: skip


def choices(b: Bench) -> None:
    """Router and sampler."""
    for rows, experts, top_k in ((1, 32, 4), (1, 128, 8), (512, 128, 8)):
        call = partial(native.route, torch.randn(rows, experts), None, top_k, "softmax", False, 1, 1, "max", True, 0.0, 1.0)
        b.plain("route", f"{rows} rows, {top_k} of {experts}", call)
    kinds = (("greedy", 0.0, 0, 1.0), ("plain", 1.0, 0, 1.0), ("top-p 0.95", 1.0, 0, 0.95), ("top-k 20", 0.7, 20, 0.9))
    for vocab, (kind, temperature, top_k, top_p) in itertools.product((8192, 151_936), kinds):
        one, none = torch.ones(1), torch.zeros(1)
        call = partial(native.sample, torch.randn(1, vocab) * 2, None, torch.tensor([-1]).int(), one * temperature,
                       torch.tensor([top_k]).int(), one * top_p, none, none, none, one, torch.tensor([1]),
                       torch.tensor([2]), None, None)  # fmt: skip
        b.plain("sample", f"vocabulary {vocab}, {kind}", call)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.6, help="time for each case")
    parser.add_argument("--only", default="", help="ops whose name holds this text")
    parser.add_argument("--isa", choices=native.ISAS, help="instruction set; the best of this CPU by default")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    if options.isa:
        native.set_isa(options.isa)
    native.set_threads(options.threads)
    torch.set_num_threads(options.threads)
    bench = Bench(options.seconds, options.only)
    for cases in (linears, routed, attentions, recurrents, choices):
        cases(bench)


if __name__ == "__main__":
    main()
