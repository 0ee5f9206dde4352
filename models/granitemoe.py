"""Granite MoE: attention with its own scale, top-k before softmax, and multipliers on embedding, branches and logits."""

from ftc.spec import *
from ftc_models import _names
from ftc_models._decoder import decoder, gqa
from ftc_models._dialects import GRANITE_LIST

ARCHITECTURES = ("GraniteMoeForCausalLM",)


def model(c: Config) -> Model:
    norm, scale = RMSNorm(c.rms_norm_eps), c.get("residual_multiplier", 1.0)
    attention = gqa(c, scale=c.attention_multiplier)
    router = Router(top_k=c.num_experts_per_tok, choose_first=True, renormalize=False)
    moe = MoE(router, Experts(c.num_local_experts, c.intermediate_size))
    block = Block((Branch("mixer", attention, norm, scale=scale), Branch("ffn", moe, norm, scale=scale)))
    return decoder(
        c,
        "granitemoe",
        (block,) * c.num_hidden_layers,
        norm,
        _names.BASE | _names.attention(attention) | _names.packed_experts(c.intermediate_size),
        head=Head(tied=c.get("tie_word_embeddings", False), scale=1.0 / c.get("logits_scaling", 1.0)),
        embedding=Embedding(c.get("embedding_multiplier", 1.0)),
        chat=Chat(tools=(GRANITE_LIST,)),
    )
