"""DeepSeek-V4: windows beside compressed entries of shared keys and values, hyper-connections, experts by token id."""

from ftc.spec import (
    CompressedAttention,
    Compressor,
    Config,
    Experts,
    HyperConnections,
    Indexer,
    Model,
    MoE,
    RMSNorm,
    Rope,
    Router,
    SharedExpert,
    Skip,
    SwiGLU,
    Yarn,
    concat,
    either,
    pre_norm,
)
from ftc_models import _names
from ftc_models._config import per_layer, rope
from ftc_models._decoder import decoder
from ftc_models._dialects import DEEPSEEK_V4
from ftc_models._routed import one_of, predictors, score

ARCHITECTURES = ("DeepseekV4ForCausalLM",)
SLIDING, SPARSE, HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"


def _rope(c: Config, kind: str) -> Rope:
    """"main" for layers with a window only, "compress" for the others; flat files stretch the second alone."""
    found, flat = rope(c, kind=kind), kind not in c.get("rope_parameters", Config({})).keys()
    theta = c.get("rope_theta" if kind == "main" else "compress_rope_theta", found.theta) if flat else found.theta
    scaling = None if flat and kind == "main" else found.scaling
    if isinstance(scaling, Yarn):  # cos and sin keep their strength
        scaling = Yarn(scaling.factor, scaling.original_context, scaling.beta_fast, scaling.beta_slow, attention_factor=1.0)
    return Rope(theta, c.get("qk_rope_head_dim", found.dim), at="tail", pairing="interleaved", scaling=scaling)


def _mixers(c: Config) -> tuple[dict[str, CompressedAttention], list[str]]:
    rates, ratios = c.get("compress_rates", Config({})), c.get("compress_ratios")
    few, many = rates.get(SPARSE, 4), rates.get(HEAVY, 128)
    kinds = per_layer(c, "layer_types") or []
    if ratios is not None:  # one more than layers, where the file counts its prediction layer
        by_ratio = {0: SLIDING, few: SPARSE, many: HEAVY}
        kinds = [by_ratio.get(ratio, str(ratio)) for ratio in ratios[: c.num_hidden_layers]]
    unknown = sorted(set(kinds) - {SLIDING, SPARSE, HEAVY})
    if unknown or len(kinds) != c.num_hidden_layers:
        key = "compress_ratios" if ratios is not None else "layer_types"
        raise c.refuse(key, f"no known kind for each layer: {unknown}", f"known: {SLIDING}, {SPARSE}, {HEAVY}")
    indexer = Indexer(c.index_n_heads, c.index_head_dim, c.index_topk)
    compressors = {SLIDING: None, SPARSE: Compressor(few, True, indexer), HEAVY: Compressor(many)}
    own = {
        kind: CompressedAttention(
            heads=c.num_attention_heads,
            head_dim=c.head_dim,
            query_latent=c.q_lora_rank,
            window=c.sliding_window,
            rope=_rope(c, "main" if kind == SLIDING else "compress"),
            norm=RMSNorm(c.rms_norm_eps),
            out_groups=c.o_groups,
            out_rank=c.o_lora_rank,
            compressor=compressor,
        )
        for kind, compressor in compressors.items()
    }
    return own, kinds


