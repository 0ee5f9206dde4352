"""Jamba: selective scans with attention without rope every few layers, experts in every other feed-forward part."""

from ftc.spec import *
from ftc_models import _names
from ftc_models._decoder import decoder, gqa
from ftc_models._dialects import JSON_LIST

ARCHITECTURES = ("JambaForCausalLM",)


def model(c: Config) -> Model:
    norm = RMSNorm(c.rms_norm_eps)
    attention = gqa(c, rope=None)
    rank = c.get("mamba_dt_rank", "auto")
    scan = SelectiveScan(
        inner=c.mamba_expand * c.hidden_size,
        state_dim=c.mamba_d_state,
        rank=-(-c.hidden_size // 16) if rank == "auto" else rank,
        conv_width=c.mamba_d_conv,
        norm=norm,
        conv_bias=c.get("mamba_conv_bias", True),
        bias=c.get("mamba_proj_bias", False),
    )
    moe = MoE(Router(top_k=c.num_experts_per_tok, renormalize=False), Experts(c.num_experts, c.intermediate_size))
    mlp = MLP(c.intermediate_size)
    blocks = tuple(
        pre_norm(
            norm,
            attention if i % c.attn_layer_period == c.attn_layer_offset else scan,
            moe if i % c.expert_layer_period == c.expert_layer_offset else mlp,
        )
        for i in range(c.num_hidden_layers)
    )
    at, mlp_at, mixer = "{p}layers.{i}.mamba.", "{p}layers.{i}.feed_forward.", "blocks.{i}.mixer."
    rules = _names.BASE | _names.attention(attention) | _names.experts(c.intermediate_size, mlp_at) | {
        "final_norm": "{p}final_layernorm.weight",
        "blocks.{i}.ffn.norm": "{p}layers.{i}.pre_ff_layernorm.weight",
        "blocks.{i}.ffn.gate_up": concat(mlp_at + "gate_proj.weight", mlp_at + "up_proj.weight"),
        "blocks.{i}.ffn.down": mlp_at + "down_proj.weight",
        "blocks.{i}.ffn.router": mlp_at + "router.weight",
        mixer + "in": at + "in_proj.weight",
        mixer + "in_bias": at + "in_proj.bias",
        mixer + "conv": reshape(at + "conv1d.weight", scan.inner, scan.conv_width),
        mixer + "conv_bias": at + "conv1d.bias",
        mixer + "select": at + "x_proj.weight",
        mixer + "step_norm": at + "dt_layernorm.weight",
        mixer + "key_norm": at + "b_layernorm.weight",
        mixer + "query_norm": at + "c_layernorm.weight",
        mixer + "step": at + "dt_proj.weight",
        mixer + "step_bias": at + "dt_proj.bias",
        mixer + "log_decay": at + "A_log",
        mixer + "skip": at + "D",
        mixer + "out": either("{p}layers.{i}.self_attn.o_proj.weight", at + "out_proj.weight"),
        mixer + "out_bias": at + "out_proj.bias",
    }  # fmt: skip
    return decoder(c, "jamba", blocks, norm, rules, chat=Chat(tools=(JSON_LIST,)))
