"""Kimi Linear: delta rule with a decay per channel, and latent attention without rope after every few; sigmoid router."""

from ftc.spec import Chat, Config, GatedDelta, GatedRMSNorm, Model, RMSNorm, concat, pre_norm, reshape
from ftc_models import _names
from ftc_models._config import layer_kinds
from ftc_models._decoder import decoder
from ftc_models._dialects import KIMI
from ftc_models._latent import latent, latent_names
from ftc_models._routed import extra_layers, ffns, moe_names, one_of, predictors, sigmoid_moe

ARCHITECTURES = ("KimiLinearForCausalLM",)


def _delta(c: Config) -> GatedDelta:
    own = c.get("linear_attn_config", Config({}))
    heads, dim = own.get("num_heads", c.get("linear_num_heads")), own.get("head_dim", c.get("linear_head_dim"))
    return GatedDelta(
        key_heads=heads,
        value_heads=heads,
        key_dim=dim,
        value_dim=dim,
        conv_width=own.get("short_conv_kernel_size", c.get("linear_conv_kernel_dim", 4)),
        norm=GatedRMSNorm(c.rms_norm_eps, "sigmoid"),
        decay_per="channel",
        decay_rank=dim,
        gate_rank=dim,
    )


def _kinds(c: Config) -> list[str]:
    """Published files list full layers by number, counted from 1."""
    own = c.get("linear_attn_config", Config({})).get("full_attn_layers")
    if own is not None:
        return ["full_attention" if i + 1 in own else "linear_attention" for i in range(c.num_hidden_layers)]
    return layer_kinds(c)


def _delta_names(d: GatedDelta, forget: str, conv: tuple[str, ...]) -> dict:
    at, inner = "{p}layers.{i}.self_attn.", "blocks.{i}.mixer."
    inputs = ("q_proj", "k_proj", "v_proj", "g_a_proj", "b_proj", forget + "f_a_proj")
    return {
        inner + "in": concat(*(f"{at}{n}.weight" for n in inputs)),
        inner + "gate_up": at + "g_b_proj.weight",
        inner + "decay_up": f"{at}{forget}f_b_proj.weight",
        inner + "conv": reshape(concat(*(f"{at}{n}.weight" for n in conv)), d.conv_channels, d.conv_width),
        inner + "log_decay": reshape(f"{at}{forget}A_log", d.value_heads),
        inner + "decay_bias": f"{at}{forget}dt_bias",
        inner + "inner_norm": at + "o_norm.weight",
    }


def model(c: Config) -> Model:
    norm, delta, moe = RMSNorm(c.rms_norm_eps), _delta(c), sigmoid_moe(c)
    mixers = {"full_attention": latent(c, rope=None), "linear_attention": delta}
    rules = _names.BASE | one_of(
        latent_names(mixers["full_attention"]),
        _delta_names(delta, "", tuple(f"{n}_conv1d" for n in "qkv")),
        _delta_names(delta, "forget_gate.", ("conv1d",)),
    )
    places = ("{p}layers.{i}.block_sparse_moe.", "{p}layers.{i}.mlp.")
    rules |= one_of(*(moe_names(moe, at, matrices=_names.W_1_3_2) for at in places))
    return decoder(
        c,
        "kimi_linear",
        [pre_norm(norm, mixers[kind], ffn) for kind, ffn in zip(_kinds(c), ffns(c, moe), strict=True)],
        norm,
        rules,
        skip=extra_layers(c),
        context_tokens=c.first("model_max_length", "max_position_embeddings"),
        extra=predictors(c, pre_norm(norm, mixers["full_attention"], moe)),
        chat=Chat(stop=("<|im_end|>",), tools=(KIMI,)),
    )
