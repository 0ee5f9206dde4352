"""ERNIE 4.5 MoE: interleaved rope, softmax router with a correction bias, shared experts, dense first layers."""

from ftc.spec import *
from ftc_models import _names
from ftc_models._config import rope
from ftc_models._decoder import decoder, gqa
from ftc_models._routed import predictors

ARCHITECTURES = ("Ernie4_5_MoeForCausalLM",)


def model(c: Config) -> Model:
    if c.get("use_bias", False):
        raise c.refuse("use_bias", "linears have no biases here", "no published file of the family has them")
    norm, width = RMSNorm(c.rms_norm_eps), c.moe_intermediate_size
    attention = gqa(c, rope=rope(c, pairing="interleaved", theta=5e5))
    router = Router(top_k=c.moe_k, bias=True, epsilon=c.get("moe_norm_min", 1e-12), precision="float32")
    count = c.get("moe_num_shared_experts", 0)
    moe = MoE(router, Experts(c.moe_num_experts, width), SharedExpert(count * width) if count else None)
    layers = range(c.num_hidden_layers)
    first, last, step = c.get("moe_layer_start_index", 1), c.get("moe_layer_end_index", -1), c.get("moe_layer_interval", 1)
    routed = range(first, (last if last >= 0 else len(layers) - 1) + 1)
    ffns = [moe if i in routed and (i + 1) % step == 0 else MLP(c.intermediate_size) for i in layers]
    at = "{p}layers.{i}.mlp."
    rules = _names.BASE | _names.attention(attention) | _names.MLP | _names.experts(width)
    rules |= _names.shared_expert(at + "shared_experts")
    bias = either(at + "moe_statics.e_score_correction_bias", at + "gate.moe_statics.e_score_correction_bias")
    rules["blocks.{i}.ffn.router_bias"] = reshape(bias, moe.choices)
    blocks = (pre_norm(norm, attention, ffn) for ffn in ffns)
    extra = predictors(c, pre_norm(norm, attention, MLP(c.intermediate_size)))
    skip = (Skip("*mtp*", "multi-token prediction head"),)
    return decoder(c, "ernie4_5_moe", blocks, norm, rules, skip=skip, extra=extra, tied=True)
