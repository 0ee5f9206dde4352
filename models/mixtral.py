"""Mixtral: grouped-query attention, softmax router, SwiGLU experts in every layer."""

from ftc.spec import *
from ftc_models import _names
from ftc_models._decoder import decoder, gqa
from ftc_models._dialects import MISTRAL

ARCHITECTURES = ("MixtralForCausalLM",)


def model(c: Config) -> Model:
    norm, attention = RMSNorm(c.rms_norm_eps), gqa(c, window=c.get("sliding_window", 0))
    moe = MoE(Router(top_k=c.num_experts_per_tok), Experts(c.num_local_experts, c.intermediate_size))
    rules = _names.BASE | _names.attention(attention) | _names.block_sparse(c.intermediate_size)
    blocks = [pre_norm(norm, attention, moe)] * c.num_hidden_layers
    return decoder(c, "mixtral", blocks, norm, rules, chat=Chat(tools=(MISTRAL,)))
