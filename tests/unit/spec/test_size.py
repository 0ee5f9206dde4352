"""Sizes against the reference library's own parameters, cache bytes by hand, and counted arithmetic."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from ftc.spec.load import build_model, read_model
from ftc.spec.model import Model
from ftc.spec.size import measure
from tests import tiny


def spec_of(reference: torch.nn.Module) -> Model:
    config = reference.config.to_dict()
    config["architectures"] = [type(reference).__name__]
    return build_model(config)


@pytest.fixture(scope="module", params=["llama", "qwen3_moe", "qwen3_5_moe_text"])
def reference(request: pytest.FixtureRequest) -> torch.nn.Module:
    return tiny.build(request.param)


def test_parameters(reference: torch.nn.Module) -> None:
    size = measure(spec_of(reference))
    tensors = dict(reference.named_parameters())
    assert size.parameters == sum(t.numel() for t in tensors.values())
    experts = [t for n, t in tensors.items() if ".experts." in n]
    assert size.parameters - size.active_parameters == sum(t.numel() // 8 * (8 - 3) for t in experts)
    assert size.expert_count * size.expert_bytes == 2 * sum(t.numel() for t in experts)
    kinds = sum(len(k.blocks) * k.parameters for k in size.kinds)
    assert kinds == sum(t.numel() for n, t in tensors.items() if ".layers." in n)
    assert sorted(i for k in size.kinds for i in k.blocks) == list(range(reference.config.num_hidden_layers))


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated")
@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
def test_arithmetic_of_one_token(name: str) -> None:
    reference = tiny.build(name)
    size = measure(spec_of(reference))
    for before in (0, 40):
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            cache = reference(torch.ones(1, before, dtype=torch.long), use_cache=True).past_key_values if before else None
            passed = counter.get_total_flops()
            reference(torch.ones(1, 1, dtype=torch.long), past_key_values=cache, use_cache=True)
        counted = counter.get_total_flops() - passed
        assert counted == pytest.approx(size.token_flops + (before + 1) * size.context_flops, rel=0.005)


def test_cache_bytes(demo: Path) -> None:
    size = measure(read_model(demo))
    assert size.token_bytes == 2 * (2 * 2 * 64) * 2  # attention layers, keys and values of 2 heads of 64, bfloat16
    states = 8 * 64 * 64 * 4  # float32
    columns = (2 * 4 * 64 + 8 * 64) * 3 * 2
    assert size.sequence_bytes == 6 * (states + columns)


def test_run_bytes_double_what_runs(demo: Path) -> None:
    small, large = (measure(read_model(demo), n) for n in (2, 4))
    assert large.expert_bytes == 2 * small.expert_bytes and large.token_bytes == 2 * small.token_bytes
    always = 6 * 8 * 2 * 4  # decays and their biases stay float32
    assert large.weight_bytes - always == 2 * (small.weight_bytes - always)
