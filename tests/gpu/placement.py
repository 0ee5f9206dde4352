"""Placement never changes tokens on a real GPU: a small random model in float32 over cache sizes, splits, batches and modes."""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from torch import Tensor

from ftc.compile.program import Memory
from ftc.compile.programs import Programs
from ftc.compile.sim import SimPrograms
from ftc.ops import kernels
from ftc.runtime.cache.experts import ExpertCache
from ftc.runtime.cache.split import Costs
from ftc.spec.load import build_model
from ftc.spec.parameters import block_parameters, expert_record, model_parameters
from ftc.target import sim_target
from ftc.trace.inputs import Step

torch.set_grad_enabled(False)

PAGE, TABLE, TOKENS = 64, 2, 10
CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "attention_bias": False, "head_dim": 32,
    "hidden_act": "silu", "hidden_size": 128, "intermediate_size": 96, "max_position_embeddings": 4096, "mlp_only_layers": [1],
    "decoder_sparse_step": 1, "moe_intermediate_size": 64, "norm_topk_prob": True, "num_attention_heads": 4,
    "num_experts": 16, "num_experts_per_tok": 3, "num_hidden_layers": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "tie_word_embeddings": False, "vocab_size": 512, "bos_token_id": 1, "eos_token_id": 2,
    "sliding_window": None, "use_sliding_window": False,
}  # fmt: skip


