"""Llama: dense, grouped-query attention, SwiGLU, wavelength-banded rope in its long-context members."""

from ftc.spec import *
from ftc_models import _names
from ftc_models._decoder import decoder, gqa
from ftc_models._dialects import JSON_TAGGED, LLAMA

ARCHITECTURES = ("LlamaForCausalLM",)


def model(c: Config) -> Model:
    norm, attention = RMSNorm(c.rms_norm_eps), gqa(c)
    blocks = [pre_norm(norm, attention, MLP(c.intermediate_size))] * c.num_hidden_layers
    rules = _names.BASE | _names.attention(attention) | _names.MLP
    skip = (Skip("*.rotary_emb.inv_freq", "computed from the config"),)
    return decoder(c, "llama", blocks, norm, rules, skip=skip, chat=Chat(tools=(LLAMA, JSON_TAGGED)))
