"""Qwen3.5: dense, gated delta layers with gated full attention after every few."""

from ftc.spec import *
from ftc_models import _delta, _names
from ftc_models._config import layer_kinds, text_part
from ftc_models._decoder import CHATML, decoder
from ftc_models._routed import predictors

ARCHITECTURES = ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration")


def model(c: Config) -> Model:
    c = text_part(c)
    norm, mixers, mlp = RMSNorm(c.rms_norm_eps, "1+w"), _delta.mixers(c), MLP(c.intermediate_size)
    kinds = layer_kinds(c, c.get("full_attention_interval", 4), other="linear_attention")
    rules = _names.BASE | _names.attention(mixers["full_attention"]) | _names.MLP
    return decoder(
        c,
        "qwen3_5",
        (pre_norm(norm, mixers[kind], mlp) for kind in kinds),
        norm,
        rules | _delta.split(mixers["linear_attention"]),
        skip=(Skip("*mtp.*", "multi-token prediction head"), Skip("*visual.*", "vision tower: served text-only")),
        prefixes=("model.language_model.", "model."),
        extra=predictors(c, pre_norm(norm, mixers["full_attention"], mlp)),
        chat=CHATML,
    )
