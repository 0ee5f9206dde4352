"""Qwen3-MoE: grouped-query attention with QK-norm, softmax router, SwiGLU experts."""

from ftc.spec import (
    MLP,
    Attention,
    Chat,
    Config,
    Experts,
    Head,
    JsonInTags,
    Model,
    MoE,
    Reasoning,
    RMSNorm,
    Router,
    WeightRules,
    XmlFunctions,
    pre_norm,
)
from ftc_models import _names
from ftc_models._config import end_tokens, head_dim, rope

ARCHITECTURES = ("Qwen3MoeForCausalLM",)


def model(c: Config) -> Model:
    norm = RMSNorm(c.rms_norm_eps)
    attention = Attention(
        heads=c.num_attention_heads,
        kv_heads=c.num_key_value_heads,
        head_dim=head_dim(c),
        rope=rope(c),
        qk_norm=RMSNorm(c.rms_norm_eps, over="head"),
        qkv_bias=c.get("attention_bias", False),
        out_bias=c.get("attention_bias", False),
    )
    count = c.first("num_experts", "num_local_experts")
    moe = MoE(
        Router(top_k=c.num_experts_per_tok, renormalize=c.get("norm_topk_prob", False)),
        Experts(count, c.moe_intermediate_size),
    )
    dense, step = c.get("mlp_only_layers", []), c.get("decoder_sparse_step", 1)
    sparse = [i not in dense and (i + 1) % step == 0 for i in range(c.num_hidden_layers)]
    return Model(
        name="qwen3_moe",
        hidden=c.hidden_size,
        vocab=c.vocab_size,
        context_tokens=c.max_position_embeddings,
        blocks=tuple(pre_norm(norm, attention, moe if s else MLP(c.intermediate_size)) for s in sparse),
        final_norm=norm,
        head=Head(tied=c.get("tie_word_embeddings", False)),
        weights=WeightRules(
            _names.BASE | _names.attention(attention) | _names.MLP | _names.experts(c.moe_intermediate_size),
            prefixes=("model.",),
        ),
        chat=Chat(stop=("<|im_end|>",), reasoning=Reasoning(), tools=(XmlFunctions(), JsonInTags())),
        end_tokens=end_tokens(c),
    )
