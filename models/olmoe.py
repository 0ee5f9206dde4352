"""OLMoE: query and key norms over whole projections, clipped projections, softmax router without renormalising."""

from ftc.spec import *
from ftc_models import _names
from ftc_models._decoder import decoder, gqa

ARCHITECTURES = ("OlmoeForCausalLM",)


def model(c: Config) -> Model:
    norm = RMSNorm(c.rms_norm_eps)
    attention = gqa(c, qk_norm=RMSNorm(c.rms_norm_eps, over="projection"), clip=c.get("clip_qkv", 0.0))
    router = Router(top_k=c.num_experts_per_tok, renormalize=c.get("norm_topk_prob", False))
    moe = MoE(router, Experts(c.num_experts, c.intermediate_size))
    rules = _names.BASE | _names.attention(attention) | _names.experts(c.intermediate_size)
    return decoder(c, "olmoe", [pre_norm(norm, attention, moe)] * c.num_hidden_layers, norm, rules)
