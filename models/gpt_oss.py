"""gpt-oss: sinks, windows in every second layer, top-k before softmax, clamped SwiGLU experts with biases."""

from ftc.spec import *
from ftc_models import _names
from ftc_models._config import layer_kinds, window
from ftc_models._decoder import decoder, gqa
from ftc_models._dialects import GPT_OSS

ARCHITECTURES = ("GptOssForCausalLM",)


def model(c: Config) -> Model:
    norm, width = RMSNorm(c.rms_norm_eps), c.intermediate_size
    bias = c.get("attention_bias", True)

    def attention(kind: str) -> Attention:
        return gqa(c, window=window(c, kind), sinks=True, qkv_bias=bias, out_bias=bias)

    activation = SwiGLU(c.get("swiglu_limit", 7.0), c.get("swiglu_alpha", 1.702))
    router = Router(top_k=c.num_experts_per_tok, choose_first=True, logit_bias=True, renormalize=False)
    moe = MoE(router, Experts(c.num_local_experts, width, activation, bias=True))
    kinds = layer_kinds(c, full_every=2)
    at, own = "{p}layers.{i}.mlp.", "blocks.{i}.ffn."
    inputs, inputs_bias = at + "experts.gate_up_proj", at + "experts.gate_up_proj_bias"  # [E, H, 2I]: gate, up, gate ...
    rules = _names.BASE | _names.attention(attention(kinds[0]))
    rules |= {
        own + "router": at + "router.weight",
        own + "router_logit_bias": at + "router.bias",
        own + "experts.gate": transpose(rows(inputs, 0, width, dim=2, step=2)),
        own + "experts.up": transpose(rows(inputs, 1, width, dim=2, step=2)),
        own + "experts.down": at + "experts.down_proj",
        own + "expert_gate_bias": rows(inputs_bias, 0, width, dim=1, step=2),
        own + "expert_up_bias": rows(inputs_bias, 1, width, dim=1, step=2),
        own + "expert_down_bias": at + "experts.down_proj_bias",
    }
    blocks = (pre_norm(norm, attention(kind), moe) for kind in kinds)
    return decoder(c, "gpt_oss", blocks, norm, rules, chat=GPT_OSS)
