"""MiMo-V2-Flash: windows with sinks and twice the key/value heads, narrower values, sigmoid router, a dense first layer."""

from ftc.spec import *
from ftc_models import _names
from ftc_models._config import layer_kinds, per_layer, rope
from ftc_models._decoder import decoder, gqa
from ftc_models._routed import ffns, moe_names, predictors, sigmoid_moe

ARCHITECTURES = ("MiMoV2FlashForCausalLM",)


def model(c: Config) -> Model:
    c = c.filled(first_k_dense_replace=1, attention_value_scale=0.707)
    norm, moe = RMSNorm(c.first("rms_norm_eps", "layernorm_epsilon")), sigmoid_moe(c)
    window = c.sliding_window_size + 1 if c.get("sliding_window_size") else c.sliding_window

    # flat files write the windowed layers' theta under a key of its own
    theta = c.first("swa_rope_theta", default=1e4)
    flat = c.get("rope_parameters") is None
    windowed = rope(c.over(rope_theta=theta) if flat else c, kind="sliding_attention", share=0.334)

    def attention(kind: str) -> Attention:
        common = dict(value_dim=c.v_head_dim, value_scale=c.attention_value_scale, out_bias=False)
        if kind == "full_attention":
            return gqa(c, rope=rope(c, kind=kind, theta=5e6, share=0.334), **common)
        return gqa(
            c,
            kv_heads=c.get("swa_num_key_value_heads", 2 * c.num_key_value_heads),
            rope=windowed,
            window=window,
            sinks=True,
            cache="kv_window",
            **common,
        )

    marks = per_layer(c, "hybrid_layer_pattern")  # 1: windowed
    kinds = layer_kinds(c) if marks is None else [("full_attention", "sliding_attention")[mark] for mark in marks]
    rules = _names.BASE | _names.attention(attention(kinds[0])) | moe_names(moe)
    rules["blocks.{i}.mixer.sinks"] = either("{p}layers.{i}.self_attn.attention_sink_bias", "{p}layers.{i}.self_attn.sinks")
    blocks = (pre_norm(norm, attention(kind), ffn) for kind, ffn in zip(kinds, ffns(c, moe), strict=True))
    extra = predictors(c, pre_norm(norm, attention("sliding_attention"), MLP(c.intermediate_size)))
    skip = (Skip("model.mtp.*", "multi-token prediction head"),)
    return decoder(c, "mimo_v2_flash", blocks, norm, rules, skip=skip, extra=extra)
