"""Measures decode with a limited expert cache on this GPU: kernels alone, then tokens a second by cache size and split."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
# The CPU branch's threads wait for the next layer without sleeping; read when the thread library loads.
os.environ.setdefault("GOMP_SPINCOUNT", "1000000")
os.environ.setdefault("OMP_WAIT_POLICY", "active")

import torch  # noqa: E402

from ftc.compile.cuda import CudaPrograms  # noqa: E402
from ftc.compile.program import Memory  # noqa: E402
from ftc.ops import native  # noqa: E402
from ftc.ops import slots as table  # noqa: E402
from ftc.ops.cuda import bind  # noqa: E402
from ftc.ops.cuda import copy as cuda_copy  # noqa: E402
from ftc.ops.cuda import routed as cuda_routed  # noqa: E402
from ftc.ops.cuda import slots as cuda_slots  # noqa: E402
from ftc.ops.cuda.mailbox import Worker  # noqa: E402
from ftc.runtime.cache.experts import ExpertCache  # noqa: E402
from ftc.runtime.cache.pinned import Pinned  # noqa: E402
from ftc.runtime.cache.split import Costs  # noqa: E402
from ftc.spec.load import build_model  # noqa: E402
from ftc.spec.model import Model  # noqa: E402
from ftc.spec.parameters import block_parameters, expert_record, model_parameters  # noqa: E402
from ftc.weights.banks import Bank  # noqa: E402

torch.set_grad_enabled(False)
PAGE = 64
ALPHA, RHO, ROUTER_STD = 0.55, 0.5, 2.5


def config(layers: int, vocab: int) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "attention_bias": False, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 40960,
        "mlp_only_layers": [], "decoder_sparse_step": 1, "moe_intermediate_size": 768, "norm_topk_prob": True,
        "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": layers,
        "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": False,
        "vocab_size": vocab, "bos_token_id": 1, "eos_token_id": 2, "sliding_window": None, "use_sliding_window": False,
    }  # fmt: skip


class Weights:
    """Random weights whose greedy text is a chain w(t), w(t + 1), ... and whose routing has popular and re-used experts.

    An embedding row is a part that all tokens share plus one that neighbours share; the head's row of t + 1 is the second
    part of t. The shared part makes experts popular for every token, the other makes consecutive tokens choose alike.
    Each block adds about 5 % to the stream, so the chain can be checked at the end.
    """

    def __init__(self, model: Model, dtype: torch.dtype) -> None:
        torch.manual_seed(1)
        hidden, vocab = model.hidden, model.vocab
        shared, noise = torch.randn(hidden, device="cuda"), torch.randn(vocab, hidden, device="cuda")
        z = noise.clone()
        for k in range(1, 11):
            z.add_(torch.roll(noise, k, 0), alpha=RHO**k)
        z.mul_((1 - RHO**2) ** 0.5)
        ends = {"embedding": z * (1 - ALPHA**2) ** 0.5 + ALPHA * shared, "head": torch.roll(z, 1, 0) * 4 * hidden**-0.5}
        self.outer = {p.path: ends.get(p.path, torch.ones(p.shape, device="cuda")).to(dtype) for p in model_parameters(model)}
        self.blocks = [{p.path: self._dense(p, dtype) for p in block_parameters(model, b)} for b in model.blocks]
        record = expert_record(model, model.moe_branches[0][1])
        self.bank = Bank(record, len(model.moe_branches), dtype)
        self.bank.elements.zero_()  # all threads touch the pages first: pinning them is then cheap
        self.pinned = Pinned(self.bank.elements)
        rows = self.bank.elements.view(self.bank.rows, self.bank.row_stride)
        split = 2 * record.width * record.hidden
        for at in range(0, self.bank.rows, record.count):
            part = torch.randn(record.count, self.bank.row_stride, device="cuda", dtype=dtype)
            part[:, :split] *= record.hidden**-0.5
            part[:, split:] *= 0.05 / (0.24 * record.width**0.5)
            rows[at : at + record.count].copy_(part, non_blocking=True)
        torch.cuda.synchronize()

    def _dense(self, p: Any, dtype: torch.dtype) -> torch.Tensor:
        kept = torch.float32 if p.precision == "float32" else dtype
        if len(p.shape) == 1:
            return torch.ones(p.shape, device="cuda", dtype=kept)
        scale = p.shape[1] ** -0.5
        if p.path.endswith("router"):
            scale *= ROUTER_STD
        elif p.path.endswith(".out"):
            scale = 0.05 / (0.6 * p.shape[1] ** 0.5)
        return (torch.randn(p.shape, device="cuda") * scale).to(kept)


def timed(run: Any, repeats: int = 30) -> float:
    """Median microseconds on the device, inside one graph of ten."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            run()
    times = []
    for _ in range(repeats):
        a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        a.record()
        graph.replay()
        b.record()
        b.synchronize()
        times.append(a.elapsed_time(b) * 100)
    return sorted(times)[len(times) // 2]


def kernels(model: Model, w: Weights, worker_threads: int) -> dict[str, Any]:
    """Times of single kernels at 4096 slots, of the link and of the CPU branch by number of experts."""
    cache = ExpertCache(model, w.bank.views(), 1024, 4096, 8, 8, Costs.share(1.0), "cuda")
    i, out = cache.inputs, {}
    cache.state[table.LIVE] = 4096
    parts = [i[f"slots.{n}"] for n in ("state", "owner", "used", "place")]
    rows, ordinal = torch.tensor([1], dtype=torch.int32, device="cuda"), torch.tensor(0, dtype=torch.int32, device="cuda")
    ids = torch.arange(8, dtype=torch.int32, device="cuda")[None]
    big = torch.randint(0, 128, (8, 8), dtype=torch.int32, device="cuda")

    def lookup(which: torch.Tensor, forget: bool) -> None:
        if forget:
            i["slots.place"].fill_(-1)
        cuda_slots.slot_map(which, rows, ordinal, 128, True, *parts, i["slots.first"], i["slots.plan"], i["slots.costs"])

    out["table fill_(-1) alone us"] = timed(lambda: i["slots.place"].fill_(-1))
    out["slot_map 8 hits us"] = timed(lambda: lookup(ids, False))
    out["slot_map 8 misses us, with fill_(-1)"] = timed(lambda: lookup(ids, True))
    out["slot_map 64 routes us, with fill_(-1)"] = timed(lambda: lookup(big, True))
    record = w.bank.record_elements * 2
    fetch = [0.0]
    for q in range(1, 9):
        plan = torch.tensor([q, *[n for k in range(q) for n in (k * 37 % 1024, k)]], dtype=torch.int32, device="cuda")
        both = (i["bank.records"], i["slots.records"])
        us = timed(lambda plan=plan, both=both: cuda_copy.slot_fill(cache.state, plan, *both, "compute"), 10)
        fetch.append(us * 1e-6)
        out[f"slot_fill {q} us (GB/s)"] = f"{us:.1f} ({q * record / us / 1e3:.1f})"
    device = torch.empty(record * 8 // 2, dtype=torch.bfloat16, device="cuda")
    us = timed(lambda: device.copy_(w.bank.elements[: device.numel()], non_blocking=True), 10)
    out["copy engine, 8 records in one piece GB/s"] = 8 * record / us / 1e3
    x = torch.randn(1, model.hidden, device="cuda", dtype=torch.bfloat16)
    hits, slots = torch.ones(1, 8, dtype=torch.int32, device="cuda"), torch.arange(8, dtype=torch.int32, device="cuda")[None]
    views = (i["slots.gate"], i["slots.up"], i["slots.down"])
    act = ("silu", 0.0, 0.0, None, None, None)
    us = timed(lambda: cuda_routed.slot_experts(x, slots, hits, ids, 1, cache.state, *views, *act))
    out["slot_experts 8 us (GB/s)"] = f"{us:.1f} ({8 * record / us / 1e3:.0f})"
    us = timed(lambda: cuda_routed.slot_experts(x, slots, hits, ids, 2, cache.state, *views, *act))
    out["slot_experts none of its kind us"] = us
    cpu = [0.0]
    worker = Worker({n: i[f"mail.{n}"] for n in ("x", "ids", "rows", "note")}, w.bank.views(), 128, "silu", 0.0, 0.0)
    worker.begin()
    weights = torch.rand(1, 8, device="cuda")
    for c in range(1, 9):
        kinds = torch.tensor([[3] * c + [0] * (8 - c)], dtype=torch.int32, device="cuda")
        spent = []
        for step in range(60):
            own = torch.tensor(step % 20, dtype=torch.int32, device="cuda")
            some = torch.randperm(128, device="cuda", dtype=torch.int32)[None, :8].contiguous()
            cuda_routed.cpu_submit(x, some, kinds, own, rows, cache.state, i["mail.x"], i["mail.ids"], i["mail.note"])
            cuda_routed.combine(x, weights, kinds, None, None, i["mail.rows"], i["mail.note"], cache.state)
            torch.cuda.synchronize()
        spent = sorted(s for _, s in worker.times()[10:])
        cpu.append(spent[len(spent) // 2])
        out[f"CPU {c} us (GB/s)"] = f"{cpu[-1] * 1e6:.0f} ({c * record / cpu[-1] / 1e9:.1f})"
    worker.end()
    worker.stop()
    out["late answers"] = int(cache.take_late() > 0)
    out["_fetch"], out["_cpu"] = fetch, cpu
    return out


class Decode:
    """Greedy decode with a cache of `size` of all experts; splits are changed between runs, without a new capture."""

    def __init__(self, model: Model, w: Weights, size: float, tokens: int, compiled: bool, kept: dict[Any, Any]) -> None:
        self.size, self.tokens = size, tokens
        self.slots = max(64, round(size * w.bank.rows))
        self.context = -(-(tokens + 8) // PAGE)
        bank, pools = w.bank.views(), {}
        for name, (group, layers) in model.cache_groups().items():
            pool = torch.zeros((self.context, layers, PAGE, *group.shape), dtype=torch.bfloat16, device="cuda")
            pools[name] = (pool, torch.tensor([self.context, 0, 0, 0], dtype=torch.int32, device="cuda"))
        self.cache = ExpertCache(model, bank, self.slots, self.slots, 8, 8, Costs.share(1.0), "cuda")
        mail = {n: self.cache.inputs[f"mail.{n}"] for n in ("x", "ids", "rows", "note")}
        self.worker = Worker(mail, bank, self.cache.experts, "silu", 0.0, 0.0)
        memory = Memory(w.outer, w.blocks, bank, pools, self.cache.inputs)
        target = bind.bind(native.threads())
        self.programs = CudaPrograms(model, memory, self.context, target, torch.bfloat16, "cached", branch=self.worker,
                                     compiled=compiled, kept=kept)  # fmt: skip

    def run(self, costs: Costs) -> dict[str, Any]:
        """From position 0; the second half is timed."""
        self.cache.set_costs(costs)
        program, cache, tokens = self.programs.decode(1), self.cache, self.tokens
        step, token, right, before, marks = program.step, 1000, 0, cache.counts(), []
        step.pages[0] = torch.arange(self.context, dtype=torch.int32)
        step.offsets[1] = step.rows[0] = 1
        for n in range(tokens):
            step.tokens[0], step.positions[0], step.lengths[0] = token, n, n
            if n == tokens // 2:
                before = cache.counts()
            logits = program.start().run()
            assert logits is not None
            right += int(logits[0].argmax()) == token + 1
            marks.append(time.perf_counter())
            token += 1  # along the chain, so that every run routes alike
        after = cache.counts()
        timed_marks = marks[tokens // 2 :]
        steps = sorted(b - a for a, b in zip(timed_marks, timed_marks[1:], strict=False))
        looks = after.lookups - before.lookups
        return {
            "cache": self.size, "slots": self.slots, "tok/s": len(steps) / sum(steps),
            "step ms p50": steps[len(steps) // 2] * 1e3, "step ms p95": steps[len(steps) * 95 // 100] * 1e3,
            "filled/layer": (after.filled - before.filled) / looks,
            "cpu/layer": (after.on_cpu - before.on_cpu) / looks, "hits/layer": (after.hits - before.hits) / looks,
            "chain": right / tokens, "faults": cache.take_faults(),
        }  # fmt: skip

    def stop(self) -> None:
        self.worker.end()
        self.worker.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--vocab", type=int, default=151936)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=320)
    parser.add_argument("--sizes", type=float, nargs="*", default=[0.1, 0.25, 0.5, 0.999])
    parser.add_argument("--shares", type=float, nargs="*", default=[0.0, 0.4, 0.6, 1.0])
    parser.add_argument("--eager", action="store_true", help="capture regions without compiling them")
    parser.add_argument("--seconds", type=float, default=360, help="start nothing new after this long")
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    begun = time.time()
    bind.bind(a.threads)
    native.set_threads(a.threads)
    model = build_model(config(a.layers, a.vocab))
    w = Weights(model, torch.bfloat16)
    print(f"weights ready after {time.time() - begun:.1f} s: bank {w.bank.size_bytes / 1e9:.1f} GB", flush=True)
    found: dict[str, Any] = {"threads": a.threads, "layers": a.layers, "kernels": kernels(model, w, a.threads), "decode": []}
    for name, value in found["kernels"].items():
        if not name.startswith("_"):
            print(f"  {name:45} {value if isinstance(value, str) else round(value, 2)}", flush=True)
    measured = _whole(found["kernels"]["_fetch"], found["kernels"]["_cpu"])
    print(" cache     split   tok/s  ms p50    p95  hits filled   cpu  chain faults")
    splits = [("measured", measured), *((str(share), Costs.share(share)) for share in a.shares)]
    kept: dict[Any, Any] = {}
    for size in a.sizes:
        bench = None
        try:
            for split, costs in splits:
                if time.time() - begun > a.seconds:
                    break
                begin = time.time()
                bench = bench or Decode(model, w, size, a.tokens, not a.eager, kept)
                r = bench.run(costs)
                found["decode"].append({"split": split, **r})
                print(
                    f"{size:6} {split:>9} {r['tok/s']:7.1f} {r['step ms p50']:7.2f} {r['step ms p95']:6.2f}"
                    f" {r['hits/layer']:5.2f} {r['filled/layer']:6.2f} {r['cpu/layer']:5.2f} {r['chain']:6.2f} {r['faults']:6}"
                    f"   ({time.time() - begin:.0f} s)", flush=True,
                )  # fmt: skip
        except Exception:  # one size that fails must not hide the others
            print(f"{size:6} failed:\n{traceback.format_exc()[-3000:]}", flush=True)
        finally:
            if bench is not None:
                bench.stop()
    if a.json:
        a.json.write_text(json.dumps(found, indent=1, default=str), encoding="utf-8")


def _whole(fetch: list[float], cpu: list[float]) -> Costs:
    """Measured seconds for 0 .. 8 experts, continued at the last slope."""

    def longer(times: list[float]) -> list[float]:
        slope = (times[-1] - times[1]) / (len(times) - 2)
        return [*times, *(times[-1] + slope * n for n in range(1, table.MOST_ROUTES + 1))][: table.MOST_ROUTES + 1]

    return Costs(longer(fetch), longer(cpu))


if __name__ == "__main__":
    main()
