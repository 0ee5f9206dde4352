"""Configs that no engine could run: refused with the key, the value, and what would work."""

from __future__ import annotations

from typing import Any

import pytest

from ftc.errors import SpecError
from ftc.spec import Attention, GatedDelta, MoE
from ftc.spec.load import build_model
from tests import tiny
from tests.zoo import FAMILIES


def config(family: str, **changes: Any) -> dict[str, Any]:
    """The family's tiny config with `changes` laid over its text part; "absent" takes a key out."""
    values = tiny.config(family)
    inner = "text_config" if "text_config" in values else None
    part = (values[inner] if inner else values) | changes
    part = {k: v for k, v in part.items() if v != "absent"}
    return values | {inner: part} if inner else part


def refusal(family: str, **changes: Any) -> str:
    with pytest.raises(SpecError) as refused:
        build_model(config(family, **changes))
    return str(refused.value)


# family, changes, the key or field that is named, the value, the hint
CASES = [
    ("llama", {"rms_norm_eps": "absent", "rms_norm_epsilon": 1e-6}, "rms_norm_eps: ", "", "similar keys in the file"),
    ("qwen3_moe", {"num_key_value_heads": 3}, "mixer: kv_heads: ", "(got 3)", "the nearest that would is 2"),
    ("jamba", {"num_attention_heads": 5, "num_key_value_heads": 5}, "num_attention_heads: ", "(got 5)", "give head_dim"),
    ("granitemoehybrid", {"mamba_n_groups": 3}, "mixer: groups_of_heads: ", "(got 3)", "the nearest that would is 2"),
    ("granitemoehybrid", {"layer_types": ["mamba", "vortex", "mamba"]}, "layer_types: ", "(got 'vortex')", ""),
    ("nemotron_h", {"hybrid_override_pattern": "ME*?"}, "hybrid_override_pattern: ", "(got 'ME*?')", "known: M E * -"),
    ("lfm2_moe", {"num_experts_per_tok": 9}, "ffn: top_k: ", "(got 9)", ""),
    ("lfm2_moe", {"conv_L_cache": 0}, "mixer: width: ", "(got 0)", ""),
    ("glm4_moe", {"n_group": 3}, "ffn: groups: ", "(got (3, 2))", ""),
    ("llama", {"rope_parameters": {"rope_type": "spiral"}}, "rope_type: ", "(got 'spiral')", "known: default"),
    ("jamba", {"mamba_d_state": -4}, "mixer: state_dim: ", "(got -4)", ""),
    ("minimax", {"head_dim": 15}, "mixer: rope.dim: ", "(got 15)", ""),
]


@pytest.mark.parametrize(("family", "changes", "where", "value", "hint"), CASES)
def test_refused_by_name(family: str, changes: dict[str, Any], where: str, value: str, hint: str) -> None:
    text = refusal(family, **changes)
    assert where in text and value in text and hint in text


MODELS = {family: build_model(tiny.config(family)) for family in FAMILIES}


def bodies(family: str) -> list[Any]:
    return [b.body for block in MODELS[family].blocks for b in block.branches]


FILLED = {"vocab_size": ("gemma3_text", "gemma3")}  # whose published files leave it out


@pytest.mark.parametrize(
    ("family", "key"),
    [(f, k) for f in FAMILIES for k in ("hidden_size", "vocab_size") if f not in FILLED.get(k, ())],
)
def test_a_key_that_is_missing(family: str, key: str) -> None:
    text = refusal(family, **{key: "absent", f"{key}s": 64})
    assert f"{key}: a key the spec needs is missing" in text
    assert f"similar keys in the file: {key}s" in text


GROUPED = [f for f in FAMILIES if any(isinstance(b, Attention) for b in bodies(f))]


@pytest.mark.parametrize("family", GROUPED)
def test_heads_that_do_not_split(family: str) -> None:
    """Three key/value heads for four query heads; layers of one family may count theirs under a key of their own."""
    text = refusal(family, num_attention_heads=4, num_key_value_heads=3)
    assert "mixer: kv_heads: key/value heads do not divide the 4 query heads (got 3)" in text
    assert "the nearest that would is 2" in text and "num_key_value_heads" in text


DELTA = [f for f in FAMILIES if any(isinstance(b, GatedDelta) and b.key_heads != b.value_heads for b in bodies(f))]


@pytest.mark.parametrize("family", DELTA)
def test_heads_of_the_delta_rule_that_do_not_split(family: str) -> None:
    text = refusal(family, linear_num_key_heads=3)
    assert "mixer: key_heads: key heads do not divide the 4 value heads (got 3)" in text
    assert "the nearest that would is 2" in text and "linear_num_key_heads" in text


def grouped_experts(family: str) -> bool:
    return any(isinstance(b, MoE) and b.router.groups is not None for b in bodies(family))


@pytest.mark.parametrize("family", [f for f in FAMILIES if grouped_experts(f)])
def test_experts_that_do_not_fall_into_groups(family: str) -> None:
    values = config(family)
    key = next(k for k in ("n_group", "num_expert_group") if k in values)
    text = refusal(family, **{key: 3, "topk_group": 1})
    count = next(b.choices for b in bodies(family) if isinstance(b, MoE))
    assert f"ffn: groups: {count} experts do not fall into such groups (got (3, 1))" in text
    assert "the nearest that would do is 2 groups" in text and f"this value in {key}" in text


TURNED = [f for f in FAMILIES if any(getattr(b, "rope", None) is not None for b in bodies(f))]


def with_rope_type(given: dict[str, Any], kind: str) -> dict[str, Any]:
    """The same for every kind of layer, where each has its own."""
    nested = {k: with_rope_type(v, kind) for k, v in given.items() if isinstance(v, dict)}
    return given | nested if nested else given | {"rope_type": kind}


@pytest.mark.parametrize("family", TURNED)
def test_a_rope_of_an_unknown_type(family: str) -> None:
    values = tiny.config(family)
    given = values.get("text_config", values)["rope_parameters"]
    text = refusal(family, rope_parameters=with_rope_type(given, "yarm"))
    assert "rope_parameters" in text and "rope_type: unknown rope type (got 'yarm')" in text
    assert "known: default" in text and "the nearest is yarn" in text


def test_a_rope_of_an_unknown_type_in_a_flat_file() -> None:
    text = refusal("llama", rope_parameters="absent", rope_theta=1e4, rope_scaling={"type": "yarm", "factor": 2.0})
    assert "rope_scaling: type: unknown rope type (got 'yarm')" in text and "the nearest is yarn" in text


@pytest.mark.parametrize("family", ["llama", "jamba", "nemotron_h", "muse_spark", "gemma4_text"])
def test_the_same_config_unchanged_is_taken(family: str) -> None:
    build_model(config(family))
