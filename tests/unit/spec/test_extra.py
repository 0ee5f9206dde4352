"""Layers that guess further tokens: counted as their makers count them, shown apart, and never in a total."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ftc.cli.spec import command
from ftc.errors import SpecError
from ftc.spec.load import build_model
from ftc.spec.show import summary
from ftc.spec.size import ExtraSize, measure
from tests import tiny
from tests.zoo import FAMILIES

NAME = "multi-token prediction"
LARGE: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "first_k_dense_replace": 3,
    "num_attention_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 163840,
    "num_nextn_predict_layers": 1,
}
DENSE_PREDICTOR: dict[str, Any] = {
    "architectures": ["ExaoneMoeForCausalLM"],
    "vocab_size": 153600,
    "hidden_size": 6144,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 48,
    "first_k_dense_replace": 1,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_experts": 128,
    "num_shared_experts": 1,
    "num_experts_per_tok": 8,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 2.5,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
    "sliding_window": 128,
    "max_position_embeddings": 262144,
    "num_nextn_predict_layers": 1,
}


@pytest.mark.parametrize(
    ("config", "total", "extra"),
    [(LARGE, 671, 11.5), (DENSE_PREDICTOR, 236, 0.52)],
    ids=["routed", "dense"],
)
def test_counted_as_published(config: dict[str, Any], total: float, extra: float) -> None:
    """Billions, as the makers give them: the whole model, and the prediction layer without embedding and head."""
    size = measure(build_model(config))
    (found,) = size.extra
    assert (found.name, found.layers) == (NAME, 1)
    assert abs(found.parameters / 1e9 / extra - 1) < 0.02, f"{found.parameters / 1e9:.3f} G"
    assert abs(size.parameters / 1e9 / total - 1) < 0.02, f"{size.parameters / 1e9:.1f} G"


def declaring(family: str, **changes: Any) -> dict[str, Any]:
    """A tiny config with `changes`, where its text part is."""
    values = tiny.config(family)
    values.get("text_config", values).update(changes)
    return values


# Family -> the key in which its files say how many such layers there are.
KEYS = {
    "deepseek_v3": "num_nextn_predict_layers",
    "deepseek_v32": "num_nextn_predict_layers",
    "deepseek_v4": "num_nextn_predict_layers",
    "glm4_moe": "num_nextn_predict_layers",
    "glm4_moe_lite": "num_nextn_predict_layers",
    "glm_moe_dsa": "num_nextn_predict_layers",
    "hy_v3": "num_nextn_predict_layers",
    "kimi_linear": "num_nextn_predict_layers",
    "bailing_hybrid": "num_nextn_predict_layers",
    "ernie4_5_moe": "num_nextn_predict_layers",
    "exaone_moe": "num_nextn_predict_layers",
    "longcat_flash": "num_nextn_predict_layers",
    "mimo_v2_flash": "num_nextn_predict_layers",
    "qwen3_next": "num_nextn_predict_layers",
    "qwen3_5": "mtp_num_hidden_layers",
    "qwen3_5_moe_text": "mtp_num_hidden_layers",
    "minimax_m2": "num_mtp_modules",
    "minimax_m3_vl": "num_mtp_modules",
    "nemotron_h": "num_nextn_predict_layers",
}


def test_every_family_that_skips_such_tensors_counts_them() -> None:
    skipping = set()
    for family in FAMILIES:
        model = build_model(tiny.config(family))
        if any("multi-token" in skip.reason for skip in model.weights.skip):
            skipping.add(model.name)
    assert skipping == {build_model(tiny.config(family)).name for family in KEYS}


@pytest.mark.parametrize("family", KEYS)
def test_declared_layers_are_in_no_other_number(family: str) -> None:
    pattern = {"mtp_hybrid_override_pattern": "*E"} if family == "nemotron_h" else {}
    plain = measure(build_model(declaring(family, **{KEYS[family]: 0})))
    one, three = (measure(build_model(declaring(family, **pattern, **{KEYS[family]: n}))) for n in (1, 3))
    assert plain.extra == ()
    (a,), (b,) = one.extra, three.extra
    assert (a.layers, b.layers) == (1, 3) and b.parameters == 3 * a.parameters > 0
    for size in (one, three):
        for field in set(type(size).__struct_fields__) - {"extra"}:
            assert getattr(size, field) == getattr(plain, field), field


def test_shown_as_a_line_and_in_json(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(declaring("glm4_moe", num_nextn_predict_layers=2)))
    size = measure(build_model(json.loads(path.read_text())))
    shown = CliRunner().invoke(command, ["show", str(path)]).output
    (line,) = (line for line in shown.splitlines() if "not counted" in line)
    assert f"2 layers for {NAME}" in line and "not served" in line
    found = json.loads(CliRunner().invoke(command, ["show", str(path), "--json"]).stdout)
    assert [ExtraSize(**one) for one in found["extra"]] == list(size.extra) and found["parameters"] == size.parameters


def test_nothing_is_said_where_nothing_is_declared(demo: Path) -> None:
    model = build_model(json.loads((demo / "config.json").read_text()))
    assert "not counted" not in dict(summary(model, measure(model)))


@pytest.mark.parametrize("count", [-1, 1.5, "two"])
def test_a_count_that_is_none(count: object) -> None:
    with pytest.raises(SpecError, match="num_nextn_predict_layers: must be a whole number"):
        build_model(declaring("glm4_moe", num_nextn_predict_layers=count))
