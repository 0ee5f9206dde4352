"""Gemma 4: windowed and full attention of unlike heads; experts beside a dense part, or inputs per layer and shared caches."""

from ftc.spec import *
from ftc_models import _names
from ftc_models._config import head_dim, layer_kinds, rope, text_part, window
from ftc_models._decoder import decoder
from ftc_models._dialects import GEMMA_4

ARCHITECTURES = ("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration")


def model(c: Config) -> Model:
    c = text_part(c)
    norm, head_norm = RMSNorm(c.rms_norm_eps), RMSNorm(c.rms_norm_eps, over="head")
    kinds, layers, narrow = layer_kinds(c, full_every=6), c.num_hidden_layers, c.get("hidden_size_per_layer_input", 0)
    first_shared = layers - c.get("num_kv_shared_layers", 0)
    own = {int(i): values for i, values in _items(c.get("per_layer_config"))}

    def attention(i: int) -> Attention:
        full = kinds[i] == "full_attention"
        dim, kv_heads = head_dim(c), c.num_key_value_heads
        if full:
            dim = c.get("global_head_dim", own[i].get("head_dim", dim) if i in own else dim)
            kv_heads = own[i].get("num_key_value_heads", kv_heads) if i in own else kv_heads
            kv_heads = c.get("num_global_key_value_heads", kv_heads) if c.get("attention_k_eq_v") else kv_heads
        return Attention(
            heads=c.num_attention_heads,
            kv_heads=kv_heads,
            head_dim=dim,
            rope=rope(c, dim, kinds[i]),
            qk_norm=head_norm,
            value_norm=RMSNorm(c.rms_norm_eps, "none", "head"),
            scale=1.0,
            window=window(c, kinds[i]),
            shares_cache=i >= first_shared,
            cache="kv_full" if full else "kv",
        )

    at = "{p}layers.{i}."
    rules = _names.BASE | _names.attention(attention(0)) | _names.MLP | _names.SANDWICH | {
        "blocks.{i}.scalar": at + "layer_scalar"
    }  # fmt: skip
    for i in range(layers):
        shared, same = i >= first_shared, kinds[i] == "full_attention" and c.get("attention_k_eq_v", False)
        if shared or same:  # keys serve as values too, or there are neither
            rules[f"blocks.{i}.mixer.qkv"] = concat(*(f"{at}self_attn.{n}_proj.weight" for n in ("q" if shared else "qkk")))
    dense, post = GeGLU(), norm
    if c.get("enable_moe_block", False):
        router = Router(c.top_k_experts, norm=norm, logit_scale=c.hidden_size**-0.5, expert_scale=True)
        experts = Experts(c.num_experts, c.moe_intermediate_size, dense, norm=norm, post_norm=norm)
        beside = SharedExpert(c.intermediate_size, dense, norm=norm, post_norm=norm)
        branch, rules = Branch("ffn", MoE(router, experts, beside), None, post), rules | _experts(c.moe_intermediate_size)
    narrow_branch = (Branch("input", PerLayerInput(narrow), None, norm),) if narrow else ()
    rules |= {
        "per_layer_table": "{p}embed_tokens_per_layer.weight",
        "per_layer_projection": "{p}per_layer_model_projection.weight",
        "per_layer_norm": "{p}per_layer_projection_norm.weight",
        "blocks.{i}.input.gate": at + "per_layer_input_gate.weight",
        "blocks.{i}.input.out": at + "per_layer_projection.weight",
        "blocks.{i}.input.post_norm": at + "post_per_layer_input_norm.weight",
    }

    def block(i: int) -> Block:
        wide = 2 if c.get("use_double_wide_mlp", False) and i >= first_shared else 1
        plain = Branch("ffn", MLP(wide * c.intermediate_size, dense), norm, post)
        last = branch if c.get("enable_moe_block", False) else plain
        return Block((Branch("mixer", attention(i), norm, norm), last, *narrow_branch), scalar=True)

    unused = ("k_proj.weight", "v_proj.weight", "k_norm.weight")
    skip = [Skip(f"*layers.{i}.self_attn.{n}", "reads an earlier layer's cache") for i in range(first_shared, layers)
            for n in unused]  # fmt: skip
    return decoder(
        c,
        "gemma4",
        tuple(map(block, range(layers))),
        norm,
        rules,
        skip=(*skip, *(Skip(f"*{t}*", "image and audio parts: served text-only") for t in ("vision", "audio"))),
        prefixes=("model.language_model.", "model."),
        head=Head(c.get("tie_word_embeddings", True), softcap=c.get("final_logit_softcapping", 0.0)),
        embedding=Embedding(
            c.hidden_size**0.5,
            per_layer=PerLayerTable(narrow, c.vocab_size_per_layer_input, norm) if narrow else None,
        ),
        chat=GEMMA_4,
    )


def _items(given: Config | None) -> list[tuple[str, Config]]:
    return [] if given is None else [(key, given.get(key)) for key in given.keys()]


def _experts(width: int) -> dict:
    at, ffn, both = "{p}layers.{i}.", "blocks.{i}.ffn.", "{p}layers.{i}.experts.gate_up_proj"
    return {
        ffn + "router": at + "router.proj.weight",
        ffn + "router_norm": at + "router.scale",
        ffn + "expert_scale": at + "router.per_expert_scale",
        ffn + "experts_norm": at + "pre_feedforward_layernorm_2.weight",
        ffn + "experts_post_norm": at + "post_feedforward_layernorm_2.weight",
        ffn + "shared_norm": at + "pre_feedforward_layernorm.weight",
        ffn + "shared_post_norm": at + "post_feedforward_layernorm_1.weight",
        ffn + "shared_gate_up": concat(at + "mlp.gate_proj.weight", at + "mlp.up_proj.weight"),
        ffn + "shared_down": at + "mlp.down_proj.weight",
        ffn + "experts.gate": rows(both, 0, width, dim=1),
        ffn + "experts.up": rows(both, width, width, dim=1),
        ffn + "experts.down": transpose(at + "experts.down_proj"),
    }
