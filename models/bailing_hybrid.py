"""Ling 3 (hybrid): delta rule with a bounded decay per channel, gated latent attention after every few, sigmoid router."""

from ftc.spec import *
from ftc_models import _names
from ftc_models._config import layer_kinds
from ftc_models._decoder import decoder
from ftc_models._latent import latent, latent_names
from ftc_models._routed import extra_layers, ffns, moe_names, one_of, predictors, sigmoid_moe

ARCHITECTURES = ("BailingHybridForCausalLM",)


def _delta_names(d: GatedDelta, at: str, forget: str, conv: tuple[str, ...]) -> dict:
    inner = "blocks.{i}.mixer."
    inputs = ("q_proj", "k_proj", "v_proj", "g_proj", "b_proj", forget + "f_proj")
    return {
        inner + "in": concat(*(f"{at}{n}.weight" for n in inputs)),
        inner + "conv": reshape(concat(*(f"{at}{n}.weight" for n in conv)), d.conv_channels, d.conv_width),
        inner + "log_decay": f"{at}{forget}A_log",
        inner + "decay_bias": f"{at}{forget}dt_bias",
        inner + "inner_norm": at + "o_norm.weight",
    }


def model(c: Config) -> Model:
    norm, moe = RMSNorm(c.rms_norm_eps), sigmoid_moe(c)
    attention = latent(c, gate=Gate(per="head", source="own"))
    heads, dim = c.num_attention_heads, c.first("linear_head_dim", "head_dim")
    delta = GatedDelta(
        key_heads=heads,
        value_heads=heads,
        key_dim=dim,
        value_dim=dim,
        conv_width=c.first("linear_conv_kernel_dim", "short_conv_kernel_size", default=4),
        norm=GatedRMSNorm(c.rms_norm_eps, "sigmoid"),
        decay_per="channel",
        decay_floor=c.get("kda_lower_bound", -5.0) if c.get("kda_safe_gate", True) else 0.0,
    )
    mixers = {"full_attention": attention, "linear_attention": delta}
    published, library = "{p}layers.{i}.attention.", "{p}layers.{i}.self_attn."
    rules = _names.BASE | one_of(
        _delta_names(delta, published, "", tuple(f"{n}_conv1d" for n in "qkv")),
        _delta_names(delta, library, "forget_gate.", ("conv1d",)),
        latent_names(attention, published) | {"blocks.{i}.mixer.out": published + "dense.weight"},
        latent_names(attention, library),
    )
    rules |= one_of(moe_names(moe, bias="gate.expert_bias"), moe_names(moe))
    rules["embedding"] = either("{p}word_embeddings.weight", "{p}embed_tokens.weight")
    kinds = layer_kinds(c, c.get("layer_group_size", 6), "linear_attention")
    return decoder(
        c,
        "bailing_hybrid",
        [pre_norm(norm, mixers[kind], ffn) for kind, ffn in zip(kinds, ffns(c, moe), strict=True)],
        norm,
        rules,
        skip=extra_layers(c),
        context_tokens=c.first("model_max_length", "max_position_embeddings"),
        extra=predictors(c, pre_norm(norm, attention, moe)),
        chat=Chat(stop=("<|role_end|>",), reasoning=Reasoning(), tools=(TaggedPairs(),)),
    )
