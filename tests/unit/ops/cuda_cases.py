"""Compares the Triton kernels with the references on small random cases; run where TRITON_INTERPRET is set, or on a GPU."""

from __future__ import annotations

import random
import sys
import time

import torch
from torch import Tensor

from ftc.compile.programs import Programs
from ftc.compile.sim import SimPrograms
from ftc.ops import attention, copy, kernels, routed, router, slots
from ftc.ops.cuda import attention as cuda_attention
from ftc.ops.cuda import bind
from ftc.ops.cuda import copy as cuda_copy
from ftc.ops.cuda import routed as cuda_routed
from ftc.ops.cuda import router as cuda_router
from ftc.ops.cuda import slots as cuda_slots
from ftc.ops.slots import ASKED, LATE
from ftc.passes.base import Lowered
from ftc.passes.rewrite import calls
from ftc.runtime.cache.experts import ExpertCache
from ftc.runtime.cache.split import Costs
from ftc.target import cuda_target
from ftc.trace.inputs import Shape
from tests.gpu.placement import TABLE, Small

LAYERS = 3


def ints(n: int, value: int, device: str) -> Tensor:
    return torch.full((n,), value, dtype=torch.int32, device=device)


class Slots:
    """One slot table; `parts` are what table ops take."""

    def __init__(self, live: int, experts: int, share: float, device: str) -> None:
        self.state = ints(16, 0, device)
        self.state[slots.LIVE] = live
        self.owner, self.used = ints(live + 5, -1, device), ints(live + 5, 0, device)
        self.place = ints(experts * LAYERS, -1, device)
        self.first, self.plan = ints(experts, 0, device), ints(1 + 2 * slots.MOST_ROUTES, 0, device)
        self.chosen, self.costs = ints(1 + 2 * experts, 0, device), Costs.share(share).tensor().to(device)

    @property
    def parts(self) -> tuple[Tensor, ...]:
        return self.state, self.owner, self.used, self.place

    def same(self, other: Slots) -> None:
        for name in ("state", "owner", "used", "place"):
            a, b = getattr(self, name).cpu(), getattr(other, name).cpu()
            assert torch.equal(a, b), f"{name}: {a.tolist()} and {b.tolist()}"
        for name in ("plan", "chosen"):
            assert slots.read_list(getattr(self, name).cpu()) == slots.read_list(getattr(other, name).cpu()), name


