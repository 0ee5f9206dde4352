"""Qwen3.5/3.6-MoE: gated delta layers with gated full attention after every few, experts with a gated shared expert."""

from ftc.spec import *
from ftc_models import _delta, _names
from ftc_models._config import layer_kinds, text_part
from ftc_models._decoder import CHATML, decoder
from ftc_models._routed import predictors

ARCHITECTURES = ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration")


def model(c: Config) -> Model:
    c = text_part(c)
    norm, mixers = RMSNorm(c.rms_norm_eps, "1+w"), _delta.mixers(c)
    moe = MoE(
        Router(top_k=c.num_experts_per_tok),
        Experts(c.num_experts, c.moe_intermediate_size),
        SharedExpert(c.shared_expert_intermediate_size, gate="sigmoid"),
    )
    kinds = layer_kinds(c, c.get("full_attention_interval", 4), other="linear_attention")
    rules = _names.BASE | _names.attention(mixers["full_attention"]) | _delta.split(mixers["linear_attention"])
    rules |= _names.experts(c.moe_intermediate_size)
    rules |= _names.shared_expert(gate="{p}layers.{i}.mlp.shared_expert_gate.weight")
    return decoder(
        c,
        "qwen3_5_moe",
        (pre_norm(norm, mixers[kind], moe) for kind in kinds),
        norm,
        rules,
        skip=(Skip("*mtp.*", "multi-token prediction head"), Skip("*visual.*", "vision tower: served text-only")),
        prefixes=("model.language_model.", "model."),
        extra=predictors(c, pre_norm(norm, mixers["full_attention"], moe)),
        chat=CHATML,
    )
