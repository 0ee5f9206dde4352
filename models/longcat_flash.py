"""LongCat-Flash: two latent attentions and two dense parts a layer, experts beside them, some of which do nothing."""

from ftc.spec import *
from ftc_models import _names
from ftc_models._decoder import decoder
from ftc_models._latent import latent, latent_names, softmax_scale
from ftc_models._routed import predictors

ARCHITECTURES = ("LongcatFlashForCausalLM", "LongcatCausalLM")


def _moe_names(m: MoE) -> dict:
    """Files may hold gate and up of the identity experts too, which nothing uses."""
    at, inner, count, width = "{p}layers.{i}.mlp.", "blocks.{i}.ffn.", m.experts.count, m.experts.width
    both = rows(at + "experts.gate_up_proj", 0, count)
    return {
        **_names.experts(width, at),
        inner + "router": at + "router.classifier.weight",
        inner + "router_bias": at + "router.e_score_correction_bias",
        inner + "experts.gate": either(stack(at + "experts.{e}.gate_proj.weight"), rows(both, 0, width, dim=1)),
        inner + "experts.up": either(stack(at + "experts.{e}.up_proj.weight"), rows(both, width, width, dim=1)),
    }


def model(c: Config) -> Model:
    norm, dense = RMSNorm(c.rms_norm_eps), MLP(c.ffn_hidden_size)
    attention = latent(
        c,
        scale=softmax_scale(c) * (c.hidden_size / c.q_lora_rank) ** 0.5,
        latent_scale=(c.hidden_size / c.kv_lora_rank) ** 0.5,
    )
    router = Router(c.moe_topk, bias=True, renormalize=False, scale=c.get("routed_scaling_factor", 1.0))
    moe = MoE(router, Experts(c.n_routed_experts, c.expert_ffn_hidden_size, identity=c.get("zero_expert_num", 0)))
    block = Block(
        (
            Branch("mixer", attention, norm),
            Branch("ffn", moe, norm, late=True),
            Branch("dense", dense, norm),
            Branch("mixer2", attention, norm),
            Branch("dense2", dense, norm),
        )
    )
    at = "{p}layers.{i}."
    rules = _names.BASE | _moe_names(moe)
    for k, (mixer, ffn) in enumerate((("mixer", "dense"), ("mixer2", "dense2"))):
        rules |= latent_names(attention, f"{at}self_attn.{k}.", mixer) | {
            f"blocks.{{i}}.{mixer}.norm": f"{at}input_layernorm.{k}.weight",
            f"blocks.{{i}}.{ffn}.norm": f"{at}post_attention_layernorm.{k}.weight",
            f"blocks.{{i}}.{ffn}.gate_up": concat(*(f"{at}mlps.{k}.{n}_proj.weight" for n in ("gate", "up"))),
            f"blocks.{{i}}.{ffn}.down": f"{at}mlps.{k}.down_proj.weight",
        }
    rules["blocks.{i}.ffn.norm"] = rules["blocks.{i}.dense.norm"]
    idle = range(moe.experts.count, moe.choices)
    skip = [Skip("*.mtp.*", "multi-token prediction head")]
    skip += [Skip(f"*.mlp.experts.{e}.*", "an identity expert has no weights") for e in idle]
    extra = predictors(c, pre_norm(norm, attention, dense))
    return decoder(c, "longcat_flash", (block,) * c.num_layers, norm, rules, skip=tuple(skip), extra=extra)
