"""Spellings of one config: what published files write differently gives the same spec, and lists must fit the layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING
from transformers.models.hunyuan_v1_moe.modeling_hunyuan_v1_moe import HunYuanMoEV1RotaryEmbedding

from ftc.errors import SpecError
from ftc.spec import Attention, Config, Model
from ftc.spec.load import build_model
from ftc_models._config import layer_kinds, per_layer, rope
from tests.zoo import FAMILIES


def newer(family: str, architecture: str, **changes: Any) -> dict[str, Any]:
    """A tiny config as the reference library writes it today."""
    config = CONFIG_MAPPING[family](**{**FAMILIES[family].fields, **changes}).to_dict()
    return {k: v for k, v in config.items() if v is not None} | {"architectures": [architecture]}


def attentions(model: Model) -> list[Attention]:
    return [b.body for block in model.blocks for b in block.branches if isinstance(b.body, Attention)]


def test_windowed_layers_have_their_own_theta_in_flat_files() -> None:
    values = newer("gemma3_text", "Gemma3ForCausalLM")
    nested = build_model(values)
    del values["rope_parameters"]
    flat = build_model(values | {"rope_theta": 1e6, "rope_local_base_freq": 1e4})
    assert attentions(flat) == attentions(nested)
    scaled = build_model(values | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}})
    windowed, full = attentions(scaled)[0], attentions(scaled)[-1]
    assert windowed.rope is not None and windowed.rope.theta == 1e4 and windowed.rope.scaling is None
    assert full.rope is not None and full.rope.theta == 1e6 and full.rope.frequencies()[0] == 1 / 8


def test_marks_of_windowed_layers() -> None:
    values = newer("mimo_v2_flash", "MiMoV2FlashForCausalLM")
    nested = build_model(values)
    for key in ("rope_parameters", "layer_types", "sliding_window", "mlp_layer_types"):
        del values[key]
    flat = dict(rope_theta=5e6, swa_rope_theta=1e4, partial_rotary_factor=0.334, swa_num_key_value_heads=4)
    marks = dict(hybrid_layer_pattern=[0, 1, 1], moe_layer_freq=[0, 1, 1], sliding_window_size=7)
    assert build_model(values | flat | marks).blocks == nested.blocks


def test_turned_part_as_elements_or_share() -> None:
    head = {"head_dim": 32, "max_position_embeddings": 64, "rope_theta": 1e4}
    assert rope(Config({**head, "rotary_dim": 8})) == rope(Config({**head, "partial_rotary_factor": 0.25}))
    assert rope(Config(head), share=0.25).dim == 8 and rope(Config(head)).dim == 32


def test_alpha_stretches_theta() -> None:
    config = CONFIG_MAPPING["hunyuan_v1_moe"](
        **FAMILIES["hunyuan_v1_moe"].fields,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 1.0, "alpha": 1e3},
    )
    expected = HunYuanMoEV1RotaryEmbedding(config).inv_freq
    found = rope(Config(config.to_dict())).frequencies()
    torch.testing.assert_close(torch.tensor(found), expected, rtol=1e-5, atol=0)


def test_per_pair_factors_limit_the_context() -> None:
    values = newer("phimoe", "PhimoeForCausalLM")
    model = build_model(values)
    (attention, *_) = attentions(model)
    assert attention.rope is not None and attention.rope.amplitude() == pytest.approx(1.1)
    factors = [1e4 ** (-i / 8) / (1.0 + 0.1 * i) for i in range(8)]
    assert attention.rope.frequencies() == pytest.approx(factors)
    assert model.context_tokens == 128 and values["max_position_embeddings"] == 512
    del values["rope_parameters"]["short_mscale"], values["rope_parameters"]["factor"]
    grown = (1 + torch.log(torch.tensor(4.0)) / torch.log(torch.tensor(128.0))).sqrt().item()
    (attention, *_) = attentions(build_model(values))
    assert attention.rope is not None and attention.rope.amplitude() == pytest.approx(grown)


def test_kinds_from_a_period_or_a_list() -> None:
    c = Config({"num_hidden_layers": 5})
    assert layer_kinds(c, 2) == ["sliding_attention", "full_attention"] * 2 + ["sliding_attention"]
    given = ["full_attention", "linear_attention"]
    assert layer_kinds(Config({"num_hidden_layers": 2, "layer_types": given}), 4, other="linear_attention") == given


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"layer_types": ["full_attention"]}, "layer_types: 1 entries for 2 layers"),
        ({"layer_types": "full"}, "layer_types: no list for 2 layers"),
        ({"layer_types": ["full_attention", "circular"]}, "layer_types: unknown kind of layer: circular"),
    ],
)
def test_lists_that_do_not_fit(values: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        layer_kinds(Config({"num_hidden_layers": 2, **values}), 2)


def test_no_list_is_none() -> None:
    assert per_layer(Config({"num_hidden_layers": 2}), "layer_types") is None


@pytest.mark.parametrize(
    ("family", "architecture", "changes", "said"),
    [
        ("laguna", "LagunaForCausalLM", {"num_attention_heads_per_layer": [4]}, "num_attention_heads_per_layer: 1 entries"),
        ("hy_v3", "HYV3ForCausalLM", {"mlp_layer_types": ["sparse"]}, "mlp_layer_types: 1 entries for 3"),
        ("ernie4_5_moe", "Ernie4_5_MoeForCausalLM", {"use_bias": True}, "use_bias: linears have no biases"),
        ("hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM", {"moe_topk": [1, 2]}, "moe_topk: layers differ"),
        ("mixtral", "MixtralForCausalLM", {"num_experts_per_tok": 9}, "top_k: takes more than the 8 experts"),
        ("glm4_moe", "Glm4MoeForCausalLM", {"n_group": 3}, "groups: 8 experts do not fall into such groups"),
        ("qwen3", "Qwen3ForCausalLM", {"rope_parameters": {"rope_type": "spiral"}}, "rope_type: unknown rope type"),
        ("minimax_m3_vl", "MiniMaxM3VLForCausalLM", {"index_n_heads": 3}, "block_indexer.heads: scorers do not divide"),
        ("minimax_m3_vl", "MiniMaxM3VLForCausalLM", {"index_local_blocks": 3}, "more local blocks than the 2 taken"),
        ("gemma3_text", "Gemma3ForCausalLM", {"use_bidirectional_attention": True}, "attends to later tokens"),
    ],
)  # fmt: skip
def test_refusals_name_the_key(family: str, architecture: str, changes: dict[str, Any], said: str) -> None:
    values = {**FAMILIES[family].fields, "architectures": [architecture], "rms_norm_eps": 1e-6, **changes}
    with pytest.raises(SpecError, match=said):
        build_model(values)
