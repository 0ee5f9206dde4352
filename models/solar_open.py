"""Solar Open: grouped-query attention, sigmoid router with a correction bias, shared expert in every layer."""

from ftc.spec import *
from ftc_models import _names
from ftc_models._decoder import decoder, gqa
from ftc_models._routed import moe_names, sigmoid_moe

ARCHITECTURES = ("SolarOpenForCausalLM",)


def model(c: Config) -> Model:
    norm, attention, moe = RMSNorm(c.rms_norm_eps), gqa(c, out_bias=False), sigmoid_moe(c)
    rules = _names.BASE | _names.attention(attention) | moe_names(moe)
    return decoder(c, "solar_open", [pre_norm(norm, attention, moe)] * c.num_hidden_layers, norm, rules)