# parameter, a tensor of it in published files, and as the reference library writes it; rows of one parameter are joined
PLACES = """
mixer.norm             attn_norm.weight                     input_layernorm.weight
mixer.in               attn.wq_a.weight                     self_attn.q_a_proj.weight
mixer.in               attn.wkv.weight                      self_attn.kv_proj.weight
mixer.query_norm       attn.q_norm.weight                   self_attn.q_a_norm.weight
mixer.query            attn.wq_b.weight                     self_attn.q_b_proj.weight
mixer.shared_norm      attn.kv_norm.weight                  self_attn.kv_norm.weight
mixer.sinks            attn.attn_sink                       self_attn.sinks
mixer.group_out        attn.wo_a.weight                     self_attn.o_a_proj.weight
mixer.out              attn.wo_b.weight                     self_attn.o_b_proj.weight
mixer.places           attn.compressor.ape                  self_attn.compressor.position_bias
mixer.pool             attn.compressor.wkv.weight           self_attn.compressor.kv_proj.weight
mixer.pool             attn.compressor.wgate.weight         self_attn.compressor.gate_proj.weight
mixer.pool             attn.indexer.compressor.wkv.weight   self_attn.compressor.indexer.kv_proj.weight
mixer.pool             attn.indexer.compressor.wgate.weight self_attn.compressor.indexer.gate_proj.weight
mixer.entry_norm       attn.compressor.norm.weight          self_attn.compressor.kv_norm.weight
mixer.index_places     attn.indexer.compressor.ape          self_attn.compressor.indexer.position_bias
mixer.index_entry_norm attn.indexer.compressor.norm.weight  self_attn.compressor.indexer.kv_norm.weight
mixer.index_q          attn.indexer.wq_b.weight             self_attn.compressor.indexer.q_b_proj.weight
mixer.index_weights    attn.indexer.weights_proj.weight     self_attn.compressor.indexer.scorer.weights_proj.weight
ffn.norm               ffn_norm.weight                      post_attention_layernorm.weight
ffn.router_bias        ffn.gate.bias                        mlp.gate.e_score_correction_bias
ffn.router_table       ffn.gate.tid2eid                     mlp.gate.tid2eid
ffn.shared_gate_up     ffn.shared_experts.w1.weight         mlp.shared_experts.gate_proj.weight
ffn.shared_gate_up     ffn.shared_experts.w3.weight         mlp.shared_experts.up_proj.weight
ffn.shared_down        ffn.shared_experts.w2.weight         mlp.shared_experts.down_proj.weight
"""
STREAMS = {"": "_fn", "_base": "_base", "_scale": "_scale"}
OUTER = {
    "embedding": either("embed.weight", "model.embed_tokens.weight"),
    "final_norm": either("norm.weight", "model.norm.weight"),
    "head": either("head.weight", "lm_head.weight"),
    **{f"final.streams{e}": either(f"hc_head{n}", f"model.hc_head.hc{n}") for e, n in STREAMS.items()},
}


def _layer_names(at: str, column: int) -> list[dict]:
    """Rules of one layout. Layers with an indexer have two pools, others one: the fuller rule is tried first."""
    found: dict[str, list[str]] = {}
    for row in map(str.split, PLACES.strip().splitlines()):
        found.setdefault(f"blocks.{{i}}.{row[0]}", []).append(at + row[column])
    for branch, part in (("mixer", "attn"), ("ffn", "ffn")):
        for end, n in STREAMS.items():
            found[f"blocks.{{i}}.{branch}.streams{end}"] = [at + (f"hc_{part}{n}" if column == 1 else f"{part}_hc.{n[1:]}")]
    pool = "blocks.{i}.mixer.pool"
    return [{path: concat(*names) for path, names in found.items()}, {pool: concat(*found[pool][:2])}]


def model(c: Config) -> Model:
    norm, clamp, width = RMSNorm(c.rms_norm_eps), SwiGLU(limit=c.swiglu_limit), c.moe_intermediate_size
    mixers, kinds = _mixers(c)
    hashed = c.get("mlp_layer_types") or ["hash_moe"] * c.get("num_hash_layers", 3) + ["moe"] * c.num_hidden_layers

    def moe(by_id: bool) -> MoE:
        router = Router(c.num_experts_per_tok, score(c), bias=not by_id, table=c.vocab_size if by_id else 0, epsilon=1e-20,
                        scale=c.routed_scaling_factor)  # fmt: skip
        shared = SharedExpert(c.n_shared_experts * width, clamp)
        return MoE(router, Experts(c.n_routed_experts, width, clamp), shared)

    rules = (
        *(_names.experts(width, "layers.{i}.ffn.", _names.W_1_3_2), _names.experts(width, "model.layers.{i}.mlp.")),
        *(*_layer_names("layers.{i}.", 1), *_layer_names("model.layers.{i}.", 2)),
    )
    return decoder(
        c,
        "deepseek_v4",
        [pre_norm(norm, mixers[kind], moe(by == "hash_moe")) for kind, by in zip(kinds, hashed, strict=False)],
        norm,
        OUTER | one_of(*rules),
        skip=(Skip("*mtp.*", "multi-token prediction head"),),
        prefixes=("",),
        residual=HyperConnections(c.hc_mult, c.hc_sinkhorn_iters, c.hc_eps, c.rms_norm_eps),
        extra=predictors(c, pre_norm(norm, mixers[SLIDING], moe(False))),
        chat=DEEPSEEK_V4,
    )
