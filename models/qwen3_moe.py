"""Qwen3-MoE: grouped-query attention with QK-norm, softmax router, SwiGLU experts."""

from ftc.spec import *
from ftc_models import _names
from ftc_models._decoder import CHATML, decoder, gqa
from ftc_models._routed import expert_count

ARCHITECTURES = ("Qwen3MoeForCausalLM",)


def model(c: Config) -> Model:
    norm = RMSNorm(c.rms_norm_eps)
    attention = gqa(c, qk_norm=RMSNorm(c.rms_norm_eps, over="head"))
    moe = MoE(
        Router(top_k=c.num_experts_per_tok, renormalize=c.get("norm_topk_prob", False)),
        Experts(expert_count(c), c.moe_intermediate_size),
    )
    dense, step = c.get("mlp_only_layers", []), c.get("decoder_sparse_step", 1)
    ffns = [MLP(c.intermediate_size) if i in dense or (i + 1) % step else moe for i in range(c.num_hidden_layers)]
    rules = _names.BASE | _names.attention(attention) | _names.MLP | _names.experts(c.moe_intermediate_size)
    return decoder(c, "qwen3_moe", (pre_norm(norm, attention, ffn) for ffn in ffns), norm, rules, chat=CHATML)
