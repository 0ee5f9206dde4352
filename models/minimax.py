"""MiniMax-Text-01: linear attention with fixed decays and some softmax attention; the residual is the normed stream."""

from ftc.spec import *
from ftc_models import _names
from ftc_models._config import head_dim, layer_kinds
from ftc_models._decoder import decoder, gqa

ARCHITECTURES = ("MiniMaxForCausalLM", "MiniMaxText01ForCausalLM")

# The factors' keys of each kind of branch, newer spelling first.
KEYS = {
    "linear_attention": ("linear_attn", "layernorm_linear_attention"),
    "full_attention": ("full_attn", "layernorm_full_attention"),
    "mlp": ("mlp", "layernorm_mlp"),
}


def model(c: Config) -> Model:
    norm, dim, layers = RMSNorm(c.rms_norm_eps), head_dim(c), c.num_hidden_layers
    kinds = layer_kinds(c) if c.get("attn_type_list") is None else [
        "full_attention" if full else "linear_attention" for full in c.attn_type_list
    ]  # fmt: skip
    attention = gqa(c)
    linear = DecayAttention(
        heads=c.num_attention_heads,
        head_dim=dim,
        factors=tuple(1 - i / (layers - 1 + 1e-5) + 1e-5 for i in range(layers) if kinds[i] == "linear_attention"),
        norm=RMSNorm(1e-6),
    )
    moe = MoE(Router(top_k=c.num_experts_per_tok), Experts(c.num_local_experts, c.intermediate_size))

    def branch(name: str, kind: str, body: Attention | DecayAttention | MoE) -> Branch:
        new, old = KEYS[kind]
        alpha = c.first(f"{new}_alpha_factor", f"{old}_alpha", default=1.0)
        beta = c.first(f"{new}_beta_factor", f"{old}_beta", default=1.0)
        return Branch(name, body, norm, scale=float(beta), stream_scale=float(alpha), keeps="normed")

    mixers = {"full_attention": attention, "linear_attention": linear}
    at, mixer = "{p}layers.{i}.self_attn.", "blocks.{i}.mixer."
    rules = _names.BASE | _names.attention(attention) | _names.block_sparse(c.intermediate_size) | {
        mixer + "qkv": either(_names.attention(attention)[mixer + "qkv"], at + "qkv_proj.weight"),
        mixer + "gate": at + "output_gate.weight",
        mixer + "inner_norm": at + "norm.weight",
        mixer + "out": either(at + "o_proj.weight", at + "out_proj.weight"),
    }  # fmt: skip
    return decoder(
        c,
        "minimax",
        tuple(Block((branch("mixer", k, mixers[k]), branch("ffn", "mlp", moe))) for k in kinds),
        norm,
        rules,
        skip=(Skip("*_decay", "computed from the config"), Skip("*.slope_rate", "computed from the config")),
    )
