"""GLM-5: latent attention on indexed tokens, where some layers share the choice of the one before; sigmoid router."""

from ftc.spec import Config, Indexer, LayerNorm, Model, RMSNorm, pre_norm
from ftc_models import _names
from ftc_models._config import per_layer
from ftc_models._decoder import decoder
from ftc_models._dialects import GLM
from ftc_models._latent import latent, latent_names, latent_rope
from ftc_models._routed import extra_layers, ffns, moe_names, predictors, sigmoid_moe

ARCHITECTURES = ("GlmMoeDsaForCausalLM",)
MODES = {"F": "full", "S": "shared", "full": "full", "shared": "shared"}


def _modes(c: Config) -> list[str]:
    """Which layers choose tokens ("full") and which take the choice before ("shared")."""
    given = per_layer(c, "indexer_types") or c.get("index_topk_pattern")
    if given is not None:
        if not set(given) <= set(MODES) or len(given) != c.num_hidden_layers:
            raise c.refuse("index_topk_pattern", f"wants F or S for each of {c.num_hidden_layers} layers")
        return [MODES[kind] for kind in given]
    every, offset = max(c.get("index_topk_freq", 1), 1), c.get("index_skip_topk_offset", 2)
    return ["full" if max(i - offset + 1, 0) % every == 0 else "shared" for i in range(c.num_hidden_layers)]


def model(c: Config) -> Model:
    norm, turn, moe = RMSNorm(c.rms_norm_eps), latent_rope(c), sigmoid_moe(c)
    mixers = {}
    for mode in ("full", "shared"):
        indexer = Indexer(c.index_n_heads, c.index_head_dim, c.index_topk, mode, turn, LayerNorm(1e-6))
        mixers[mode] = latent(c, rope=turn, indexer=indexer)
    return decoder(
        c,
        "glm_moe_dsa",
        [pre_norm(norm, mixers[mode], ffn) for mode, ffn in zip(_modes(c), ffns(c, moe), strict=True)],
        norm,
        _names.BASE | latent_names(mixers["full"]) | moe_names(moe),
        skip=extra_layers(c),
        extra=predictors(c, pre_norm(norm, mixers["full"], moe)),
        chat=GLM,
    )
