"""AFMoE (Trinity): norms around each branch, gated attention, full layers without rope, sigmoid router, shared experts."""

from ftc.spec import *
from ftc_models import _names
from ftc_models._config import layer_kinds, rope, window
from ftc_models._decoder import decoder, gqa
from ftc_models._routed import ffns, moe_names, sigmoid_moe

ARCHITECTURES = ("AfmoeForCausalLM",)


def model(c: Config) -> Model:
    norm, moe = RMSNorm(c.rms_norm_eps), sigmoid_moe(c)

    def attention(kind: str) -> Attention:
        return gqa(
            c,
            rope=rope(c) if kind == "sliding_attention" else None,
            qk_norm=RMSNorm(c.rms_norm_eps, over="head"),
            gate=Gate(source="own"),
            window=window(c, kind),
        )

    kinds = layer_kinds(c, c.get("global_attn_every_n_layers", 4))
    at = "{p}layers.{i}."
    rules = _names.BASE | _names.attention(attention(kinds[0])) | moe_names(moe)
    rules |= {
        "blocks.{i}.mixer.post_norm": at + "post_attention_layernorm.weight",
        "blocks.{i}.ffn.norm": at + "pre_mlp_layernorm.weight",
        "blocks.{i}.ffn.post_norm": at + "post_mlp_layernorm.weight",
        "blocks.{i}.ffn.router": at + "mlp.router.gate.weight",
        "blocks.{i}.ffn.router_bias": at + "mlp.expert_bias",
    }
    blocks = (sandwich_norm(norm, attention(kind), ffn) for kind, ffn in zip(kinds, ffns(c, moe), strict=True))
    embedding = Embedding(c.hidden_size**0.5 if c.get("mup_enabled", False) else 1.0)
    return decoder(c, "afmoe", blocks, norm, rules, embedding=embedding)
