"""Qwen3.5/3.6-MoE: gated delta layers with gated full attention after every few, experts with a gated shared expert."""

from ftc.spec import (
    Attention,
    Chat,
    Config,
    Experts,
    Gate,
    GatedDelta,
    GatedRMSNorm,
    Head,
    JsonInTags,
    Model,
    MoE,
    Reasoning,
    RMSNorm,
    Router,
    SharedExpert,
    Skip,
    WeightRules,
    XmlFunctions,
    concat,
    pre_norm,
    reshape,
)
from ftc_models import _names
from ftc_models._config import end_tokens, head_dim, rope, text_part

ARCHITECTURES = ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration")


def model(c: Config) -> Model:
    c = text_part(c)
    norm = RMSNorm(c.rms_norm_eps, "1+w")
    attention = Attention(
        heads=c.num_attention_heads,
        kv_heads=c.num_key_value_heads,
        head_dim=head_dim(c),
        rope=rope(c),
        qk_norm=RMSNorm(c.rms_norm_eps, "1+w", over="head"),
        gate=Gate() if c.get("attn_output_gate", True) else None,
        qkv_bias=c.get("attention_bias", False),
        out_bias=c.get("attention_bias", False),
    )
    delta = GatedDelta(
        key_heads=c.linear_num_key_heads,
        value_heads=c.linear_num_value_heads,
        key_dim=c.linear_key_head_dim,
        value_dim=c.linear_value_head_dim,
        conv_width=c.linear_conv_kernel_dim,
        norm=GatedRMSNorm(c.rms_norm_eps),
    )
    moe = MoE(
        Router(top_k=c.num_experts_per_tok),
        Experts(c.num_experts, c.moe_intermediate_size),
        SharedExpert(c.shared_expert_intermediate_size, gate="sigmoid"),
    )
    mixers = {"full_attention": attention, "linear_attention": delta}
    at = "{p}layers.{i}.linear_attn."
    linear = {
        "blocks.{i}.mixer.in": concat(*(f"{at}in_proj_{n}.weight" for n in ("qkv", "z", "b", "a"))),
        "blocks.{i}.mixer.conv": reshape(at + "conv1d.weight", delta.conv_channels, delta.conv_width),
        "blocks.{i}.mixer.log_decay": at + "A_log",
        "blocks.{i}.mixer.decay_bias": at + "dt_bias",
        "blocks.{i}.mixer.inner_norm": at + "norm.weight",
    }
    rules = _names.BASE | _names.attention(attention) | linear | _names.experts(c.moe_intermediate_size)
    rules |= _names.shared_expert(gate="{p}layers.{i}.mlp.shared_expert_gate.weight")
    rules |= {"blocks.{i}.mixer.out": _names.either("{p}layers.{i}.self_attn.o_proj.weight", at + "out_proj.weight")}
    return Model(
        name="qwen3_5_moe",
        hidden=c.hidden_size,
        vocab=c.vocab_size,
        context_tokens=c.max_position_embeddings,
        blocks=tuple(pre_norm(norm, mixers[kind], moe) for kind in c.layer_types),
        final_norm=norm,
        head=Head(tied=c.get("tie_word_embeddings", False)),
        weights=WeightRules(
            rules,
            skip=(Skip("*mtp.*", "multi-token prediction head"), Skip("*visual.*", "vision tower: served text-only")),
            prefixes=("model.language_model.", "model."),
        ),
        chat=Chat(stop=("<|im_end|>",), reasoning=Reasoning(), tools=(XmlFunctions(), JsonInTags())),
        end_tokens=end_tokens(c),
    )
