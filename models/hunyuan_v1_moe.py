"""Hunyuan MoE: query and key norms behind the rope, softmax router, a shared expert in every layer."""

from ftc.spec import *
from ftc_models import _names
from ftc_models._decoder import decoder, gqa
from ftc_models._dialects import JSON_LIST

ARCHITECTURES = ("HunYuanMoEV1ForCausalLM",)


def model(c: Config) -> Model:
    norm = RMSNorm(c.rms_norm_eps)
    attention = gqa(c, qk_norm=RMSNorm(c.rms_norm_eps, over="head"), qk_norm_at="after_rope")
    width, shared = c.intermediate_size, _same(c, "num_shared_expert", 1)
    moe = MoE(
        Router(top_k=_same(c, "moe_topk"), precision="float32"),
        Experts(_same(c, "num_experts"), width),
        SharedExpert(shared * width),
    )
    rules = _names.BASE | _names.attention(attention, norms="{}_layernorm") | _names.experts(width)
    rules |= _names.shared_expert("{p}layers.{i}.mlp.shared_mlp")
    rules["blocks.{i}.ffn.router"] = "{p}layers.{i}.mlp.gate.wg.weight"
    blocks = [pre_norm(norm, attention, moe)] * c.num_hidden_layers
    chat = Chat(reasoning=Reasoning(), tools=(JSON_LIST,))
    return decoder(c, "hunyuan_v1_moe", blocks, norm, rules, chat=chat)


def _same(c: Config, key: str, default: int | None = None) -> int:
    """A number, or a list with one number for every layer."""
    given = c.get(key, default) if default is not None else c.first(key)
    if isinstance(given, list):
        if len(set(given)) != 1:
            raise c.refuse(key, "layers differ in what only a whole model may choose", "give one number")
        return given[0]
    return given
