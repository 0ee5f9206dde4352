"""K-EXAONE: windows with rope, full layers without, QK-norm, sigmoid router with groups, shared experts."""

from ftc.spec import *
from ftc_models import _names
from ftc_models._config import layer_kinds, rope, window
from ftc_models._decoder import decoder, gqa
from ftc_models._routed import ffns, moe_names, predictors, sigmoid_moe

ARCHITECTURES = ("ExaoneMoeForCausalLM",)


def model(c: Config) -> Model:
    norm, head_norm, moe = RMSNorm(c.rms_norm_eps), RMSNorm(c.rms_norm_eps, over="head"), sigmoid_moe(c)
    windows = c.get("sliding_window") is not None

    def attention(kind: str) -> Attention:
        turned = rope(c) if kind == "sliding_attention" or not windows else None
        return gqa(c, rope=turned, qk_norm=head_norm, window=window(c, kind), qkv_bias=False, out_bias=False)

    kinds = layer_kinds(c, full_every=_period(c))
    at = "{p}layers.{i}.mlp."
    rules = _names.BASE | _names.attention(attention(kinds[0])) | moe_names(moe)
    rules["blocks.{i}.ffn.router_bias"] = either(at + "e_score_correction_bias", at + "gate.e_score_correction_bias")
    blocks = (pre_norm(norm, attention(kind), ffn) for kind, ffn in zip(kinds, ffns(c, moe), strict=True))
    extra = predictors(c, pre_norm(norm, attention("full_attention"), MLP(c.intermediate_size)))
    skip = (Skip("*mtp*", "multi-token prediction head"),)
    return decoder(c, "exaone_moe", blocks, norm, rules, skip=skip, extra=extra)


def _period(c: Config) -> int:
    """Full attention comes every so many layers; files write a number or a word such as LLLG."""
    given = c.get("sliding_window_pattern", 4)
    return len(given) if isinstance(given, str) else given
