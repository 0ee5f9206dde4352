"""Qwen2-MoE: attention with query, key and value biases, experts with a gated shared expert."""

from ftc.spec import *
from ftc_models import _names
from ftc_models._config import layer_kinds, window
from ftc_models._decoder import CHATML, decoder, gqa

ARCHITECTURES = ("Qwen2MoeForCausalLM",)


def model(c: Config) -> Model:
    norm = RMSNorm(c.rms_norm_eps)
    kinds = layer_kinds(c, full_every=1)
    attentions = [gqa(c, qkv_bias=c.get("qkv_bias", True), window=window(c, kind)) for kind in kinds]
    moe = MoE(
        Router(top_k=c.num_experts_per_tok, renormalize=c.get("norm_topk_prob", False)),
        Experts(c.num_experts, c.moe_intermediate_size),
        SharedExpert(c.shared_expert_intermediate_size, gate="sigmoid"),
    )
    dense, step = c.get("mlp_only_layers", []), c.get("decoder_sparse_step", 1)
    ffns = [MLP(c.intermediate_size) if i in dense or (i + 1) % step else moe for i in range(c.num_hidden_layers)]
    rules = _names.BASE | _names.attention(attentions[0]) | _names.MLP | _names.experts(c.moe_intermediate_size)
    rules |= _names.shared_expert(gate="{p}layers.{i}.mlp.shared_expert_gate.weight")
    blocks = (pre_norm(norm, a, ffn) for a, ffn in zip(attentions, ffns, strict=True))
    return decoder(c, "qwen2_moe", blocks, norm, rules, chat=Chat(stop=CHATML.stop))