def table_case(seed: int, device: str, steps: int, live: int, experts: int, rows: int, top_k: int) -> None:
    """Decode lookups and whole layers in random order: tables, lists, slots and kinds equal the reference's."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    share, cpu = draw.choice((0.0, 0.3, 0.5, 1.0)), draw.random() < 0.8
    ref, ours = Slots(live, experts, share, "cpu"), Slots(live, experts, share, device)
    arriving = False
    for _ in range(steps):
        layer = draw.randrange(LAYERS)
        ordinal = torch.tensor(layer, dtype=torch.int32)
        what = draw.random()
        if what < 0.7:
            ids = torch.randint(-1, experts + 1, (rows, top_k), dtype=torch.int32)
            n = torch.tensor([draw.randint(1, rows)], dtype=torch.int32)
            rest = (ref.first, ref.plan, ref.costs)
            want = slots.slot_map.kernels["reference"](ids, n, ordinal, experts, cpu, *ref.parts, *rest)
            got = cuda_slots.slot_map(
                ids.to(device), n.to(device), ordinal.to(device), experts, cpu, *ours.parts, ours.first, ours.plan, ours.costs
            )
            for a, b in zip(want, got, strict=True):
                assert torch.equal(a, b.cpu())
        elif what < 0.85 and not arriving:
            arriving, keep = True, draw.randrange(2)
            slots.layer_map.kernels["reference"](ordinal, experts, keep, *ref.parts, ref.chosen)
            cuda_slots.layer_map(ordinal.to(device), experts, keep, *ours.parts, ours.chosen)
        elif what < 0.95:
            arriving = False
            slots.layer_ready.kernels["reference"](*ref.parts, ref.chosen)
            cuda_slots.layer_ready(*ours.parts, ours.chosen)
        else:
            slots.layer_release.kernels["reference"](*ref.parts)
            cuda_slots.layer_release(*ours.parts)
        ref.same(ours)


def rows_case(
    seed: int, device: str, dtype: torch.dtype, hidden: int, width: int, activation: str, biased: bool, tolerance: float
) -> None:
    """Fill, expert rows of both kinds, mailbox and sum against the references."""
    torch.manual_seed(seed)
    n, k, experts, count = 3, 2, 4, 6
    gated = activation != "relu2"
    names = ("gate", "up", "down")[not gated :]
    elements = len(names) * width * hidden
    bank = (torch.randn(experts * 2, elements + 8) / hidden**0.5).to(dtype)[:, :elements]
    x = torch.randn(n, hidden).to(dtype)
    records = torch.full((count, elements), float("nan"), dtype=dtype)
    plan = torch.tensor([3, 1, 4, 2, 0, 5, 3] + [0] * 8, dtype=torch.int32)
    state = ints(16, 0, "cpu")
    copy.slot_fill.kernels["reference"](state, plan, bank, records, "copy")
    there = torch.full((count, elements), float("nan"), dtype=dtype, device=device)
    source = bank.pin_memory() if device != "cpu" else bank
    cuda_copy.slot_fill(state.to(device), plan.to(device), source, there, "compute")
    assert torch.equal(there.cpu().view(torch.uint8), records.view(torch.uint8)), "fill"

    views = {m: torch.as_strided(records, (count, width, hidden), (elements, hidden, 1), i * width * hidden)
             for i, m in enumerate(names)}  # fmt: skip
    own = {m: torch.as_strided(there, (count, width, hidden), (elements, hidden, 1), i * width * hidden)
           for i, m in enumerate(names)}  # fmt: skip
    ids = torch.tensor([[1, 2], [3, 0], [1, -1]], dtype=torch.int32)
    places = torch.tensor([[4, 0], [3, -1], [4, -1]], dtype=torch.int32)
    kinds = torch.tensor([[1, 2], [2, 3], [1, 0]], dtype=torch.int32)
    bias = [torch.randn(experts, s).to(dtype) if biased else None for s in (width, width, hidden)]
    if not gated:
        bias[0] = None
    limit, alpha = (1.5, 1.7) if biased else (0.0, 0.0)
    on = [None if b is None else b.to(device) for b in bias]
    parts, mine = [], []
    for kind in (1, 2):
        want = routed.slot_experts.kernels["reference"](
            x.float(), places, kinds, ids, kind, state, views.get("gate"), views["up"], views["down"], activation, limit, alpha,
            *bias,
        )  # fmt: skip
        got = cuda_routed.slot_experts(
            x.to(device), places.to(device), kinds.to(device), ids.to(device), kind, state.to(device), own.get("gate"),
            own["up"], own["down"], activation, limit, alpha, *on,
        )  # fmt: skip
        there_ = kinds == kind
        error = (got.cpu()[there_] - want[there_]).norm() / want[there_].norm()
        assert error < tolerance, f"rows of kind {kind}: {error}"
        parts.append(want)
        mine.append(got)
    mail_rows = torch.full((n * k, hidden), float("nan"))
    mail_rows[3] = torch.randn(hidden)
    weights = torch.rand(n, k)
    want = routed.combine.kernels["reference"](x, weights, kinds, *parts, mail_rows, None, state)
    note = ints(8, 0, "cpu")
    rows_on = mail_rows.pin_memory() if device != "cpu" else mail_rows
    got = cuda_routed.combine(
        x.to(device), weights.to(device), kinds.to(device), *[p.to(device) for p in parts], rows_on,
        note.pin_memory() if device != "cpu" else note, state.to(device),
    )  # fmt: skip
    assert (got.cpu().float() - want.float()).norm() / want.float().norm() < 1e-2 * (dtype == torch.bfloat16) + 1e-6, "sum"

    note, failed = ints(8, 0, "cpu"), state.clone()
    failed[LATE] = 5
    got = cuda_routed.combine(
        x.to(device), weights.to(device), kinds.to(device), *[p.to(device) for p in parts], rows_on,
        note.pin_memory() if device != "cpu" else note, failed.to(device),
    )  # fmt: skip
    assert got.cpu().isnan().all(1).tolist() == [False, True, False], "after a late answer no other is taken"

    def mailbox() -> tuple[Tensor, Tensor, Tensor]:
        made = torch.zeros(8, hidden), ints(n * k, -1, "cpu"), ints(8, 0, "cpu")
        return tuple(t.pin_memory() for t in made) if device != "cpu" else made  # type: ignore[return-value]

    ordinal, live = torch.tensor(1, dtype=torch.int32), torch.tensor([2], dtype=torch.int32)
    one, two = mailbox(), mailbox()
    routed.cpu_submit.kernels["reference"](x, ids, kinds, ordinal, live, state, *one)
    cuda_routed.cpu_submit(
        x.to(device), ids.to(device), kinds.to(device), ordinal.to(device), live.to(device), state.to(device), *two
    )
    if device != "cpu":
        torch.cuda.synchronize()
    assert torch.equal(one[0], two[0]) and torch.equal(one[1][:4], two[1][:4]) and torch.equal(one[2][:4], two[2][:4]), "mail"


def late_case() -> None:
    """On a GPU: nobody answers; the wait ends with a diagnostic, and the next one at once."""
    hidden, state, note = 64, ints(16, 0, "cuda"), ints(8, 0, "cpu").pin_memory()
    ids, rows, one = ints(8, 2, "cuda").view(4, 2), ints(1, 4, "cuda"), ints(1, 1, "cuda")
    x, kinds, weights = torch.randn(4, hidden, device="cuda"), torch.full_like(ids, 3), torch.rand(4, 2, device="cuda")
    mail = torch.zeros(4, hidden).pin_memory(), ints(8, -1, "cpu").pin_memory(), note
    mail_rows, spent = torch.zeros(8, hidden).pin_memory(), []
    for number in (1, 2):
        begun = time.monotonic()
        cuda_routed.cpu_submit(x, ids, kinds, one, rows, state, *mail)
        y = cuda_routed.combine(x, weights, kinds, None, None, mail_rows, note, state)
        torch.cuda.synchronize()
        spent.append(time.monotonic() - begun)
        assert y.isnan().all() and int(state[LATE]) == 1 and note[4:7].tolist() == [number, 0, 1], (number, note, state)
    assert 1 <= spent[0] < 30 and spent[1] < 0.5, spent


def numbers_case() -> None:
    """On a GPU: each question is asked once, under the number that the sum will wait for, and a sum in step gets its rows."""
    hidden, top_k, most, state, note = 128, 3, 64, ints(16, 0, "cuda"), ints(8, 0, "cpu").pin_memory()
    x, one = torch.randn(most, hidden, device="cuda"), ints(1, 0, "cuda")
    ids, kinds = ints(most * top_k, 1, "cuda").view(most, top_k), ints(most * top_k, 3, "cuda").view(most, top_k)
    mail = torch.zeros(most, hidden).pin_memory(), ints(most * top_k, -1, "cpu").pin_memory(), note
    cold = torch.empty(1 << 26, dtype=torch.uint8, device="cuda")  # as large as the cache, so that loads are slow
    for number in range(1, 2001):
        live = ints(1, 1 + number * 7 % most, "cuda")
        if number % 4 == 0:
            cold.fill_(number % 256)
        cuda_routed.cpu_submit(x, ids, kinds, one, live, state, *mail)
        torch.cuda.synchronize()
        assert int(note[4]) == int(state[ASKED]) == number, (number, note.tolist(), state.tolist())


def attention_case(seed: int, device: str, dtype: torch.dtype, window: int, softcap: float, tolerance: float) -> None:
    """Decode rows of three sequences, one of them padding: output, cache and faults equal the reference's."""
    torch.manual_seed(seed)
    heads, kv_heads, d, page, layers, table = 6, 2, 24, 16, 2, 4
    pool = torch.randn(12, layers, page, kv_heads * 2 * d).to(dtype)
    both = torch.randn(3, (heads + 2 * kv_heads) * d).to(dtype)
    q, k, v = both.split((heads * d, kv_heads * d, kv_heads * d), -1)
    q, k, v = q.unflatten(-1, (heads, d)), k.unflatten(-1, (kv_heads, d)), v.unflatten(-1, (kv_heads, d))
    pages = torch.tensor([[3, 7, 1, -1], [0, 5, 6, 2], [-1] * table], dtype=torch.int32)
    offsets, lengths = torch.tensor([0, 1, 2, 2], dtype=torch.int32), torch.tensor([33, 50, 0], dtype=torch.int32)
    state, ordinal = torch.tensor([12, 0, 0, 0], dtype=torch.int32), torch.tensor(1, dtype=torch.int32)
    here, there = pool.clone(), pool.to(device)
    fixed = (ordinal, pages, offsets, lengths)
    own = state.to(device)
    want = attention.attention.kernels["reference"](q, k, v, here, state, *fixed, d**-0.5, window, softcap, None, None)
    got = cuda_attention.attention(
        q.to(device), k.to(device), v.to(device), there, own, *[t.to(device) for t in fixed], d**-0.5, window, softcap, None,
        None,
    )  # fmt: skip
    assert torch.equal(here, there.cpu()), "the cache"
    error = (got.cpu()[:2].float() - want[:2].float()).norm() / want[:2].float().norm()
    assert error < tolerance, f"attention: {error}"
    pages[0, 2] = 99
    wrong = cuda_attention.attention(
        q.to(device), k.to(device), v.to(device), there, own, ordinal.to(device), pages.to(device), offsets.to(device),
        lengths.to(device), d**-0.5, window, softcap, None, None,
    )  # fmt: skip
    assert bool(wrong.cpu()[0].isnan().all()) and not bool(wrong.cpu()[1].isnan().any()) and int(own[1]) > 0