class Small:
    """The model, its weights on the host, and greedy runs of several prompts over any programs."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.model = build_model(CONFIG)

        def make(p: Any) -> Tensor:
            return torch.randn(p.shape) * (1.4 * p.shape[-1] ** -0.5 if len(p.shape) > 1 else 0.1) + (len(p.shape) == 1)

        self.outer = {p.path: make(p) for p in model_parameters(self.model)}
        self.blocks = [{p.path: make(p) for p in block_parameters(self.model, b)} for b in self.model.blocks]
        record = expert_record(self.model, self.model.moe_branches[0][1])
        rows, size = len(self.model.moe_branches) * record.count, record.width * record.hidden
        self.records = torch.randn(rows, record.elements) * 1.4 * record.hidden**-0.5
        self.bank = {m: torch.as_strided(self.records, (rows, record.width, record.hidden), (record.elements, record.hidden, 1),
                                         k * size) for k, m in enumerate(record.matrices)}  # fmt: skip
        self.rows = rows
        draw = torch.Generator().manual_seed(5)
        self.prompts = [torch.randint(3, 512, (7 + 4 * n,), generator=draw).tolist() for n in range(8)]

    def pools(self, device: str) -> dict[str, tuple[Tensor, Tensor]]:
        made = {}
        for name, (group, layers) in self.model.cache_groups().items():
            data = torch.zeros((8 * TABLE, layers, PAGE, *group.shape), device=device)
            made[name] = (data, torch.tensor([8 * TABLE, 0, 0, 0], dtype=torch.int32, device=device))
        return made

    def memory(self, device: str, cache: dict[str, Tensor]) -> Memory:
        def put(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
            return {k: t.to(device) for k, t in tensors.items()}

        return Memory(put(self.outer), [put(b) for b in self.blocks], self.bank, self.pools(device), cache)

    def greedy(self, programs: Any, batch: int, chunks: bool, count: int = TOKENS) -> list[list[int]]:
        """`count` tokens of each prompt. `chunks` False feeds prompts by decode steps."""
        outs: list[list[int]] = []
        for s, prompt in enumerate(self.prompts[:batch]):
            if chunks:
                program = programs.prefill(len(prompt))
                _fill(program.step, [s], [prompt], [0])
                outs.append([_best(program.start().run())[0]])
            else:
                for n, token in enumerate(prompt):
                    out = self._decode(programs, [s], [token], [n])
                outs.append([out[0]])
        for n in range(count - 1):
            at = [len(p) + n for p in self.prompts[:batch]]
            for out, token in zip(outs, self._decode(programs, list(range(batch)), [o[-1] for o in outs], at), strict=True):
                out.append(token)
        return outs

    def _decode(self, programs: Any, seqs: list[int], tokens: list[int], at: list[int]) -> list[int]:
        program = programs.decode(len(seqs))
        _fill(program.step, seqs, [[t] for t in tokens], at)
        return _best(program.start().run())[: len(seqs)]


def _fill(step: Step, seqs: list[int], rows: list[list[int]], at: list[int]) -> None:
    for tensor in step.tensors().values():
        tensor.zero_()
    step.pages.fill_(-1)
    flat = [t for row in rows for t in row]
    step.tokens[: len(flat)] = torch.tensor(flat, dtype=torch.int32)
    step.positions[: len(flat)] = torch.tensor([a + i for row, a in zip(rows, at, strict=True) for i in range(len(row))])
    ends = torch.tensor([len(row) for row in rows]).cumsum(0)
    step.offsets[1:] = int(ends[-1])
    step.offsets[1 : len(ends) + 1] = ends
    step.select[: len(seqs)] = ends - 1
    step.rows[0] = len(flat)
    for row, s in enumerate(seqs):
        step.pages[row] = torch.arange(s * TABLE, (s + 1) * TABLE)
        step.lengths[row] = at[row]


def _best(logits: Tensor) -> list[int]:
    return logits.argmax(-1).tolist()


def main(device: str = "cuda") -> int:
    target = kernels.bind(2)
    small, wrong = Small(), 0
    plain = Programs(small.model, small.memory("cpu", {}), TABLE, target, None)
    wanted = {batch: small.greedy(plain, batch, True) for batch in (1, 3, 8)}
    assert small.greedy(plain, 3, False) == wanted[3], "the model itself depends on how prompts are fed"
    if device == "cuda":
        from ftc.ops.cuda import bind
        from ftc.ops.cuda.mailbox import Worker

        target = bind.bind(4)
        small.records = pinned = small.records.pin_memory()
        small.bank = {m: torch.as_strided(pinned, v.shape, v.stride(), v.storage_offset()) for m, v in small.bank.items()}
    half, two = small.rows // 2, 2 * small.model.moe_branches[0][1].body.experts.count  # type: ignore[union-attr]
    cases = [
        (1, 0.5, 1, "host", True, False), (4, 0.0, 3, "host", True, False), (4, 0.3, 8, "host", True, True),
        (half, 1.0, 3, "host", False, True), (half, 0.3, 8, "single", True, True), (two, 0.5, 3, "double", True, True),
        (small.rows, 0.5, 8, "double", True, True), (small.rows, 1.0, 1, "single", False, False),
    ]  # fmt: skip
    for slots, share, batch, prefill, chunks, compiled in cases:
        begun = time.time()
        cache = ExpertCache(small.model, small.bank, slots, slots + 2, 8, 64, Costs.share(share), device)
        memory = small.memory(device, cache.inputs)
        if device == "cpu":
            programs: Any = SimPrograms(small.model, memory, TABLE, sim_target(2, True), torch.float32, "cached", prefill,
                                        order="laziest", chunk_rows=(64,))  # fmt: skip
        else:
            from ftc.compile.cuda import CudaPrograms

            cache.inputs["slots.records"].fill_(float("nan"))
            worker = Worker({n: cache.inputs[f"mail.{n}"] for n in ("x", "ids", "rows", "note")}, small.bank, 16, "silu", 0, 0)
            programs = CudaPrograms(small.model, memory, TABLE, target, torch.float32, "cached", prefill, branch=worker,
                                    compiled=compiled, chunk_rows=(64,))  # fmt: skip
        name = f"{slots} slots, split {share}, batch {batch}, prefill {prefill if chunks else 'by decode'}"
        name += ", compiled" * compiled
        try:
            out = small.greedy(programs, batch, chunks)
            faults, late = cache.take_faults(), cache.take_late()
            is_right = out == wanted[batch] and not faults and not late
            print(f"{'ok   ' if is_right else 'WRONG'} {name}: {cache.counts()} faults {faults} late answers {int(late > 0)}"
                  f" {time.time() - begun:.1f} s", flush=True)  # fmt: skip
            if not is_right:
                print("  got   ", out, "\n  wanted", wanted[batch])
        except Exception as e:
            is_right = False
            late = cache.take_late()
            print(f"ERROR {name}: late answers {int(late > 0)} {type(e).__name__}: {str(e)[:1500]}", flush=True)
        wrong += not is_right
        if device == "cuda":
            worker.stop()
    return wrong


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
