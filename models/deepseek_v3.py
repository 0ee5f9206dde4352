"""DeepSeek-V3 and its kin: latent attention, sigmoid router with groups, shared experts; V3.2 adds a token indexer."""

from ftc.spec import Config, Indexer, LayerNorm, Model, RMSNorm, pre_norm
from ftc_models import _names
from ftc_models._decoder import decoder
from ftc_models._dialects import DEEPSEEK_V3
from ftc_models._latent import latent, latent_names, latent_rope
from ftc_models._routed import extra_layers, ffns, moe_names, predictors, sigmoid_moe

ARCHITECTURES = ("DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM")


def model(c: Config) -> Model:
    norm, moe, indexer = RMSNorm(c.rms_norm_eps), sigmoid_moe(c), None
    if c.get("index_topk"):
        indexer = Indexer(
            c.index_n_heads,
            c.index_head_dim,
            c.index_topk,
            rope=latent_rope(c, "half_split"),  # unlike the attention's
            key_norm=LayerNorm(1e-6),
        )
    pairing = "interleaved" if c.get("rope_interleave", True) else "half_split"
    attention = latent(c, rope=latent_rope(c, pairing), indexer=indexer)
    return decoder(
        c,
        "deepseek_v3",
        [pre_norm(norm, attention, ffn) for ffn in ffns(c, moe)],
        norm,
        _names.BASE | latent_names(attention) | moe_names(moe),
        skip=extra_layers(c),
        extra=predictors(c, pre_norm(norm, attention, moe)),
        chat=DEEPSEEK_V3,
    )
