"""Which number format each weight input is said to have: what a pass may rely on without seeing a tensor."""

from __future__ import annotations

from ftc.compile.job import formats
from ftc.spec import Attention, Experts, Head, Model, MoE, RMSNorm, Router, WeightRules, pre_norm


def test_matrices_have_the_type_they_are_kept_in() -> None:
    norm = RMSNorm(1e-6)
    moe = MoE(Router(2, bias=True, precision="float32"), Experts(4, 6, bias=True))
    blocks = (pre_norm(norm, Attention(2, 1, 8, qkv_bias=True, sinks=True), moe),)
    model = Model("m", 8, 16, 32, blocks, norm, WeightRules({}), head=Head(bias=True))
    found = formats(model, "bfloat16")
    assert found.pop("w.ffn.router") == "float32"
    assert set(found) == {
        "w.embedding", "w.head", "w.mixer.qkv", "w.mixer.out", "bank.gate", "bank.up", "bank.down",
    }  # fmt: skip
    assert set(found.values()) == {"bfloat16"}
