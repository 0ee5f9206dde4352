"""Where the common checkpoint layout keeps each parameter; families take these rules and change what differs."""

from __future__ import annotations

from ftc.spec import Attention, StateSpace, concat, either, reshape, rows, stack, transpose

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


# norms around each branch, where files name four of them
SANDWICH = {
    "blocks.{i}.mixer.post_norm": "{p}layers.{i}.post_attention_layernorm.weight",
    "blocks.{i}.ffn.norm": "{p}layers.{i}.pre_feedforward_layernorm.weight",
    "blocks.{i}.ffn.post_norm": "{p}layers.{i}.post_feedforward_layernorm.weight",
}


def attention(a: Attention, norms: str = "{}_norm", gate: str = "gate_proj", sinks: str = "sinks") -> dict:
    """Rules of grouped-query attention under `self_attn`."""
    at = "{p}layers.{i}.self_attn."
    own = {
        "blocks.{i}.mixer.qkv": concat(*(f"{at}{n}_proj.weight" for n in "qkv")),
        "blocks.{i}.mixer.out": f"{at}o_proj.weight",
        "blocks.{i}.mixer.gate": f"{at}{gate}.weight",
        "blocks.{i}.mixer.sinks": at + sinks,
    }
    if a.qkv_bias:
        own["blocks.{i}.mixer.qkv_bias"] = concat(*(f"{at}{n}_proj.bias" for n in "qkv"))
    if a.out_bias:
        own["blocks.{i}.mixer.out_bias"] = f"{at}o_proj.bias"
    if a.qk_norm is not None:
        query, key = ("q", "k") if norms == "{}_norm" else ("query", "key")
        own["blocks.{i}.mixer.q_norm"] = f"{at}{norms.format(query)}.weight"
        own["blocks.{i}.mixer.k_norm"] = f"{at}{norms.format(key)}.weight"
    return own


GATE_UP_DOWN = ("gate_proj", "up_proj", "down_proj")
W_1_3_2 = ("w1", "w3", "w2")


def experts(
    width: int,
    at: str = "{p}layers.{i}.mlp.",
    names: tuple[str, str, str] = GATE_UP_DOWN,
    stacked: str | None = None,
) -> dict:
    """Rules of routed experts: one tensor each under `at`, or stacked [E, 2I, H] and [E, H, I] under `stacked` or `at`."""
    gate, up, down = (stack(f"{at}experts.{{e}}.{n}.weight") for n in names)
    both = (stacked or at) + "experts.gate_up_proj"
    router = at + "gate.weight"
    return {
        "blocks.{i}.ffn.router": router if stacked is None else either(router, stacked + "gate.weight"),
        "blocks.{i}.ffn.experts.gate": either(gate, rows(both, 0, width, dim=1)),
        "blocks.{i}.ffn.experts.up": either(up, rows(both, width, width, dim=1)),
        "blocks.{i}.ffn.experts.down": transpose(either(down, (stacked or at) + "experts.down_proj")),
    }


def block_sparse(width: int) -> dict:
    """Rules of experts under `block_sparse_moe` with numbered matrices, and of the newer tree, which has them under `mlp`."""
    return experts(width, "{p}layers.{i}.block_sparse_moe.", W_1_3_2, "{p}layers.{i}.mlp.")


def shared_expert(at: str = "{p}layers.{i}.mlp.shared_expert", gate: str | None = None) -> dict:
    """Rules of a shared expert and its optional gate."""
    own = {
        "blocks.{i}.ffn.shared_gate_up": concat(f"{at}.gate_proj.weight", f"{at}.up_proj.weight"),
        "blocks.{i}.ffn.shared_down": f"{at}.down_proj.weight",
    }
    return own if gate is None else own | {"blocks.{i}.ffn.shared_gate": gate}


def packed_experts(width: int, at: str = "{p}layers.{i}.block_sparse_moe.") -> dict:
    """Rules of experts stacked as two linears, gate rows before up rows."""
    inputs = either(at + "input_linear.weight", at + "experts.gate_up_proj")
    return {
        "blocks.{i}.ffn.router": either(at + "router.layer.weight", at + "router.weight"),
        "blocks.{i}.ffn.experts.gate": rows(inputs, 0, width, dim=1),
        "blocks.{i}.ffn.experts.up": rows(inputs, width, width, dim=1),
        "blocks.{i}.ffn.experts.down": transpose(either(at + "output_linear.weight", at + "experts.down_proj")),
    }


def state_space(s: StateSpace, at: str) -> dict:
    """Rules of a state-space mixer whose tensors begin with `at`; `out` stands for itself in a hybrid's rules."""
    own = {
        "in": at + "in_proj.weight",
        "conv": reshape(at + "conv1d.weight", s.conv_channels, s.conv_width),
        "log_decay": at + "A_log",
        "step_bias": at + "dt_bias",
        "skip": at + "D",
        "inner_norm": at + "norm.weight",
    }
    if s.conv_bias:
        own["conv_bias"] = at + "conv1d.bias"
    if s.bias:
        own["in_bias"] = at + "in_proj.bias"
    return {f"blocks.{{i}}.mixer.{path}": rule for path, rule in own.items()}
