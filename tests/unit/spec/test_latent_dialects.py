"""Spellings of configs with latent and compressed attention: published files and today's give the same spec, or a refusal."""

from __future__ import annotations

from typing import Any

import pytest

from ftc.errors import SpecError
from ftc.spec import Config, Model
from ftc.spec.load import build_model
from ftc_models._latent import latent_rope, softmax_scale
from tests.zoo import FAMILIES

SLIDING, SPARSE, HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
CLASSES = {
    "deepseek_v4": "DeepseekV4ForCausalLM",
    "kimi_linear": "KimiLinearForCausalLM",
    "glm_moe_dsa": "GlmMoeDsaForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "bailing_hybrid": "BailingHybridForCausalLM",
}


def built(family: str, drop: tuple[str, ...] = (), **changes: Any) -> Model:
    """The spec of a tiny config with `changes`, and without the keys in `drop`."""
    own = {"rms_norm_eps": 1e-6, **FAMILIES[family].fields, "architectures": [CLASSES[family]], **changes}
    return build_model({k: v for k, v in own.items() if k not in drop})


def test_compressed_layers_by_ratio_and_hashed_layers_by_count() -> None:
    common: dict[str, Any] = dict(
        rope_theta=1e4, scoring_func="sqrtsoftplus", routed_scaling_factor=1.5, n_shared_experts=1, hc_mult=4, hc_eps=1e-6
    )
    yarn = dict(factor=16.0, original_max_position_embeddings=64, beta_fast=32, beta_slow=1)
    turn = {"main": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25},
            "compress": {"rope_type": "yarn", "rope_theta": 1.6e5, "partial_rotary_factor": 0.25, "attention_factor": 1.0,
                         **yarn}}  # fmt: skip
    newer = built("deepseek_v4", **common, rope_parameters=turn)
    flat = built(
        "deepseek_v4", ("layer_types", "mlp_layer_types", "partial_rotary_factor"), **common, compress_ratios=[0, 8, 4, 4, 0],
        num_hash_layers=2, qk_rope_head_dim=8, compress_rope_theta=1.6e5, rope_scaling={"type": "yarn", **yarn},
    )  # fmt: skip
    assert newer == flat
    ropes = [block.branches[0].body.rope for block in flat.blocks]  # type: ignore[union-attr]
    assert [r.theta for r in ropes if r] == [1e4, 1.6e5, 1.6e5, 1.6e5] and all(r and r.amplitude() == 1.0 for r in ropes)


def test_delta_layers_by_number() -> None:
    common: dict[str, Any] = dict(moe_renormalize=True, routed_scaling_factor=2.0)
    linear = dict(full_attn_layers=[4], kda_layers=[1, 2, 3], head_dim=16, num_heads=4, short_conv_kernel_size=4)
    drop = ("layer_types", "linear_head_dim", "linear_num_heads", "linear_conv_kernel_dim", "mlp_layer_types")
    assert built("kimi_linear", **common) == built(
        "kimi_linear", drop, **common, linear_attn_config=linear, first_k_dense_replace=1
    )


def test_groups_of_layers() -> None:
    common: dict[str, Any] = dict(moe_renormalize=True, routed_scaling_factor=2.0, rope_theta=6e6)
    assert built("bailing_hybrid", **common) == built("bailing_hybrid", ("layer_types",), **common, layer_group_size=4)


def test_layers_that_share_a_choice_of_tokens() -> None:
    listed = built("glm_moe_dsa")
    assert built("glm_moe_dsa", ("indexer_types",), index_topk_pattern="FFS") == listed
    modes = [block.branches[0].body.indexer.mode for block in listed.blocks]  # type: ignore[union-attr]
    assert modes == ["full", "full", "shared"]
    every = built("glm_moe_dsa", ("indexer_types",), index_topk_freq=2, index_skip_topk_offset=2, num_hidden_layers=4)
    modes = [block.branches[0].body.indexer.mode for block in every.blocks]  # type: ignore[union-attr]
    assert modes == ["full", "full", "shared", "full"]


def test_a_stretched_rope_strengthens_the_softmax_and_not_cos_and_sin() -> None:
    yarn = dict(factor=40, original_max_position_embeddings=4096, mscale=1.0, mscale_all_dim=1.0, type="yarn")
    c = Config(dict(qk_nope_head_dim=128, qk_rope_head_dim=64, max_position_embeddings=163840, rope_theta=1e4,
                    rope_scaling=yarn))  # fmt: skip
    # 0.1 ln 40 + 1 = 1.368888, squared 1.873853
    assert softmax_scale(c) == pytest.approx(192**-0.5 * 1.873853, rel=1e-5)
    assert latent_rope(c).amplitude() == pytest.approx(1.0) and latent_rope(c).dim == 64


@pytest.mark.parametrize(
    ("family", "changes", "said"),
    [
        ("deepseek_v2", {"topk_method": "lottery"}, "topk_method: unknown way to choose experts"),
        ("deepseek_v3", {"attention_bias": True}, "attention_bias: latent attention has no biases"),
        ("deepseek_v3", {"qk_rope_head_dim": 7}, "rope.dim: rope needs an even number"),
        ("deepseek_v3", {"topk_group": 5}, "groups: 8 experts do not fall into such groups"),
        ("glm_moe_dsa", {"indexer_types": ["full"]}, "indexer_types: 1 entries for 3 layers"),
        ("glm_moe_dsa", {"indexer_types": ["shared"] * 3}, "shares indices before any layer chose them"),
        ("glm_moe_dsa", {"indexer_types": None, "index_topk_pattern": "FX?"}, "index_topk_pattern: wants F or S"),
        ("deepseek_v4", {"layer_types": [SLIDING] * 3 + ["round"]}, "layer_types: no known kind for each layer: .'round'"),
        ("deepseek_v4", {"compress_ratios": [0, 4, 5, 4]}, "compress_ratios: no known kind for each layer: .'5'"),
        ("deepseek_v4", {"scoring_func": "tanh"}, "scoring_func: unknown score of experts"),
        ("deepseek_v4", {"o_groups": 3}, "out_groups: groups do not divide the 4 heads"),
        ("kimi_linear", {"layer_types": ["linear_attention"]}, "layer_types: 1 entries for 4 layers"),
    ],
)
def test_refusals_name_the_key(family: str, changes: dict[str, Any], said: str) -> None:
    common: dict[str, Any] = dict(
        scoring_func="sqrtsoftplus", routed_scaling_factor=1.5, n_shared_experts=1, hc_mult=4, hc_eps=1e-6, rope_theta=1e4
    )
    with pytest.raises(SpecError, match=said):
        built(family, **{**(common if family == "deepseek_v4" else {}), **changes})
