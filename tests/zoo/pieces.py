"""What the tiny configs share: sizes, expert counts, ropes, and the record that one family's entry is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

VOCAB = 256


class Tiny(msgspec.Struct, frozen=True):
    """One tiny model: keyword arguments of the reference library's config class `model_type` ("" is the entry's own name).

    `around`: the other parts of a multimodal config, of which `fields` is then the text_config. `rename` gives tensors
    of the "disk" layout the names of published files where the library itself does not.
    """

    fields: dict[str, Any]
    model_type: str = ""
    around: dict[str, Any] | None = None
    rename: Callable[[str], str] | None = None


def tiny(
    *parts: dict[str, Any],
    model_type: str = "",
    around: dict[str, Any] | None = None,
    rename: Callable[[str], str] | None = None,
    drop: tuple[str, ...] = (),
    **fields: Any,
) -> Tiny:
    """An entry from BASE, then `parts`, then `fields`, without the keys in `drop`."""
    own: dict[str, Any] = dict(BASE)
    for part in (*parts, fields):
        own.update(part)
    return Tiny({k: v for k, v in own.items() if k not in drop}, model_type, around, rename)


def rope(theta: float = 10000.0, **fields: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": theta, "rope_type": "default", **fields}}


BASE: dict[str, Any] = dict(
    vocab_size=VOCAB,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=96,
    max_position_embeddings=512,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
    tie_word_embeddings=False,
)
HEAD_16: dict[str, Any] = dict(head_dim=16)
ROUTED: dict[str, Any] = dict(num_experts=8, num_experts_per_tok=3, moe_intermediate_size=48)
# the other spelling of routed experts, with groups of a sigmoid router
N_ROUTED: dict[str, Any] = dict(
    n_routed_experts=8,
    n_shared_experts=1,
    num_experts_per_tok=3,
    moe_intermediate_size=48,
    first_k_dense_replace=1,
    n_group=4,
    topk_group=2,
    norm_topk_prob=True,
    routed_scaling_factor=2.5,
)
LATENT: dict[str, Any] = dict(
    q_lora_rank=24,
    kv_lora_rank=32,
    qk_nope_head_dim=16,
    qk_rope_head_dim=8,
    v_head_dim=16,
    num_key_value_heads=4,
)
DELTA: dict[str, Any] = dict(
    linear_conv_kernel_dim=4,
    linear_key_head_dim=16,
    linear_value_head_dim=16,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
)
YARN_SCALING: dict[str, Any] = dict(
    rope_type="yarn", factor=4.0, original_max_position_embeddings=128, beta_fast=32.0, beta_slow=1.0
)
YARN: dict[str, Any] = rope(**YARN_SCALING)
LINEAR, FULL, SLIDING = "linear_attention", "full_attention", "sliding_attention"
