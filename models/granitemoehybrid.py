"""Granite 4 hybrid: state-space layers with some attention, routed experts beside a shared one, multipliers."""

from ftc.spec import *
from ftc_models import _names
from ftc_models._config import layer_kinds, rope, step_limits
from ftc_models._decoder import decoder, gqa
from ftc_models._dialects import GRANITE_LIST

ARCHITECTURES = ("GraniteMoeHybridForCausalLM",)


def model(c: Config) -> Model:
    norm, scale = RMSNorm(c.rms_norm_eps), c.get("residual_multiplier", 1.0)
    turned = rope(c) if c.get("position_embedding_type") == "rope" else None
    attention = gqa(c, rope=turned, scale=c.attention_multiplier)
    given = c.get("mamba_d_head", "auto")
    scan = StateSpace(
        heads=c.mamba_n_heads,
        head_dim=c.mamba_expand * c.hidden_size // c.mamba_n_heads if given == "auto" else given,
        state_dim=c.mamba_d_state,
        groups_of_heads=c.mamba_n_groups,
        conv_width=c.mamba_d_conv,
        norm=GatedRMSNorm(c.rms_norm_eps, order="gate_then_norm"),
        conv_bias=c.get("mamba_conv_bias", True),
        bias=c.get("mamba_proj_bias", False),
        step_limits=step_limits(c),
    )
    ffn, routed = MLP(c.shared_intermediate_size), c.get("num_local_experts", 0) > 0
    rules = _names.BASE | _names.attention(attention) | _names.state_space(scan, "{p}layers.{i}.mamba.")
    shared = "{p}layers.{i}.shared_mlp."
    if routed:
        router = Router(top_k=c.num_experts_per_tok, choose_first=True, renormalize=False)
        ffn = MoE(router, Experts(c.num_local_experts, c.intermediate_size), SharedExpert(c.shared_intermediate_size))
        rules |= _names.packed_experts(c.intermediate_size)
    part = "shared_" if routed else ""
    rules |= {
        f"blocks.{{i}}.ffn.{part}gate_up": shared + "input_linear.weight",
        f"blocks.{{i}}.ffn.{part}down": shared + "output_linear.weight",
        "blocks.{i}.mixer.out": either("{p}layers.{i}.self_attn.o_proj.weight", "{p}layers.{i}.mamba.out_proj.weight"),
    }
    mixers = {"linear_attention": scan, "full_attention": attention}
    return decoder(
        c,
        "granitemoehybrid",
        tuple(
            Block((Branch("mixer", mixers[kind], norm, scale=scale), Branch("ffn", ffn, norm, scale=scale)))
            for kind in layer_kinds(c)
        ),
        norm,
        rules,
        head=Head(tied=c.get("tie_word_embeddings", False), scale=1.0 / c.get("logits_scaling", 1.0)),
        embedding=Embedding(c.get("embedding_multiplier", 1.0)),
        chat=Chat(tools=(GRANITE_LIST, JsonInTags())),
    )
