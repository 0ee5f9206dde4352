"""Tiny configs with recurrent mixers, multipliers and several towers."""

from __future__ import annotations

from typing import Any

from tests.zoo.pieces import FULL, HEAD_16, LINEAR, SLIDING, VOCAB, Tiny, tiny

_MULTIPLIED: dict[str, Any] = dict(
    num_local_experts=8,
    num_experts_per_tok=3,
    embedding_multiplier=2.0,
    logits_scaling=0.5,
    residual_multiplier=0.5,
    attention_multiplier=0.125,
)
_ONE_BRANCH: dict[str, Any] = dict(
    ssm_state_size=16,
    mamba_num_heads=8,
    mamba_head_dim=16,
    n_groups=2,
    chunk_size=8,
    n_routed_experts=8,
    n_shared_experts=1,
    moe_intermediate_size=48,
    moe_shared_expert_intermediate_size=80,
    num_experts_per_tok=3,
    n_group=1,
    topk_group=1,
    routed_scaling_factor=2.5,
    use_mamba_kernels=False,
)
_TOWERS: dict[str, Any] = dict(
    vision_config=dict(
        num_hidden_layers=1,
        hidden_size=16,
        intermediate_size=16,
        num_attention_heads=2,
        patch_size=4,
        pos_emb_height=4,
        pos_emb_width=4,
        max_position_embeddings=16,
    ),
    out_hidden_size=64,
    projector_hidden_size=16,
)
_AUDIO: dict[str, Any] = dict(
    hidden_sizes=[8, 8], patch_sizes=[4, 4], depths=[1, 1], num_hidden_layers=2, out_hidden_size=64
)
_BESIDE_DENSE: dict[str, Any] = dict(
    num_hidden_layers=4,
    layer_types=[SLIDING, SLIDING, SLIDING, FULL],
    sliding_window=8,
    enable_moe_block=True,
    num_experts=8,
    top_k_experts=3,
    moe_intermediate_size=48,
    attention_k_eq_v=True,
    global_head_dim=32,
    num_global_key_value_heads=1,
    hidden_size_per_layer_input=0,
    final_logit_softcapping=30.0,
    tie_word_embeddings=True,
)
_VISION: dict[str, Any] = dict(
    num_hidden_layers=1,
    hidden_size=16,
    intermediate_size=16,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=8,
    patch_size=4,
    position_embedding_size=16,
)

FAMILIES: dict[str, Tiny] = {
    "granitemoe": tiny(_MULTIPLIED),
    "granitemoehybrid": tiny(
        _MULTIPLIED,
        num_hidden_layers=3,
        layers_block_type=["mamba", "attention", "mamba"],
        shared_intermediate_size=80,
        mamba_n_heads=8,
        mamba_d_head=16,
        mamba_n_groups=2,
        mamba_d_state=16,
        mamba_chunk_size=8,
        position_embedding_type="nope",
        tie_word_embeddings=True,
    ),
    "lfm2_moe": tiny(
        num_hidden_layers=4,
        num_experts=8,
        num_experts_per_tok=3,
        moe_intermediate_size=48,
        num_dense_layers=1,
        layer_types=["conv", "conv", FULL, "conv"],
        tie_word_embeddings=True,
    ),
    "jamba": tiny(
        num_hidden_layers=4,
        num_experts=8,
        num_experts_per_tok=2,
        attn_layer_period=4,
        attn_layer_offset=2,
        expert_layer_period=2,
        expert_layer_offset=1,
        mamba_d_state=8,
        mamba_dt_rank=4,
        use_mamba_kernels=False,
    ),
    "nemotron_h": tiny(
        HEAD_16, _ONE_BRANCH, layers_block_type=[LINEAR, "moe", FULL, "mlp"], drop=("num_hidden_layers",)
    ),
    "nemotron_h_latent": tiny(
        HEAD_16,
        _ONE_BRANCH,
        model_type="nemotron_h",
        layers_block_type=[LINEAR, "moe", FULL, "moe"],
        moe_latent_size=32,
        drop=("num_hidden_layers",),
    ),
    "minimax": tiny(
        HEAD_16,
        num_hidden_layers=4,
        num_local_experts=8,
        num_experts_per_tok=2,
        layer_types=[LINEAR, LINEAR, FULL, LINEAR],
        block_size=8,
        full_attn_alpha_factor=1.5,
        full_attn_beta_factor=0.8,
        linear_attn_alpha_factor=1.3,
        linear_attn_beta_factor=0.9,
        mlp_alpha_factor=1.2,
        mlp_beta_factor=0.7,
    ),
    "llama4_text": tiny(
        HEAD_16,
        num_hidden_layers=4,
        num_local_experts=8,
        num_experts_per_tok=1,
        intermediate_size_mlp=96,
        intermediate_size=48,
        attention_chunk_size=8,
        floor_scale=8,
        interleave_moe_layer_step=2,
        no_rope_layers=[1, 1, 1, 0],
    ),
    "gemma4_text": tiny(HEAD_16, _BESIDE_DENSE),
    "gemma4": tiny(HEAD_16, _BESIDE_DENSE, around=dict(vision_config=_VISION), pad_token_id=0),
    "gemma4_text_ple": tiny(
        HEAD_16,
        model_type="gemma4_text",
        num_hidden_layers=4,
        layer_types=[SLIDING, FULL, SLIDING, FULL],
        sliding_window=8,
        global_head_dim=32,
        hidden_size_per_layer_input=16,
        vocab_size_per_layer_input=VOCAB,
        num_kv_shared_layers=2,
        use_double_wide_mlp=True,
        final_logit_softcapping=30.0,
        tie_word_embeddings=True,
    ),
    "muse_glimmer": tiny(HEAD_16, num_hidden_layers=4, sliding_window=8, around=_TOWERS),
    "muse_spark": tiny(
        HEAD_16,
        num_hidden_layers=4,
        num_local_experts=8,
        num_experts_per_tok=3,
        moe_intermediate_size=48,
        moe_hidden_size=32,
        sliding_window=8,
        mlp_layer_types=["dense", "sparse", "sparse", "sparse"],
        output_multiplier=0.5,
        around={**_TOWERS, "audio_config": _AUDIO},
    ),
}
