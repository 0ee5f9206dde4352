"""GLM-4.5: attention with partial rope and optional QK-norm, sigmoid router with groups, shared experts, dense first layers."""

from ftc.spec import *
from ftc_models import _names
from ftc_models._config import rope
from ftc_models._decoder import decoder, gqa
from ftc_models._dialects import GLM
from ftc_models._routed import extra_layers, ffns, moe_names, predictors, sigmoid_moe

ARCHITECTURES = ("Glm4MoeForCausalLM",)


def model(c: Config) -> Model:
    norm, moe = RMSNorm(c.rms_norm_eps), sigmoid_moe(c)
    head_norm = RMSNorm(c.rms_norm_eps, over="head") if c.get("use_qk_norm", False) else None
    attention = gqa(c, rope=rope(c, share=0.5), qk_norm=head_norm, out_bias=False)
    rules = _names.BASE | _names.attention(attention) | moe_names(moe)
    extra = predictors(c, pre_norm(norm, attention, moe))
    blocks = (pre_norm(norm, attention, ffn) for ffn in ffns(c, moe))
    return decoder(c, "glm4_moe", blocks, norm, rules, skip=extra_layers(c), extra=extra, chat=GLM)
