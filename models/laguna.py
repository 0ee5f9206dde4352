"""Laguna: heads, windows and ropes by layer, softplus gates on attention, sigmoid router, a shared expert."""

from ftc.spec import *
from ftc_models import _names
from ftc_models._config import layer_kinds, per_layer, rope, window
from ftc_models._decoder import decoder, gqa
from ftc_models._routed import expert_count, ffns, moe_names

ARCHITECTURES = ("LagunaForCausalLM",)


def model(c: Config) -> Model:
    c = c.filled(first_k_dense_replace=1)
    if c.get("moe_apply_router_weight_on_input", False):
        raise c.refuse("moe_apply_router_weight_on_input", "weights apply to what experts give", "no published file has it")
    norm, head_norm = RMSNorm(c.rms_norm_eps), RMSNorm(c.rms_norm_eps, over="head")
    gating = c.get("gating", True)
    gate = Gate("softplus", "head" if gating in (True, "per-head") else "element", "own")
    router = Router(
        top_k=c.num_experts_per_tok,
        score="sigmoid",
        bias=True,
        scale=c.get("moe_routed_scaling_factor", 1.0),
        softcap=c.get("moe_router_logit_softcapping", 0.0),
    )
    moe = MoE(router, Experts(expert_count(c), c.moe_intermediate_size), SharedExpert(c.shared_expert_intermediate_size))
    kinds = layer_kinds(c, full_every=1)
    heads = per_layer(c, "num_attention_heads_per_layer") or [c.num_attention_heads] * len(kinds)
    attentions = [
        gqa(c, heads=h, rope=rope(c, kind=kind), qk_norm=head_norm, gate=gate, window=window(c, kind))
        for h, kind in zip(heads, kinds, strict=True)
    ]
    at = "{p}layers.{i}.mlp."
    rules = _names.BASE | _names.attention(attentions[0], gate="g_proj") | moe_names(moe)
    rules["blocks.{i}.ffn.router_bias"] = either(at + "experts.e_score_correction_bias", at + "gate.e_score_correction_bias")
    newer = _names.shared_expert(at + "shared_experts")
    rules |= {path: either(rule, newer[path]) for path, rule in _names.shared_expert(at + "shared_expert").items()}
    blocks = (pre_norm(norm, a, ffn) for a, ffn in zip(attentions, ffns(c, moe), strict=True))
    return decoder(c, "laguna", blocks, norm, rules)
