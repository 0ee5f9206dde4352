"""Tiny configs with latent attention, token indexers and compressed attention."""

from __future__ import annotations

import re
from typing import Any

from tests.zoo.pieces import FULL, LATENT, LINEAR, N_ROUTED, SLIDING, YARN, YARN_SCALING, Tiny, rope, tiny

_COMPRESSED, _HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
_SPARSE = ["dense", "sparse", "sparse"]
# with 4 index heads some scores tie at exactly 0, and a tie may go either way; with 8 none was seen
_INDEX: dict[str, Any] = dict(index_topk=6, index_head_dim=16, index_n_heads=8)
_KEY_DELTA: dict[str, Any] = dict(
    num_hidden_layers=4,
    num_experts=8,
    num_experts_per_token=3,
    moe_intermediate_size=48,
    num_shared_experts=1,
    linear_head_dim=16,
    linear_num_heads=4,
    linear_conv_kernel_dim=4,
    layer_types=[LINEAR, LINEAR, LINEAR, FULL],
    mlp_layer_types=[*_SPARSE, "sparse"],
)


def _dense_names(name: str) -> str:
    """The library names dense layers like the routed ones when it writes; published files say mlp there."""
    return re.sub(r"\.block_sparse_moe\.(gate|up|down)_proj\.", r".mlp.\1_proj.", name)


def _published_names(name: str) -> str:
    """The library undoes only a part of its renaming when it writes."""
    name = name.removeprefix("model.").replace("embed_tokens.", "embed.").replace("hc_head.hc_", "hc_head_")
    return name.replace(".attn.norm.", ".attn.kv_norm.")


FAMILIES: dict[str, Tiny] = {
    "deepseek_v2": tiny(
        LATENT,
        N_ROUTED,
        rope(**YARN_SCALING, mscale=0.707, mscale_all_dim=0.707),
        num_hidden_layers=3,
        topk_method="group_limited_greedy",
        n_shared_experts=2,
        norm_topk_prob=False,
    ),
    "deepseek_v2_lite": tiny(
        LATENT,
        N_ROUTED,
        model_type="deepseek_v2",
        q_lora_rank=None,
        topk_method="greedy",
        n_group=None,
        topk_group=None,
        norm_topk_prob=False,
        routed_scaling_factor=1.0,
        n_shared_experts=2,
    ),
    "deepseek_v3": tiny(LATENT, N_ROUTED, rope(**YARN_SCALING, mscale=1.0, mscale_all_dim=1.0), num_hidden_layers=3),
    "deepseek_v32": tiny(LATENT, N_ROUTED, YARN, _INDEX, num_hidden_layers=3),
    "glm4_moe_lite": tiny(
        LATENT, N_ROUTED, num_hidden_layers=3, drop=("first_k_dense_replace",), mlp_layer_types=_SPARSE
    ),
    "glm_moe_dsa": tiny(
        LATENT,
        N_ROUTED,
        _INDEX,
        num_hidden_layers=3,
        n_group=1,
        topk_group=1,
        indexer_types=["full", "full", "shared"],
    ),
    "kimi_linear": tiny(
        LATENT, _KEY_DELTA, q_lora_rank=None, num_expert_group=1, topk_group=1, rename=_dense_names
    ),
    "bailing_hybrid": tiny(LATENT, _KEY_DELTA, num_expert_group=4, topk_group=2),
    "longcat_flash": tiny(
        LATENT,
        num_layers=2,
        n_routed_experts=8,
        zero_expert_num=4,
        moe_topk=3,
        head_dim=8,
        ffn_hidden_size=96,
        expert_ffn_hidden_size=48,
        routed_scaling_factor=2.0,
        drop=("num_hidden_layers", "intermediate_size"),
    ),
    "deepseek_v4": tiny(
        num_hidden_layers=4,
        num_key_value_heads=1,
        head_dim=32,
        q_lora_rank=24,
        o_groups=2,
        o_lora_rank=16,
        n_routed_experts=8,
        num_experts_per_tok=3,
        moe_intermediate_size=48,
        index_n_heads=4,
        index_head_dim=16,
        index_topk=2,
        sliding_window=8,
        layer_types=[SLIDING, _HEAVY, _COMPRESSED, _COMPRESSED],
        mlp_layer_types=["hash_moe", "hash_moe", "moe", "moe"],
        compress_rates={_COMPRESSED: 4, _HEAVY: 8},
        partial_rotary_factor=0.25,
        hc_sinkhorn_iters=5,
        swiglu_limit=2.0,
        drop=("intermediate_size",),
        rename=_published_names,
    ),
}
