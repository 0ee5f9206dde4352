"""Llama 4: chunked attention with rope, full attention without, one expert per token weighted at its input."""

from ftc.spec import *
from ftc_models import _names
from ftc_models._config import rope, text_part
from ftc_models._decoder import decoder, gqa
from ftc_models._dialects import LLAMA, LLAMA_LIST

ARCHITECTURES = ("Llama4ForCausalLM", "Llama4ForConditionalGeneration")


def model(c: Config) -> Model:
    c = text_part(c)
    norm, layers = RMSNorm(c.rms_norm_eps), c.num_hidden_layers
    interval = c.get("no_rope_layer_interval", 4)
    turned = c.get("no_rope_layers") or [(i + 1) % interval != 0 for i in range(layers)]
    tuned = Temperature(c.get("floor_scale", 8192), c.get("attn_scale", 0.1))

    def attention(with_rope: bool) -> Attention:
        return gqa(
            c,
            rope=rope(c, pairing="interleaved") if with_rope else None,
            qk_norm=RMSNorm(c.rms_norm_eps, "none", "head") if with_rope and c.get("use_qk_norm", True) else None,
            qk_norm_at="after_rope",
            chunk=c.get("attention_chunk_size", 0) if with_rope else 0,
            temperature=tuned if not with_rope and c.get("attn_temperature_tuning", True) else None,
        )

    width = c.intermediate_size
    moe = MoE(
        Router(top_k=c.num_experts_per_tok, score="sigmoid", choose_first=True, renormalize=False, weighs="input"),
        Experts(c.num_local_experts, width),
        SharedExpert(width),
    )
    mlp, step = MLP(c.get("intermediate_size_mlp", width)), c.get("interleave_moe_layer_step", 1)
    sparse = c.get("moe_layers") or range(step - 1, layers, step)
    at, ffn = "{p}layers.{i}.feed_forward.", "blocks.{i}.ffn."
    each, both = at + "experts.{e}.", at + "experts.gate_up_proj"
    rules = _names.BASE | _names.attention(attention(True)) | _names.shared_expert(at + "shared_expert") | {
        "head": either("lm_head.weight", "language_model.lm_head.weight"),
        ffn + "gate_up": concat(at + "gate_proj.weight", at + "up_proj.weight"),
        ffn + "down": at + "down_proj.weight",
        ffn + "router": at + "router.weight",
        ffn + "experts.gate": either(stack(each + "gate_proj.weight"), transpose(rows(both, 0, width, dim=2))),
        ffn + "experts.up": either(stack(each + "up_proj.weight"), transpose(rows(both, width, width, dim=2))),
        ffn + "experts.down": either(transpose(stack(each + "down_proj.weight")), at + "experts.down_proj"),
    }  # fmt: skip
    towers = ("vision_model.*", "multi_modal_projector.*")
    return decoder(
        c,
        "llama4",
        tuple(pre_norm(norm, attention(bool(turned[i])), moe if i in sparse else mlp) for i in range(layers)),
        norm,
        rules,
        skip=tuple(Skip(t, "vision tower: served text-only") for t in towers),
        prefixes=("language_model.model.", "model."),
        chat=Chat(tools=(LLAMA_LIST, LLAMA)),
    )
