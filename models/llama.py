"""Llama: dense, grouped-query attention, SwiGLU, wavelength-banded rope in its long-context members."""

from ftc.spec import MLP, Attention, Config, Head, Model, RMSNorm, Skip, WeightRules, pre_norm
from ftc_models import _names
from ftc_models._config import end_tokens, head_dim, rope

ARCHITECTURES = ("LlamaForCausalLM",)


def model(c: Config) -> Model:
    norm = RMSNorm(c.rms_norm_eps)
    attention = Attention(
        heads=c.num_attention_heads,
        kv_heads=c.get("num_key_value_heads", c.num_attention_heads),
        head_dim=head_dim(c),
        rope=rope(c),
        qkv_bias=c.get("attention_bias", False),
        out_bias=c.get("attention_bias", False),
    )
    return Model(
        name="llama",
        hidden=c.hidden_size,
        vocab=c.vocab_size,
        context_tokens=c.max_position_embeddings,
        blocks=tuple(pre_norm(norm, attention, MLP(c.intermediate_size)) for _ in range(c.num_hidden_layers)),
        final_norm=norm,
        head=Head(tied=c.get("tie_word_embeddings", False)),
        weights=WeightRules(
            _names.BASE | _names.attention(attention) | _names.MLP,
            skip=(Skip("*.rotary_emb.inv_freq", "computed from the config"),),
            prefixes=("model.",),
        ),
        end_tokens=end_tokens(c),
    )
