"""Where the common checkpoint layout keeps each parameter; families take these rules and change what differs."""

from __future__ import annotations

from ftc.spec import Attention, concat, either, rows, stack, transpose

BASE = {
    "embedding": "{p}embed_tokens.weight",
    "final_norm": "{p}norm.weight",
    "head": "lm_head.weight",
    "blocks.{i}.mixer.norm": "{p}layers.{i}.input_layernorm.weight",
    "blocks.{i}.ffn.norm": "{p}layers.{i}.post_attention_layernorm.weight",
}

MLP = {
    "blocks.{i}.ffn.gate_up": concat("{p}layers.{i}.mlp.gate_proj.weight", "{p}layers.{i}.mlp.up_proj.weight"),
    "blocks.{i}.ffn.down": "{p}layers.{i}.mlp.down_proj.weight",
}


def attention(a: Attention) -> dict:
    """Rules of grouped-query attention under `self_attn`."""
    at = "{p}layers.{i}.self_attn."
    own = {
        "blocks.{i}.mixer.qkv": concat(*(f"{at}{n}_proj.weight" for n in "qkv")),
        "blocks.{i}.mixer.out": f"{at}o_proj.weight",
    }
    if a.qkv_bias:
        own["blocks.{i}.mixer.qkv_bias"] = concat(*(f"{at}{n}_proj.bias" for n in "qkv"))
    if a.out_bias:
        own["blocks.{i}.mixer.out_bias"] = f"{at}o_proj.bias"
    if a.qk_norm is not None:
        own |= {f"blocks.{{i}}.mixer.{n}_norm": f"{at}{n}_norm.weight" for n in "qk"}
    return own


def experts(width: int, at: str = "{p}layers.{i}.mlp.") -> dict:
    """Rules of routed experts: one tensor each, or stacked [E, 2I, H] and [E, H, I]."""
    each, stacked = at + "experts.{e}.", at + "experts.gate_up_proj"
    return {
        "blocks.{i}.ffn.router": at + "gate.weight",
        "blocks.{i}.ffn.experts.gate": either(stack(each + "gate_proj.weight"), rows(stacked, 0, width, dim=1)),
        "blocks.{i}.ffn.experts.up": either(stack(each + "up_proj.weight"), rows(stacked, width, width, dim=1)),
        "blocks.{i}.ffn.experts.down": transpose(either(stack(each + "down_proj.weight"), at + "experts.down_proj")),
    }


def shared_expert(at: str = "{p}layers.{i}.mlp.shared_expert", gate: str | None = None) -> dict:
    """Rules of a shared expert and its optional gate."""
    own = {
        "blocks.{i}.ffn.shared_gate_up": concat(f"{at}.gate_proj.weight", f"{at}.up_proj.weight"),
        "blocks.{i}.ffn.shared_down": f"{at}.down_proj.weight",
    }
    return own if gate is None else own | {"blocks.{i}.ffn.shared_gate": gate}
