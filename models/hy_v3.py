"""Hunyuan 3: attention with QK-norm, sigmoid router with a correction bias, shared experts, dense first layers."""

from ftc.spec import *
from ftc_models import _names
from ftc_models._decoder import decoder, gqa
from ftc_models._routed import extra_layers, ffns, moe_names, predictors, sigmoid_moe

ARCHITECTURES = ("HYV3ForCausalLM",)


def model(c: Config) -> Model:
    norm, moe = RMSNorm(c.rms_norm_eps), sigmoid_moe(c.filled(first_k_dense_replace=1))
    attention = gqa(c, qk_norm=RMSNorm(c.rms_norm_eps, over="head"))
    at = "{p}layers.{i}.mlp."
    rules = _names.BASE | _names.attention(attention) | moe_names(moe)
    rules |= {
        "blocks.{i}.ffn.router": either(at + "router.gate.weight", at + "gate.weight"),
        "blocks.{i}.ffn.router_bias": either(at + "expert_bias", at + "e_score_correction_bias"),
    }
    newer = _names.shared_expert(at + "shared_experts")
    rules |= {path: either(rule, newer[path]) for path, rule in _names.shared_expert(at + "shared_mlp").items()}
    blocks = (pre_norm(norm, attention, ffn) for ffn in ffns(c.filled(first_k_dense_replace=1), moe))
    return decoder(c, "hy_v3", blocks, norm, rules, skip=extra_layers(c), extra=predictors(c, pre_norm(norm, attention, moe)))
