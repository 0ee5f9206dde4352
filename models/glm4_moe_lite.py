"""GLM-4.7-Flash: latent attention, sigmoid router with a correction bias, a shared expert."""

from ftc.spec import Config, Model, RMSNorm, pre_norm
from ftc_models import _names
from ftc_models._decoder import decoder
from ftc_models._dialects import GLM
from ftc_models._latent import latent, latent_names, latent_rope
from ftc_models._routed import extra_layers, ffns, moe_names, predictors, sigmoid_moe

ARCHITECTURES = ("Glm4MoeLiteForCausalLM",)


def model(c: Config) -> Model:
    norm, moe = RMSNorm(c.rms_norm_eps), sigmoid_moe(c)
    attention = latent(c, rope=latent_rope(c, "interleaved" if c.get("rope_interleave", True) else "half_split"))
    return decoder(
        c,
        "glm4_moe_lite",
        [pre_norm(norm, attention, ffn) for ffn in ffns(c, moe)],
        norm,
        _names.BASE | latent_names(attention) | moe_names(moe),
        skip=extra_layers(c),
        extra=predictors(c, pre_norm(norm, attention, moe)),
        chat=GLM,
    )
