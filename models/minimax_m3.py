"""MiniMax-M3: attention to chosen blocks of tokens, partial rope, clamped SwiGLU everywhere, sigmoid router, shared expert."""

from ftc.spec import *
from ftc_models import _names
from ftc_models._config import per_layer, text_part
from ftc_models._decoder import decoder, gqa
from ftc_models._dialects import MINIMAX_M3
from ftc_models._routed import expert_count, predictors, sparse_layers

ARCHITECTURES = ("MiniMaxM3VLForCausalLM", "MiniMaxM3VLForConditionalGeneration", "MiniMaxM3SparseForConditionalGeneration")


def model(c: Config) -> Model:
    c = text_part(c)
    norm, head_norm = RMSNorm(c.rms_norm_eps, "1+w"), RMSNorm(c.rms_norm_eps, "1+w", over="head")
    scorer = c.get("sparse_attention_config", Config({}))
    indexer = BlockIndexer(
        heads=c.first("index_n_heads", default=scorer.get("sparse_num_index_heads", 4)),
        dim=c.first("index_head_dim", default=scorer.get("sparse_index_dim", 128)),
        block=c.first("index_block_size", default=scorer.get("sparse_block_size", 128)),
        top_k=c.first("index_topk_blocks", default=scorer.get("sparse_topk_blocks", 16)),
        local=c.first("index_local_blocks", default=scorer.get("sparse_local_block", 1)),
        norm=head_norm,
    )
    marks = [kind != "full_attention" for kind in per_layer(c, "layer_types") or ()] or scorer.sparse_attention_freq
    attentions = [gqa(c, qk_norm=head_norm, block_indexer=indexer if mark else None) for mark in marks]
    swiglu = SwiGLU(c.get("swiglu_limit", 7.0), c.get("swiglu_alpha", 1.702))
    router = Router(
        top_k=c.num_experts_per_tok,
        score="sigmoid",
        bias=True,
        scale=c.get("routed_scaling_factor", 2.0),
        precision="float32",
    )
    width = c.intermediate_size
    moe = MoE(router, Experts(expert_count(c), width, swiglu), SharedExpert(c.shared_intermediate_size, swiglu))
    dense = MLP(c.dense_intermediate_size, swiglu)
    blocks = (pre_norm(norm, a, moe if s else dense) for a, s in zip(attentions, sparse_layers(c), strict=True))
    return decoder(
        c,
        "minimax_m3",
        blocks,
        norm,
        _names.BASE | _names.attention(attentions[0]) | _names.block_sparse(width) | _rules(),
        skip=tuple(Skip(f"*{p}*", "vision tower: served text-only") for p in ("vision_tower.", "projector.", "patch_merge"))
        + (Skip("*mtp.*", "multi-token prediction head"),),
        prefixes=("language_model.model.", "model.language_model.", "model."),
        extra=predictors(c, pre_norm(norm, attentions[-1], moe)),
        chat=MINIMAX_M3,
    )


def _rules() -> dict:
    """Published names, or those of the newer tree."""
    attention, mlp, moe = "{p}layers.{i}.self_attn.", "{p}layers.{i}.mlp.", "{p}layers.{i}.block_sparse_moe."
    own = {
        f"blocks.{{i}}.mixer.index_{n}{end}": either(
            f"{attention}index_{n}_{kind}.weight", f"{attention}indexer.{n}_{kind}.weight"
        )
        for n in "qk"
        for end, kind in (("", "proj"), ("_norm", "norm"))
    }
    shared = _names.shared_expert(moe + "shared_experts")
    return own | {
        "head": either("language_model.lm_head.weight", "lm_head.weight"),
        "blocks.{i}.ffn.gate_up": either(_names.MLP["blocks.{i}.ffn.gate_up"], mlp + "gate_up_proj.weight"),
        "blocks.{i}.ffn.down": mlp + "down_proj.weight",
        "blocks.{i}.ffn.router_bias": either(moe + "e_score_correction_bias", mlp + "gate.e_score_correction_bias"),
        "blocks.{i}.ffn.shared_gate_up": either(
            shared["blocks.{i}.ffn.shared_gate_up"], mlp + "shared_experts.gate_up_proj.weight"
        ),
        "blocks.{i}.ffn.shared_down": either(moe + "shared_experts.down_proj.weight", mlp + "shared_experts.down_proj.weight"),
    }