def route_case(seed: int, device: str, score: str, biased: bool, renormalize: bool) -> None:
    torch.manual_seed(seed)
    logits, bias = torch.randn(4, 40), torch.randn(40) if biased else None
    rest = (5, score, False, 1, 1, "max", renormalize, 1e-20, 2.5, torch.tensor([4], dtype=torch.int32))
    want = router.route_op.kernels["reference"](logits, bias, *rest)
    got = cuda_router.route(logits.to(device), None if bias is None else bias.to(device), *rest)
    assert torch.equal(want[0], got[0].cpu()) and torch.allclose(want[1], got[1].cpu(), rtol=1e-5), "route"


def lowered_case() -> None:
    """A whole small model lowered for a GPU, its kernels interpreted, its streams played: tokens equal the plain model's."""
    small = Small()
    small.prompts = [p[:2] for p in small.prompts]
    wanted = small.greedy(Programs(small.model, small.memory("cpu", {}), TABLE, kernels.bind(2), None), 2, False, 3)
    bind.register()

    def answer(lowered: Lowered) -> None:
        # no flags between tensors of one memory: the host's stream computes, as where a host function is used
        for graph in lowered.regions.values():
            for node in calls(graph.graph, routed.cpu_run):
                node.target = routed.cpu_run.word
            graph.recompile()

    cache = ExpertCache(small.model, small.bank, 6, 8, 8, 8, Costs.share(0.5))
    programs = SimPrograms(small.model, small.memory("cpu", cache.inputs), TABLE, cuda_target("sm_90", 2), torch.float32,
                           "streamed", "host", order="laziest", change=answer, decode_rows=(1, 2))  # fmt: skip
    nodes = [n for g in programs.lower(Shape(1, 1)).regions.values() for n in g.graph.nodes]
    bound = {n.meta["kernel"] for n in nodes if "kernel" in n.meta}
    assert bound == {"triton", "library"}, bound
    assert small.greedy(programs, 2, False, 3) == wanted, "lowered for a GPU"
    counts = cache.counts()
    assert counts.hits and counts.filled and counts.on_cpu, counts


def main(device: str = "cpu") -> None:
    table_case(1, device, 12, 9, 4, 2, 3)
    table_case(2, device, 10, 40, 8, 4, 2)
    table_case(3, device, 3, 130, 40, 40, 2)  # more than 64 routes
    rows_case(4, device, torch.float32, 64, 48, "silu", False, 1e-6)
    rows_case(5, device, torch.float32, 40, 24, "silu", True, 1e-6)
    rows_case(6, device, torch.bfloat16, 64, 32, "gelu_tanh", False, 1e-5)
    rows_case(7, device, torch.float32, 32, 16, "relu2", False, 1e-6)
    attention_case(8, device, torch.float32, 0, 0.0, 1e-6)
    attention_case(9, device, torch.float32, 20, 5.0, 1e-6)
    if device != "cpu":  # the interpreter's dot does not know bfloat16
        attention_case(10, device, torch.bfloat16, 0, 0.0, 1e-2)
    route_case(11, device, "softmax", False, True)
    route_case(12, device, "sigmoid", True, False)
    if device == "cpu":
        lowered_case()
    else:
        late_case()
        numbers_case()
    print("all kernels equal their references")


if __name__ == "__main__":
    main(*sys.argv[1:])
