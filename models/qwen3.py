"""Qwen3: dense, grouped-query attention with QK-norm, SwiGLU."""

from ftc.spec import *
from ftc_models import _names
from ftc_models._config import layer_kinds, window
from ftc_models._decoder import CHATML, decoder, gqa

ARCHITECTURES = ("Qwen3ForCausalLM",)


def model(c: Config) -> Model:
    norm, head_norm = RMSNorm(c.rms_norm_eps), RMSNorm(c.rms_norm_eps, over="head")
    attentions = [gqa(c, qk_norm=head_norm, window=window(c, kind)) for kind in layer_kinds(c, full_every=1)]
    blocks = (pre_norm(norm, a, MLP(c.intermediate_size)) for a in attentions)
    rules = _names.BASE | _names.attention(attentions[0]) | _names.MLP
    return decoder(c, "qwen3", blocks, norm, rules, chat=CHATML)
