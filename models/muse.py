"""Muse: gated attention with unweighted QK-norm, full layers without rope, capped logits; Spark adds experts on a latent."""

from ftc.spec import *
from ftc_models import _names
from ftc_models._config import head_dim, layer_kinds, rope, text_part, window
from ftc_models._decoder import decoder, gqa
from ftc_models._dialects import MUSE

ARCHITECTURES = ("MuseGlimmerForConditionalGeneration", "MuseSparkForConditionalGeneration")


def model(c: Config) -> Model:
    c = text_part(c)
    norm, eps = RMSNorm(c.rms_norm_eps, "1+w"), c.get("post_norm_eps", 1e-8)
    dim, layers = head_dim(c), c.num_hidden_layers
    routed = c.get("num_local_experts") is not None
    unweighted = RMSNorm(c.rms_norm_eps, "none", "head")
    backwards = [(layers - 1 - i) % 4 == 0 for i in range(layers)]
    plain = rope(c, dim)
    kinds = layer_kinds(c) if c.get("layer_types") else [
        "full_attention" if full else "sliding_attention" for full in backwards
    ]  # fmt: skip
    thetas = c.get("layer_rope_theta") or [0 if full else plain.theta for full in backwards]

    def attention(kind: str, theta: float) -> Attention:
        return gqa(
            c,
            rope=Rope(theta, dim, scaling=plain.scaling) if theta else None,
            qk_norm=unweighted,
            scale=c.qk_scale_factor * dim**-0.5,
            gate=Gate(source="own"),
            window=window(c, kind),
            out_norm=unweighted if routed else None,
        )

    ffns: dict[str, MLP | MoE] = {"dense": MLP(c.intermediate_size)}
    gate = mixer_post = ffn_post = None
    rules = _names.BASE | _names.attention(attention(kinds[0], thetas[0])) | _names.MLP | _names.SANDWICH
    if routed:
        ffns["sparse"] = MoE(
            Router(
                top_k=c.num_experts_per_tok,
                score="sigmoid",
                bias=True,
                epsilon=1e-15,
                scale=c.get("routed_scaling_factor", 1.0),
                precision="float32",
                logit_scale=c.output_multiplier,
            ),
            Experts(c.num_local_experts, c.moe_intermediate_size, latent=c.moe_hidden_size, norm=norm,
                    each_norm=RMSNorm(eps, "input")),
        )  # fmt: skip
        gate = ResidualGate(c.get("residual_gate_temperature", 0.3))
        mixer_post, ffn_post = RMSNorm(eps, "none"), RMSNorm(eps, "input")
        rules |= _latent_experts(c.moe_intermediate_size)
    else:
        mixer_post = ffn_post = RMSNorm(eps, "1+w")

    def block(i: int) -> Block:
        ffn = ffns[c.mlp_layer_types[i] if c.get("mlp_layer_types") else "sparse" if routed else "dense"]
        return Block((
            Branch("mixer", attention(kinds[i], thetas[i]), norm, mixer_post, gate=gate),
            Branch("ffn", ffn, norm, ffn_post, gate=gate),
        ))  # fmt: skip

    towers = ("*vision*", "*audio*", "*projector*", "*adapter*")
    return decoder(
        c,
        "muse_spark" if routed else "muse_glimmer",
        tuple(map(block, range(layers))),
        RMSNorm(c.rms_norm_eps),
        rules,
        skip=tuple(Skip(t, "image and audio parts: served text-only") for t in towers),
        prefixes=("model.language_model.", "model."),
        head=Head(c.get("tie_word_embeddings", False), c.output_multiplier, c.get("final_logit_softcapping", 0.0)),
        embedding=Embedding(norm=RMSNorm(c.rms_norm_eps, "none")),
        chat=MUSE,
    )


def _latent_experts(width: int) -> dict:
    at, ffn, both = "{p}layers.{i}.mlp.", "blocks.{i}.ffn.", "{p}layers.{i}.mlp.experts.gate_up_proj"
    return {
        "blocks.{i}.mixer.residual_gate": "{p}layers.{i}.post_attention_residual_gate.gate",
        ffn + "residual_gate": "{p}layers.{i}.post_feedforward_residual_gate.gate",
        ffn + "router": at + "gate.weight",
        ffn + "router_bias": at + "gate.e_score_correction_bias",
        ffn + "latent_in": at + "pre_expert_proj.weight",
        ffn + "latent_out": at + "post_expert_proj.weight",
        ffn + "experts_norm": at + "pre_expert_norm.weight",
        ffn + "each_norm": at + "experts.post_expert_norm.weight",
        ffn + "experts.gate": rows(both, 0, width, dim=1),
        ffn + "experts.up": rows(both, width, width, dim=1),
        ffn + "experts.down": transpose(at + "experts.down_proj"),
    }
