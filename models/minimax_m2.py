"""MiniMax-M2: query and key norms over whole projections, partial rope, sigmoid router with a correction bias."""

from ftc.spec import *
from ftc_models import _names
from ftc_models._decoder import decoder, gqa
from ftc_models._dialects import MINIMAX_M2
from ftc_models._routed import expert_count, predictors

ARCHITECTURES = ("MiniMaxM2ForCausalLM",)


def model(c: Config) -> Model:
    norm, wide = RMSNorm(c.rms_norm_eps), RMSNorm(c.rms_norm_eps, over="projection")
    attention = gqa(c, qk_norm=wide)
    router = Router(top_k=c.num_experts_per_tok, score="sigmoid", bias=True, precision="float32")
    moe = MoE(router, Experts(expert_count(c), c.intermediate_size))
    rules = _names.BASE | _names.attention(attention) | _names.block_sparse(c.intermediate_size)
    rules["blocks.{i}.ffn.router_bias"] = either(
        "{p}layers.{i}.block_sparse_moe.e_score_correction_bias", "{p}layers.{i}.mlp.e_score_correction_bias"
    )
    return decoder(
        c,
        "minimax_m2",
        [pre_norm(norm, attention, moe)] * c.num_hidden_layers,
        norm,
        rules,
        skip=(Skip("*mtp.*", "multi-token prediction head"),),
        extra=predictors(c, pre_norm(norm, attention, moe)),
        chat=MINIMAX_M2,
    )
