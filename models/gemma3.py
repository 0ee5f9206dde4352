"""Gemma 3: dense, norms around each branch, windows with a rope of their own in most layers, scaled embeddings."""

from ftc.spec import *
from ftc_models import _names
from ftc_models._config import head_dim, layer_kinds, rope, text_part, window
from ftc_models._decoder import decoder, gqa

ARCHITECTURES = ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration")


def model(c: Config) -> Model:
    # files of the multimodal members leave out what their sizes share
    c = text_part(c).filled(
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=256,
        vocab_size=262208,
        max_position_embeddings=131072,
        query_pre_attn_scalar=256,
        rms_norm_eps=1e-6,
    )
    if c.get("use_bidirectional_attention", False):
        raise c.refuse("use_bidirectional_attention", "attends to later tokens, which no step has yet", "an embedding model")
    norm, mlp = RMSNorm(c.rms_norm_eps, "1+w"), MLP(c.intermediate_size, GeGLU())

    def attention(kind: str) -> Attention:
        return gqa(
            c,
            rope=_rope(c, kind),
            qk_norm=RMSNorm(c.rms_norm_eps, "1+w", over="head"),
            scale=c.query_pre_attn_scalar**-0.5,
            window=window(c, kind),
            softcap=c.get("attn_logit_softcapping", 0.0),
        )

    kinds = layer_kinds(c, c.get("sliding_window_pattern", 6))
    tied = c.get("tie_word_embeddings", True)
    return decoder(
        c,
        "gemma3",
        [sandwich_norm(norm, attention(kind), mlp) for kind in kinds],
        norm,
        _names.BASE | _names.SANDWICH | _names.attention(attention(kinds[0])) | _names.MLP,
        skip=(
            Skip("*vision_tower.*", "vision tower: served text-only"),
            Skip("*multi_modal_projector.*", "vision tower: served text-only"),
        ),
        prefixes=("model.", "language_model.model.", "model.language_model."),
        embedding=Embedding(c.hidden_size**0.5),
        head=Head(tied=tied, softcap=c.get("final_logit_softcapping", 0.0)),
        chat=Chat(stop=("<end_of_turn>",)),
    )


def _rope(c: Config, kind: str) -> Rope:
    if c.get("rope_parameters") is None and kind == "sliding_attention":
        return Rope(c.get("rope_local_base_freq", 1e4), head_dim(c))
    return rope(c, kind=kind, theta=1e6)
