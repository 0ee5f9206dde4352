"""DeepSeek-V2: latent attention, softmax router with groups scored by their best expert, shared experts."""

from ftc.spec import Config, Experts, Model, MoE, RMSNorm, Router, pre_norm
from ftc_models import _names
from ftc_models._decoder import decoder
from ftc_models._latent import latent, latent_names
from ftc_models._routed import expert_count, ffns, groups, moe_names, shared

ARCHITECTURES = ("DeepseekV2ForCausalLM",)


def model(c: Config) -> Model:
    norm, attention = RMSNorm(c.rms_norm_eps), latent(c)
    match c.get("topk_method", "greedy"):
        case "greedy":
            grouping = None
        case "group_limited_greedy":
            grouping = groups(c, "max")
        case _:
            raise c.refuse("topk_method", "unknown way to choose experts", "known: greedy, group_limited_greedy")
    # the weights are scaled, never renormalised: so does the reference, whatever norm_topk_prob says
    router = Router(c.num_experts_per_tok, groups=grouping, renormalize=False, scale=c.get("routed_scaling_factor", 1.0))
    moe = MoE(router, Experts(expert_count(c), c.moe_intermediate_size), shared(c))
    blocks = [pre_norm(norm, attention, ffn) for ffn in ffns(c, moe)]
    return decoder(c, "deepseek_v2", blocks, norm, _names.BASE | latent_names(attention) | moe_names(moe))
