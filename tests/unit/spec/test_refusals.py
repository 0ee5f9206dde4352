"""Configs that no engine could run: refused with the key, the value, and what would work."""

from __future__ import annotations

from typing import Any

import pytest

from ftc.errors import SpecError
from ftc.spec.load import build_model
from tests import tiny


def config(family: str, **changes: Any) -> dict[str, Any]:
    reference = tiny.build(family)
    values = reference.config.to_dict() | changes
    return {k: v for k, v in values.items() if v != "absent"} | {"architectures": [type(reference).__name__]}


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
    with pytest.raises(SpecError) as refused:
        build_model(config(family, **changes))
    text = str(refused.value)
    assert where in text and value in text and hint in text


@pytest.mark.parametrize("family", ["llama", "jamba", "nemotron_h", "muse_spark", "gemma4_text"])
def test_the_same_config_unchanged_is_taken(family: str) -> None:
    build_model(config(family))
