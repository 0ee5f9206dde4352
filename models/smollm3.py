"""SmolLM3: dense, grouped-query attention without rope in every fourth layer."""

from ftc.spec import *
from ftc_models import _names
from ftc_models._config import per_layer, rope
from ftc_models._decoder import decoder, gqa

ARCHITECTURES = ("SmolLM3ForCausalLM",)


def model(c: Config) -> Model:
    norm, every = RMSNorm(c.rms_norm_eps), c.get("no_rope_layer_interval", 4)
    turned = per_layer(c, "no_rope_layers") or [(i + 1) % every for i in range(c.num_hidden_layers)]  # 0: no rope
    attentions = [gqa(c, rope=rope(c) if turns else None) for turns in turned]
    blocks = (pre_norm(norm, a, MLP(c.intermediate_size, bias=c.get("mlp_bias", False))) for a in attentions)
    rules = _names.BASE | _names.attention(attentions[0]) | _names.MLP
    chat = Chat(stop=("<|im_end|>",), reasoning=Reasoning(), tools=(JsonInTags(),))
    return decoder(c, "smollm3", blocks, norm, rules, tied=True, chat=chat)
