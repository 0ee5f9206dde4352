"""FlexOlmo: norms behind attention and experts only, query and key norms over whole projections."""

from ftc.spec import *
from ftc_models import _names
from ftc_models._decoder import decoder, gqa

ARCHITECTURES = ("FlexOlmoForCausalLM",)


def model(c: Config) -> Model:
    norm = RMSNorm(c.rms_norm_eps)
    attention = gqa(c, qk_norm=RMSNorm(c.rms_norm_eps, over="projection"))
    router = Router(top_k=c.num_experts_per_tok, renormalize=c.get("norm_topk_prob", False))
    moe = MoE(router, Experts(c.num_experts, c.intermediate_size))
    rules = _names.BASE | _names.SANDWICH | _names.attention(attention) | _names.experts(c.intermediate_size)
    return decoder(c, "flex_olmo", [post_norm(norm, attention, moe)] * c.num_hidden_layers, norm, rules)
