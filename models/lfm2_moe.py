"""LFM2-MoE: gated short convolutions with some attention, sigmoid router with a bias on the choice, dense first layers."""

from ftc.spec import *
from ftc_models import _names
from ftc_models._config import layer_kinds
from ftc_models._decoder import decoder, gqa
from ftc_models._dialects import LFM

ARCHITECTURES = ("Lfm2MoeForCausalLM",)


def model(c: Config) -> Model:
    norm = RMSNorm(c.norm_eps)
    attention = gqa(c, qk_norm=RMSNorm(c.norm_eps, over="head"))
    conv = ShortConv(c.hidden_size, c.conv_L_cache, c.get("conv_bias", False))
    router = Router(
        top_k=c.num_experts_per_tok,
        score="sigmoid",
        bias=c.get("use_expert_bias", True),
        renormalize=c.get("norm_topk_prob", True),
        epsilon=1e-6,
        scale=c.get("routed_scaling_factor", 1.0),
    )
    moe, mlp = MoE(router, Experts(c.num_experts, c.moe_intermediate_size)), MLP(c.intermediate_size)
    mixers = {"conv": conv, "full_attention": attention}
    dense = c.get("num_dense_layers", 2)
    at, moe_at = "{p}layers.{i}.", "{p}layers.{i}.feed_forward."
    mixer, ffn = "blocks.{i}.mixer.", "blocks.{i}.ffn."
    rules = _names.BASE | _names.attention(attention)
    rules |= _names.experts(c.moe_intermediate_size, moe_at, _names.W_1_3_2) | {
        "final_norm": "{p}embedding_norm.weight",
        mixer + "norm": at + "operator_norm.weight",
        mixer + "q_norm": at + "self_attn.q_layernorm.weight",
        mixer + "k_norm": at + "self_attn.k_layernorm.weight",
        mixer + "in": at + "conv.in_proj.weight",
        mixer + "conv": reshape(at + "conv.conv.weight", conv.channels, conv.width),
        mixer + "out": either(at + "self_attn.out_proj.weight", at + "conv.out_proj.weight"),
        mixer + "in_bias": at + "conv.in_proj.bias",
        mixer + "conv_bias": at + "conv.conv.bias",
        mixer + "out_bias": at + "conv.out_proj.bias",
        ffn + "norm": at + "ffn_norm.weight",
        ffn + "gate_up": concat(moe_at + "w1.weight", moe_at + "w3.weight"),
        ffn + "down": moe_at + "w2.weight",
        ffn + "router_bias": either(moe_at + "expert_bias", moe_at + "gate.e_score_correction_bias"),
    }  # fmt: skip
    return decoder(
        c,
        "lfm2_moe",
        tuple(pre_norm(norm, mixers[kind], mlp if i < dense else moe) for i, kind in enumerate(layer_kinds(c))),
        norm,
        rules,
        head=Head(tied=c.first("tie_word_embeddings", "tie_embedding", default=True)),
        chat=Chat(stop=("<|im_end|>",), tools=(LFM,)),
    )
