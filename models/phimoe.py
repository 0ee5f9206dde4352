"""Phi-3.5-MoE: layer norms with biases, sparse mixing of two experts, biases in attention and head, per-pair rope factors."""

from ftc.spec import *
from ftc_models import _names
from ftc_models._decoder import decoder, gqa

ARCHITECTURES = ("PhimoeForCausalLM", "PhiMoEForCausalLM")


def model(c: Config) -> Model:
    norm, attention = LayerNorm(c.rms_norm_eps), gqa(c, window=0)
    router = Router(top_k=c.num_experts_per_tok, score="sparse_mixer", epsilon=c.get("router_jitter_noise", 0.01))
    moe = MoE(router, Experts(c.num_local_experts, c.intermediate_size))
    rules = _names.BASE | _names.attention(attention) | _names.block_sparse(c.intermediate_size)
    rules |= {
        "final_norm_bias": "{p}norm.bias",
        "head_bias": "lm_head.bias",
        "blocks.{i}.mixer.norm_bias": "{p}layers.{i}.input_layernorm.bias",
        "blocks.{i}.ffn.norm_bias": "{p}layers.{i}.post_attention_layernorm.bias",
        "blocks.{i}.ffn.router": either("{p}layers.{i}.block_sparse_moe.gate.weight", "{p}layers.{i}.mlp.router.weight"),
    }
    stretched = c.get("rope_parameters") or c.get("rope_scaling") or Config({})
    # beyond the original length the model was trained with other factors, which would turn every earlier key anew
    original = c.first("original_max_position_embeddings", default=None)
    return decoder(
        c,
        "phimoe",
        [pre_norm(norm, attention, moe)] * c.num_hidden_layers,
        norm,
        rules,
        head=Head(tied=c.get("tie_word_embeddings", False), bias=c.get("lm_head_bias", False)),
        context_tokens=stretched.get("original_max_position_embeddings", original),
        chat=Chat(stop=("<|end|>",)),
    )
