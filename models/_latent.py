"""Latent attention as its families write it: config keys, tensor names, and the scale of a stretched rope."""

from __future__ import annotations

from typing import Any, Literal

from ftc.spec import Config, LatentAttention, RMSNorm, Rope, concat
from ftc_models._config import rope, yarn_strength

EPS = 1e-6  # of the norms on the latents, whatever the file says of the others


def latent_rope(c: Config, pairing: Literal["half_split", "interleaved"] = "interleaved") -> Rope:
    """The rope of the turned part; a partial factor in the file speaks of whole heads and says nothing new."""
    found = rope(c, c.qk_rope_head_dim)
    return Rope(found.theta, c.qk_rope_head_dim, pairing=pairing, scaling=found.scaling)


def latent(c: Config, **changes: Any) -> LatentAttention:
    """The mixer from the usual keys; `changes` are laid over its fields."""
    if c.get("attention_bias", False):
        raise c.refuse("attention_bias", "latent attention has no biases here", "no published file has them")
    fields: dict[str, Any] = dict(
        heads=c.num_attention_heads,
        latent=c.kv_lora_rank,
        plain_dim=c.qk_nope_head_dim,
        rope_dim=c.qk_rope_head_dim,
        value_dim=c.v_head_dim,
        norm=RMSNorm(EPS),
        query_latent=c.get("q_lora_rank"),
        rope=latent_rope(c) if "rope" not in changes else None,
        scale=softmax_scale(c),
    )
    return LatentAttention(**(fields | changes))


def latent_names(a: LatentAttention, at: str = "{p}layers.{i}.self_attn.", branch: str = "mixer") -> dict:
    """Rules of latent attention and of its full indexer."""
    own, query = f"blocks.{{i}}.{branch}.", "q_proj" if a.query_latent is None else "q_a_proj"
    rules = {
        own + "in": concat(f"{at}{query}.weight", at + "kv_a_proj_with_mqa.weight"),
        own + "latent_norm": at + "kv_a_layernorm.weight",
        own + "up": at + "kv_b_proj.weight",
        own + "out": at + "o_proj.weight",
    }
    if a.query_latent is not None:
        rules |= {own + "query_norm": at + "q_a_layernorm.weight", own + "query": at + "q_b_proj.weight"}
    if a.gate is not None:
        rules[own + "gate"] = at + "g_proj.weight"
    if a.indexer is not None:
        rules |= {
            own + "index_q": at + "indexer.wq_b.weight",
            own + "index_k": at + "indexer.wk.weight",
            own + "index_k_norm": at + "indexer.k_norm.weight",
            own + "index_k_norm_bias": at + "indexer.k_norm.bias",
            own + "index_weights": at + "indexer.weights_proj.weight",
        }
    return rules


def softmax_scale(c: Config) -> float:
    """(plain + turned) ** -0.5, and what a stretched rope makes of it."""
    plain = (c.qk_nope_head_dim + c.qk_rope_head_dim) ** -0.5
    given = c.first("rope_parameters", "rope_scaling", default=Config({}))
    whole = given.get("mscale_all_dim")
    if not whole or given.first("rope_type", "type", default="default") == "default":
        return plain
    return plain * yarn_strength(given.factor, whole) ** 2
