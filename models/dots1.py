"""dots.llm1: attention with QK-norm, sigmoid router with a correction bias, shared experts, dense first layers."""

from ftc.spec import *
from ftc_models import _names
from ftc_models._config import layer_kinds, window
from ftc_models._decoder import decoder, gqa
from ftc_models._routed import ffns, moe_names, sigmoid_moe

ARCHITECTURES = ("Dots1ForCausalLM",)


def model(c: Config) -> Model:
    norm, head_norm, moe = RMSNorm(c.rms_norm_eps), RMSNorm(c.rms_norm_eps, over="head"), sigmoid_moe(c)
    attentions = [gqa(c, qk_norm=head_norm, window=window(c, kind)) for kind in layer_kinds(c, full_every=1)]
    rules = _names.BASE | _names.attention(attentions[0]) | moe_names(moe)
    blocks = (pre_norm(norm, a, ffn) for a, ffn in zip(attentions, ffns(c, moe), strict=True))
    return decoder(c, "dots1", blocks, norm, rules)
