"""Gated delta layers beside full attention, as their families write them: config keys and tensor names."""

from __future__ import annotations

from ftc.spec import Attention, Config, Gate, GatedDelta, GatedRMSNorm, RMSNorm, concat, either, reshape, rows
from ftc.spec.weights import Reshape
from ftc_models._config import rope
from ftc_models._decoder import gqa

AT = "{p}layers.{i}.linear_attn."


def mixers(c: Config) -> dict[str, Attention | GatedDelta]:
    """Kind of layer -> its mixer."""
    attention = gqa(
        c,
        rope=rope(c, share=0.25),
        qk_norm=RMSNorm(c.rms_norm_eps, "1+w", over="head"),
        gate=Gate() if c.get("attn_output_gate", True) else None,
    )
    delta = GatedDelta(
        key_heads=c.linear_num_key_heads,
        value_heads=c.linear_num_value_heads,
        key_dim=c.linear_key_head_dim,
        value_dim=c.linear_value_head_dim,
        conv_width=c.linear_conv_kernel_dim,
        norm=GatedRMSNorm(c.rms_norm_eps),
    )
    return {"full_attention": attention, "linear_attention": delta}


def split(d: GatedDelta) -> dict:
    """Rules of gated delta layers whose input projections stand apart."""
    return {"blocks.{i}.mixer.in": concat(*(f"{AT}in_proj_{n}.weight" for n in ("qkv", "z", "b", "a")))} | _rest(d)


def fused(d: GatedDelta, hidden: int) -> dict:
    """Rules where two projections hold everything, key head by key head: [q k v z] and [b a]."""
    share = d.value_heads // d.key_heads
    values = share * d.value_dim
    widths = {"q": d.key_dim, "k": d.key_dim, "v": values, "z": values, "b": share, "a": share}

    def rows_of(name: str, held: str) -> Reshape:
        start = sum(widths[n] for n in held[: held.index(name)])
        heads = reshape(f"{AT}in_proj_{held}.weight", d.key_heads, sum(widths[n] for n in held), hidden)
        return reshape(rows(heads, start, widths[name], dim=1), d.key_heads * widths[name], hidden)

    parts = [rows_of(n, held) for held in ("qkvz", "ba") for n in held]
    return {"blocks.{i}.mixer.in": concat(*parts)} | _rest(d)


def _rest(d: GatedDelta) -> dict:
    return {
        "blocks.{i}.mixer.conv": reshape(AT + "conv1d.weight", d.conv_channels, d.conv_width),
        "blocks.{i}.mixer.log_decay": AT + "A_log",
        "blocks.{i}.mixer.decay_bias": AT + "dt_bias",
        "blocks.{i}.mixer.inner_norm": AT + "norm.weight",
        "blocks.{i}.mixer.out": either("{p}layers.{i}.self_attn.o_proj.weight", AT + "out_proj.weight"),
    }
