"""Nemotron-H: layers of one branch each, state space, attention without rope, squared-ReLU experts or a dense part."""

from ftc.spec import *
from ftc_models import _names
from ftc_models._config import layer_kinds, step_limits
from ftc_models._decoder import decoder
from ftc_models._routed import predictors

ARCHITECTURES = ("NemotronHForCausalLM",)

LETTERS = {"M": "linear_attention", "E": "moe", "*": "full_attention", "-": "mlp"}


def model(c: Config) -> Model:
    norm = RMSNorm(c.first("layer_norm_epsilon", "norm_eps", "rms_norm_eps"))
    dim = c.first("head_dim", "attention_head_dim")
    attention = Attention(heads=c.num_attention_heads, kv_heads=c.num_key_value_heads, head_dim=dim)
    scan = StateSpace(
        heads=c.mamba_num_heads,
        head_dim=c.mamba_head_dim,
        state_dim=c.ssm_state_size,
        groups_of_heads=c.n_groups,
        conv_width=c.conv_kernel,
        norm=GatedRMSNorm(norm.eps, order="gate_then_norm"),
        conv_bias=c.get("use_conv_bias", True),
        bias=c.get("use_bias", False),
        step_limits=step_limits(c),
    )
    bodies = {"linear_attention": scan, "full_attention": attention, "mlp": MLP(c.intermediate_size, ReLU2())}
    pattern = c.get("hybrid_override_pattern")
    if pattern and set(pattern) - set(LETTERS):
        raise c.refuse("hybrid_override_pattern", "unknown letters in the pattern", f"known: {' '.join(LETTERS)}")
    kinds = [LETTERS[letter] for letter in pattern] if pattern else layer_kinds(c)
    if "moe" in kinds:
        groups = c.get("n_group", 1)
        router = Router(
            top_k=c.num_experts_per_tok,
            score="sigmoid",
            bias=True,
            groups=Groups(groups, c.topk_group) if groups > 1 else None,
            renormalize=c.get("norm_topk_prob", True),
            epsilon=1e-20,
            scale=c.get("routed_scaling_factor", 1.0),
            precision="float32",
        )
        experts = Experts(c.n_routed_experts, c.moe_intermediate_size, ReLU2(), latent=c.get("moe_latent_size", 0))
        shared = c.get("n_shared_experts", 0) * c.get("moe_shared_expert_intermediate_size", 0)
        bodies["moe"] = MoE(router, experts, SharedExpert(shared, ReLU2()) if shared else None)

    def block(kind: str) -> Block:
        return Block((Branch("ffn" if kind in ("moe", "mlp") else "mixer", bodies[kind], norm),))

    at, ffn = "{p}layers.{i}.mixer.", "blocks.{i}.ffn."
    rules = _names.BASE | _names.state_space(scan, at) | {
        "embedding": "{p}embeddings.weight",
        "final_norm": "{p}norm_f.weight",
        "blocks.{i}.mixer.norm": "{p}layers.{i}.norm.weight",
        "blocks.{i}.mixer.qkv": concat(*(f"{at}{n}_proj.weight" for n in "qkv")),
        "blocks.{i}.mixer.out": either(at + "o_proj.weight", at + "out_proj.weight"),
        ffn + "norm": "{p}layers.{i}.norm.weight",
        ffn + "gate_up": at + "up_proj.weight",
        ffn + "down": at + "down_proj.weight",
        ffn + "router": at + "gate.weight",
        ffn + "router_bias": at + "gate.e_score_correction_bias",
        ffn + "latent_in": at + "fc1_latent_proj.weight",
        ffn + "latent_out": at + "fc2_latent_proj.weight",
        ffn + "shared_gate_up": at + "shared_experts.up_proj.weight",
        ffn + "shared_down": at + "shared_experts.down_proj.weight",
        ffn + "experts.up": either(stack(at + "experts.{e}.up_proj.weight"), at + "experts.up_proj"),
        ffn + "experts.down": transpose(either(stack(at + "experts.{e}.down_proj.weight"), at + "experts.down_proj")),
    }  # fmt: skip
    return decoder(
        c,
        "nemotron_h",
        tuple(map(block, kinds)),
        norm,
        rules,
        skip=(Skip("mtp.*", "multi-token prediction head"),),
        extra=predictors(c, *(block(LETTERS[k]) for k in c.get("mtp_hybrid_override_pattern", ""))),
        prefixes=("backbone.", "model."),
        chat=Chat(stop=("<|im_end|>",), reasoning=Reasoning(), tools=(XmlFunctions(),)),
    )
