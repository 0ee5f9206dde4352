"""Loading: every tensor of the embedded model and of the tiny families against an independent read."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from ftc.errors import TargetError
from ftc.spec.ffn import MoE
from ftc.spec.load import read_model
from ftc.spec.mixer import Attention
from ftc.spec.model import Model
from ftc.spec.parameters import block_parameters, model_parameters
from ftc.weights import load as loading
from ftc.weights.load import PHASE, Weights, load
from tests import tiny


def stored(folder: Path) -> dict[str, torch.Tensor]:
    """The checkpoint as the safetensors library reads it, names without their prefix and towers left out."""
    found = {k: v for f in sorted(folder.glob("*.safetensors")) for k, v in load_file(f).items()}
    plain = {k.replace("model.language_model.", "").removeprefix("model."): v for k, v in found.items()}
    return {k: v for k, v in plain.items() if not k.startswith("visual.")}


def expected_block(t: dict[str, torch.Tensor], at: str, mixer: Any, ffn: Any) -> dict[str, torch.Tensor]:
    """What a block of the three families is made of, written down a second time."""
    own = {"mixer.norm": t[at + "input_layernorm.weight"], "ffn.norm": t[at + "post_attention_layernorm.weight"]}
    if isinstance(mixer, Attention):
        own["mixer.qkv"] = torch.cat([t[f"{at}self_attn.{n}_proj.weight"] for n in "qkv"])
        own["mixer.out"] = t[at + "self_attn.o_proj.weight"]
        if mixer.qk_norm is not None:
            own |= {f"mixer.{n}_norm": t[f"{at}self_attn.{n}_norm.weight"] for n in "qk"}
    else:
        own["mixer.in"] = torch.cat([t[f"{at}linear_attn.in_proj_{n}.weight"] for n in ("qkv", "z", "b", "a")])
        own["mixer.conv"] = t[at + "linear_attn.conv1d.weight"].squeeze(1)
        own |= {"mixer.log_decay": t[at + "linear_attn.A_log"], "mixer.decay_bias": t[at + "linear_attn.dt_bias"]}
        own |= {
            "mixer.inner_norm": t[at + "linear_attn.norm.weight"],
            "mixer.out": t[at + "linear_attn.out_proj.weight"],
        }
    if not isinstance(ffn, MoE):
        own["ffn.gate_up"] = torch.cat([t[f"{at}mlp.{n}_proj.weight"] for n in ("gate", "up")])
        return own | {"ffn.down": t[at + "mlp.down_proj.weight"]}
    own["ffn.router"] = t[at + "mlp.gate.weight"]
    if ffn.shared is not None:
        shared = at + "mlp.shared_expert"
        own["ffn.shared_gate_up"] = torch.cat([t[f"{shared}.{n}_proj.weight"] for n in ("gate", "up")])
        own |= {"ffn.shared_down": t[shared + ".down_proj.weight"], "ffn.shared_gate": t[shared + "_gate.weight"]}
    return own


def expected_experts(t: dict[str, torch.Tensor], at: str, count: int) -> dict[str, torch.Tensor]:
    if at + "experts.gate_up_proj" in t:
        gate, up = t[at + "experts.gate_up_proj"].chunk(2, dim=1)
        down = t[at + "experts.down_proj"]
    else:
        parts = [[t[f"{at}experts.{e}.{n}_proj.weight"] for e in range(count)] for n in ("gate", "up", "down")]
        gate, up, down = (torch.stack(p) for p in parts)
    return {"gate": gate, "up": up, "down": down.transpose(1, 2)}


def compare(model: Model, folder: Path, weights: Weights, dtype: torch.dtype) -> None:
    t = stored(folder)
    assert torch.equal(weights.model["embedding"], t["embed_tokens.weight"].to(dtype))
    assert torch.equal(weights.model["final_norm"], t["norm.weight"].to(dtype))
    assert ("head" in weights.model) == (not model.head.tied)
    if not model.head.tied:
        assert torch.equal(weights.model["head"], t["lm_head.weight"].to(dtype))
    ordinal = 0
    for i, block in enumerate(model.blocks):
        mixer, ffn = (b.body for b in block.branches)
        expected = expected_block(t, f"layers.{i}.", mixer, ffn)
        precisions = {p.path: p.precision for p in block_parameters(model, block)}
        assert set(expected) == set(precisions)
        for path, value in expected.items():
            kind = torch.float32 if precisions[path] == "float32" else dtype
            found = weights.blocks[i][path]
            assert found.dtype == kind and torch.equal(found, value.to(kind)), path
        if isinstance(ffn, MoE):
            assert weights.bank is not None
            count = ffn.experts.count
            for name, value in expected_experts(t, f"layers.{i}.mlp.", count).items():
                own = weights.bank.views()[name][ordinal * count : (ordinal + 1) * count]
                assert torch.equal(own, value.to(dtype)), name
            ordinal += 1
    assert (weights.bank is None) == (ordinal == 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_embedded_model(demo: Path, dtype: torch.dtype) -> None:
    model = read_model(demo)
    weights = load(model, demo, dtype)
    compare(model, demo, weights, dtype)
    assert weights.bank is not None
    assert weights.size_bytes == sum(t.nbytes for p in (weights.model, *weights.blocks) for t in p.values()) + (
        weights.bank.size_bytes
    )


WRITTEN_TWICE = ("llama", "qwen3_moe", "qwen3_5_moe_text", "qwen3_5_moe")  # those that `expected_block` knows


@pytest.fixture(scope="module", params=[(n, y) for n in WRITTEN_TWICE for y in ("disk", "runtime")], ids="-".join)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name, layout = request.param
    folder = tmp_path_factory.mktemp("tiny")
    tiny.write(name, folder, layout=layout)
    return folder


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tiny_families_in_both_layouts(checkpoint: Path, dtype: torch.dtype) -> None:
    model = read_model(checkpoint)
    compare(model, checkpoint, load(model, checkpoint, dtype), dtype)


def test_layouts_differ_and_give_the_same(tmp_path: Path) -> None:
    for layout in ("disk", "runtime"):
        tiny.write("qwen3_moe", tmp_path / layout, layout=layout)
    both = [stored(tmp_path / layout) for layout in ("disk", "runtime")]
    assert "layers.0.mlp.experts.3.up_proj.weight" in both[0] and "layers.0.mlp.experts.gate_up_proj" in both[1]
    one, other = (load(read_model(tmp_path / n), tmp_path / n, torch.float32) for n in ("disk", "runtime"))
    assert one.bank is not None and other.bank is not None
    assert torch.equal(one.bank.elements, other.bank.elements)


def test_order_alignment_and_storage(demo: Path) -> None:
    model = read_model(demo)
    weights = load(model, demo, torch.bfloat16)
    assert list(weights.model) == [p.path for p in model_parameters(model)]
    for block, own in zip(model.blocks, weights.blocks, strict=True):
        assert list(own) == [p.path for p in block_parameters(model, block)]
    for t in (t for part in (weights.model, *weights.blocks) for t in part.values()):
        assert t.is_contiguous() and t.data_ptr() % 64 == 0 and t.storage_offset() == 0


def test_progress_counts_bytes_up_to_the_end(demo: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    threads = set()

    def progress(phase: str, done: int, total: int) -> None:
        seen.append((phase, done, total))
        threads.add(threading.get_ident())

    weights = load(read_model(demo), demo, torch.bfloat16, progress)
    assert {phase for phase, _, _ in seen} == {PHASE} and threads == {threading.get_ident()}
    done = [d for _, d, _ in seen]
    assert done == sorted(done) and done[0] == 0 and done[-1] == seen[0][2] == seen[-1][2]
    assert done[-1] == weights.size_bytes  # this bank has no padding


def test_small_jobs_and_one_thread_give_the_same(demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = read_model(demo)
    one = load(model, demo, torch.bfloat16)
    monkeypatch.setattr(loading, "JOB_BYTES", 40_000)
    monkeypatch.setenv("FTC_THREADS", "1")
    other = load(model, demo, torch.bfloat16)
    assert one.bank is not None and other.bank is not None and torch.equal(one.bank.elements, other.bank.elements)
    for a, b in zip((one.model, *one.blocks), (other.model, *other.blocks), strict=True):
        assert all(torch.equal(a[k], b[k]) for k in a)


def test_memory_is_refused_before_anything_is_read(demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory._replace(available=10_000_000))
    monkeypatch.setattr(loading, "Reader", None)
    with pytest.raises(TargetError, match="the weights take 36.7 MiB, and 9.54 MiB of memory"):
        load(read_model(demo), demo, torch.bfloat16)


def test_no_second_copy_of_the_model(tmp_path: Path) -> None:
    """Peak memory while loading is the loaded size and small buffers, not twice the size."""
    model_bytes = _wide_checkpoint(tmp_path)
    model = read_model(tmp_path)
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    except OSError:
        pytest.skip("this kernel does not let the peak be reset")
    before = psutil.Process().memory_info().rss
    weights = load(model, tmp_path, torch.bfloat16)
    status = Path("/proc/self/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
    assert weights.size_bytes >= model_bytes > 150_000_000
    assert peak - before < model_bytes + 80_000_000


def _wide_checkpoint(folder: Path) -> int:
    hidden, width, experts, vocab = 512, 512, 96, 16384
    tiny.write("qwen3_moe", folder, layers=1, mlp_only_layers=[], num_experts=2, hidden_size=8)  # for its config
    config = folder / "config.json"
    changed = json.loads(config.read_text()) | {
        "hidden_size": hidden, "moe_intermediate_size": width, "num_local_experts": experts, "vocab_size": vocab,
        "num_experts": experts,
    }  # fmt: skip
    config.write_text(json.dumps(changed))
    shapes = {
        "lm_head.weight": (vocab, hidden), "model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,),
        "model.layers.0.input_layernorm.weight": (hidden,), "model.layers.0.post_attention_layernorm.weight": (hidden,),
        "model.layers.0.self_attn.q_proj.weight": (64, hidden), "model.layers.0.self_attn.k_proj.weight": (32, hidden),
        "model.layers.0.self_attn.v_proj.weight": (32, hidden), "model.layers.0.self_attn.o_proj.weight": (hidden, 64),
        "model.layers.0.self_attn.q_norm.weight": (16,), "model.layers.0.self_attn.k_norm.weight": (16,),
        "model.layers.0.mlp.gate.weight": (experts, hidden),
        "model.layers.0.mlp.experts.gate_up_proj": (experts, 2 * width, hidden),
        "model.layers.0.mlp.experts.down_proj": (experts, hidden, width),
    }  # fmt: skip
    save_file({n: torch.ones(s, dtype=torch.bfloat16) for n, s in shapes.items()}, folder / "model.safetensors")
    return 2 * sum(int(np.prod(s)) for s in shapes.values())
