"""Qwen3-Next: gated delta layers with fused projections, gated full attention, experts with a gated shared expert."""

from ftc.spec import *
from ftc_models import _delta, _names
from ftc_models._config import layer_kinds
from ftc_models._decoder import CHATML, decoder
from ftc_models._routed import predictors

ARCHITECTURES = ("Qwen3NextForCausalLM",)


def model(c: Config) -> Model:
    norm, mixers = RMSNorm(c.rms_norm_eps, "1+w"), _delta.mixers(c)
    moe = MoE(
        Router(top_k=c.num_experts_per_tok, renormalize=c.get("norm_topk_prob", True)),
        Experts(c.num_experts, c.moe_intermediate_size),
        SharedExpert(c.shared_expert_intermediate_size, gate="sigmoid"),
    )
    kinds = layer_kinds(c, c.get("full_attention_interval", 4), other="linear_attention")
    dense, step = c.get("mlp_only_layers", []), c.get("decoder_sparse_step", 1)
    ffns = [MLP(c.intermediate_size) if i in dense or (i + 1) % step else moe for i in range(c.num_hidden_layers)]
    rules = _names.BASE | _names.attention(mixers["full_attention"]) | _names.MLP
    rules |= _delta.fused(mixers["linear_attention"], c.hidden_size) | _names.experts(c.moe_intermediate_size)
    rules |= _names.shared_expert(gate="{p}layers.{i}.mlp.shared_expert_gate.weight")
    blocks = (pre_norm(norm, mixers[kind], ffn) for kind, ffn in zip(kinds, ffns, strict=True))
    extra = predictors(c, pre_norm(norm, mixers["full_attention"], moe))
    skip = (Skip("mtp.*", "multi-token prediction head"),)
    return decoder(c, "qwen3_next", blocks, norm, rules, skip=skip, extra=extra, chat=CHATML)
