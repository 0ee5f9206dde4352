"""A first draft of a spec file from a config: what its keys say, and what they leave open."""

from __future__ import annotations

import pprint
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from ftc.errors import SpecError

# Keys that change nothing of what a text model computes from tokens, or that every spec reads the same way.
WITHOUT_EFFECT = re.compile(
    r"model_type|_name_or_path|.*dropout.*|.*dtype|transformers_version|auto_map|use_cache|initializer_.*|.*_token_id|"
    r"tokenizer_class|router_aux_loss_coef|aux_loss_alpha|output_router_logits|seq_aux|.*jitter_noise|pretraining_tp|"
    r"max_window_layers|head_dim|qk_head_dim|num_key_value_heads|.*chunk_size|use_mamba_kernels|ep_size|"
    r"num_nextn_predict_layers|mtp_.*|return_dict|output_.*|is_encoder_decoder|id2label|label2id|problem_type|"
    r"chunk_size_feed_forward|vision_config|audio_config|.*image.*|.*video.*|.*vision.*"
)
COMMON = {
    "architectures": "which spec is meant",
    "hidden_size": "width",
    "vocab_size": "vocabulary",
    "num_hidden_layers": "layers",
    "max_position_embeddings": "context",
    "tie_word_embeddings": "tied head",
    "num_attention_heads": "heads",
    "rope_theta": "rope",
    "rope_scaling": "rope",
    "rope_parameters": "rope",
    "partial_rotary_factor": "part of a head that turns",
    "rotary_dim": "part of a head that turns",
    "attention_bias": "biases of attention",
    "rope_interleave": "pairs of the rope",
}
EPSILONS = ("rms_norm_eps", "norm_eps", "layer_norm_epsilon", "layer_norm_eps")
EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
TOP_K = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts")
WIDTHS = ("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")
SHARED_WIDTHS = ("shared_expert_intermediate_size", "shared_intermediate_size", "moe_shared_expert_intermediate_size")
SHARED_COUNTS = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
RENORMALIZE = ("norm_topk_prob", "moe_renormalize", "route_norm")
SCALES = ("routed_scaling_factor", "route_scale", "router_scaling_factor", "moe_routed_scaling_factor")
SCORES = ("scoring_func", "score_function", "score_func", "moe_router_activation_func", "router_activation_func")
DENSE = ("first_k_dense_replace", "num_dense_layers", "mlp_layer_types", "moe_layer_freq")


class Draft(msgspec.Struct, frozen=True):
    """`text` is the spec file. `taken`: key -> what it was read as. `unknown`: keys that no line of the file answers."""

    text: str
    taken: dict[str, str]
    without_effect: list[str]
    unknown: dict[str, Any]
    guesses: list[str]


def draft(values: Mapping[str, Any], stored: Mapping[str, tuple[int, ...]] | None = None) -> Draft:
    """`values` is the config; `stored`, the tensors of a checkpoint with their shapes, settles what a config leaves open."""
    part = values["text_config"] if isinstance(values.get("text_config"), Mapping) else values
    for key in ("hidden_size", "num_attention_heads", "vocab_size"):
        if not isinstance(part.get(key), int):
            raise SpecError("a config of a language model has this number", where=key, value=part.get(key))
    d = _Drafter(values, stored or {})
    body = d.model()
    unknown = {
        k: v for k, v in d.values.items() if k not in d.taken and v is not None and not WITHOUT_EFFECT.fullmatch(k)
    }
    ignored = [k for k in d.values if k not in d.taken and k not in unknown]
    name = (values.get("architectures") or ["Unnamed"])[0]
    lines = [f'"""{name}: a draft from its config; every line is to be read against the reference."""', ""]
    lines += [f"# taken: {', '.join(f'{k} ({what})' for k, what in d.taken.items())}"]
    lines += [f"# guessed: {guess}" for guess in d.guesses]
    lines += [f"# NOT UNDERSTOOD: {k} = {pprint.pformat(v, compact=True)[:80]}".splitlines()[0] for k, v in unknown.items()]
    lines += ["", "from ftc.spec import *", "from ftc_models import _names"]
    lines += [f"from ftc_models.{module} import {', '.join(sorted(names))}" for module, names in sorted(d.imports.items())]
    lines += ["", f"ARCHITECTURES = ({name!r},)", "", "", "def model(c: Config) -> Model:", *(f"    {line}" for line in body)]
    return Draft("\n".join(lines) + "\n", d.taken, ignored, unknown, d.guesses)


class _Drafter:
    def __init__(self, values: Mapping[str, Any], stored: Mapping[str, tuple[int, ...]]) -> None:
        self.wrapped = isinstance(values.get("text_config"), Mapping)
        self.values = values["text_config"] if self.wrapped else values
        self.stored = stored
        self.taken = {k: what for k, what in COMMON.items() if self.values.get(k) is not None}
        self.guesses: list[str] = []
        self.imports: dict[str, set[str]] = {"_decoder": {"decoder"}}
        self.mixers: list[str] = []  # rules of kinds of mixers, which share parameter names
        self.rules: list[str] = []

    def key(self, what: str, *keys: str) -> str | None:
        """The first key with a value, noted as understood."""
        found = next((k for k in keys if self.values.get(k) is not None), None)
        if found is not None:
            self.taken[found] = what
        return found

    def has(self, ending: str) -> bool:
        return any(name.endswith(ending) for name in self.stored)

    def use(self, module: str, *names: str) -> None:
        self.imports.setdefault(module, set()).update(names)

    def guess(self, text: str) -> None:
        self.guesses.append(text)

    def model(self) -> list[str]:
        lines = []
        if self.wrapped:
            self.use("_config", "text_part")
            lines.append("c = text_part(c)")
        eps = self.key("norms", *EPSILONS)
        if eps is None:
            self.guess("the epsilon of norms is 1e-6")
        kind = "LayerNorm" if self.has("input_layernorm.bias") else "RMSNorm"
        lines.append(f"norm = {kind}({f'c.{eps}' if eps else '1e-6'})")
        if "linear_num_key_heads" in self.values:
            lines[-1] = lines[-1].replace(")", ', "1+w")')
        else:
            self.guess("norms multiply by w, not by 1 + w")
        kinds = self.kinds()
        mixers = {k: self.mixer(k, lines) for k in kinds}
        lines.append("mixers = {" + ", ".join(f'"{k}": {m}' for k, m in mixers.items()) + "}")
        moe = self.ffn(lines)
        which = self.which(lines, kinds)
        block = "sandwich_norm" if self.has("pre_feedforward_layernorm.weight") else "pre_norm"
        if block == "sandwich_norm":
            self.rules.append("_names.SANDWICH")
        scale = self.key("scale of every branch", "residual_multiplier")
        if scale is not None:
            pair = f'Branch("mixer", mixers[kind], norm, scale=c.{scale}), Branch("ffn", ffn, norm, scale=c.{scale})'
            call = f"Block(({pair}))"
        else:
            call = f"{block}(norm, mixers[kind], ffn)"
        ffns = "ffns" if moe else "[MLP(c.intermediate_size)] * c.num_hidden_layers"
        lines.append(f"blocks = ({call} for kind, ffn in zip({which}, {ffns}, strict=True))")
        kinds_of_rules = self.mixers[0]
        if len(self.mixers) > 1:
            self.use("_routed", "one_of")
            kinds_of_rules = f"one_of({', '.join(self.mixers)})"
        lines.append(f"rules = {' | '.join(['_names.BASE', kinds_of_rules, *self.rules])}")
        lines.append(f"return decoder({', '.join(self.arguments())})")
        return lines

    def kinds(self) -> list[str]:
        key = self.key("kinds of layers", "layer_types", "layers_block_type")
        if key is None:
            if self.values.get("sliding_window") is not None:
                self.guess("which layers have a window is not said; none has one here")
            return ["full_attention"]
        names = {"mamba": "linear_attention", "attention": "full_attention"}
        return list(dict.fromkeys(names.get(k, k) for k in self.values[key]))

    def which(self, lines: list[str], kinds: list[str]) -> str:
        if "layer_types" in self.taken or "layers_block_type" in self.taken:
            self.use("_config", "layer_kinds")
            return "layer_kinds(c)"
        return f'["{kinds[0]}"] * c.num_hidden_layers'

    def mixer(self, kind: str, lines: list[str]) -> str:
        if kind == "linear_attention" and self.key("gated delta heads", "linear_num_key_heads"):
            return self.delta(lines, kind)
        if kind == "linear_attention" and self.key("state-space heads", "mamba_n_heads", "mamba_num_heads"):
            return self.state_space(lines)
        if kind == "full_attention" and self.values.get("linear_num_key_heads") is not None:
            self.mixers.append('_names.attention(mixers["full_attention"])')
            return self.delta(lines, kind)
        if kind in ("full_attention", "sliding_attention", "indexed_attention"):
            return self.attention(kind)
        self.guess(f"layers of kind {kind!r} are not known; attention stands in their place")
        return self.attention("full_attention")

    def attention(self, kind: str) -> str:
        if self.key("latent attention", "kv_lora_rank"):
            for k in ("q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
                self.key("latent attention", k)
            self.use("_latent", "latent", "latent_names")
            indexer = ""
            if self.key("indexed tokens", "index_topk"):
                self.key("indexed tokens", "index_n_heads"), self.key("indexed tokens", "index_head_dim")
                self.use("_latent", "latent_rope")
                sizes = "c.index_n_heads, c.index_head_dim, c.index_topk"
                indexer = f', indexer=Indexer({sizes}, "full", latent_rope(c), LayerNorm(1e-6))'
                self.guess("the indexer's rope is interleaved")
            if not any("latent_names" in rule for rule in self.mixers):
                self.mixers.append(f'latent_names(mixers["{kind}"])')
            return f"latent(c{indexer})"
        if self.key("two-part heads", "q_lora_rank"):
            self.guess("q_lora_rank without kv_lora_rank is not known")
        changes = []
        norms = [shape for name, shape in self.stored.items() if name.endswith("self_attn.q_norm.weight")]
        dim = self.values.get("head_dim") or self.values["hidden_size"] // self.values["num_attention_heads"]
        if norms or (not self.stored and self.key("query and key norms", "use_qk_norm") and self.values["use_qk_norm"]):
            over = "projection" if norms and norms[0][0] != dim else "head"
            changes.append(f'qk_norm=RMSNorm(norm.eps, over="{over}")')
        self.key("query and key norms", "use_qk_norm")
        if self.stored:
            changes += [f"qkv_bias={self.has('self_attn.q_proj.bias')}", f"out_bias={self.has('self_attn.o_proj.bias')}"]
        scale = self.key("scale of attention", "attention_multiplier", "query_pre_attn_scalar")
        if scale is not None:
            changes.append(f"scale=c.{scale}" + ("**-0.5" if scale == "query_pre_attn_scalar" else ""))
        cap = self.key("cap on attention logits", "attn_logit_softcapping")
        if cap is not None:
            changes.append(f"softcap=c.{cap}")
        if kind == "sliding_attention":
            self.key("window", "sliding_window")
            changes.append("window=c.sliding_window")
        if self.has("self_attn.sinks"):
            changes.append("sinks=True")
        if self.has("self_attn.gate_proj.weight"):
            changes.append('gate=Gate(source="own")')
        self.use("_decoder", "gqa")
        clip = self.key("limit of queries, keys and values", "clip_qkv")
        if clip is not None:
            changes.append(f"clip=c.{clip}")
        if not any("_names.attention" in rule for rule in self.mixers):
            self.mixers.append(f'_names.attention(mixers["{kind}"])')
        return f"gqa({', '.join(['c', *changes])})"

    def delta(self, lines: list[str], kind: str) -> str:
        made = "delta = delta_mixers(c)"
        if made in lines:
            return f'delta["{kind}"]'
        for k in self.values:
            if k.startswith("linear_"):
                self.taken[k] = "gated delta"
        self.key("gate on attention", "attn_output_gate")
        together = self.has("in_proj_qkvz.weight")
        self.use("_delta", "fused" if together else "split", "mixers as delta_mixers")
        lines.append(made)
        self.guess("all norms of layers multiply by 1 + w, and full attention has a gate: so it is beside gated delta layers")
        rule = "fused(mixers[\"linear_attention\"], c.hidden_size)" if together else 'split(mixers["linear_attention"])'
        self.mixers.append(rule)
        return f'delta["{kind}"]'

    def state_space(self, lines: list[str]) -> str:
        fields = {
            "heads": ("mamba_n_heads", "mamba_num_heads"),
            "head_dim": ("mamba_d_head", "mamba_head_dim"),
            "state_dim": ("mamba_d_state", "ssm_state_size"),
            "groups_of_heads": ("mamba_n_groups", "n_groups"),
            "conv_width": ("mamba_d_conv", "conv_kernel"),
            "conv_bias": ("mamba_conv_bias", "use_conv_bias"),
            "bias": ("mamba_proj_bias", "use_bias"),
        }
        found = {field: self.key("state space", *keys) for field, keys in fields.items()}
        self.key("state space", "mamba_expand"), self.key("state space", "time_step_limit")
        self.use("_config", "step_limits")
        given = ", ".join(f"{field}=c.{k}" for field, k in found.items() if k)
        self.mixers.append('_names.state_space(mixers["linear_attention"], "{p}layers.{i}.mamba.")')
        return f'StateSpace({given}, norm=GatedRMSNorm(norm.eps, order="gate_then_norm"), step_limits=step_limits(c))'

    def ffn(self, lines: list[str]) -> bool:
        experts = self.key("experts", *EXPERTS)
        act = self.key("activation", "hidden_act", "hidden_activation", "mlp_hidden_act")
        gelu = act is not None and "gelu" in str(self.values[act])
        activation = ", GeGLU()" if gelu else ""
        dense = f"MLP(c.intermediate_size{activation})"
        if self.values.get("intermediate_size") is not None:
            self.taken["intermediate_size"] = "width of dense parts"
        if experts is None:
            self.rules.append("_names.MLP")
            if gelu:
                lines.append(f"ffns = [{dense}] * c.num_hidden_layers")
            return gelu
        self.use("_routed", "moe_names", "sparse_layers")
        top_k, width = self.key("experts per token", *TOP_K), self.key("width of an expert", *WIDTHS)
        lines.append(f"moe = MoE({self.router(top_k)}, Experts(c.{experts}, c.{width}{activation}){self.shared(width)})")
        for key in DENSE:
            self.key("dense layers", key)
        sparse = "sparse_layers(c)"
        if self.key("dense layers", "mlp_only_layers") or self.key("dense layers", "decoder_sparse_step"):
            self.key("dense layers", "mlp_only_layers"), self.key("dense layers", "decoder_sparse_step")
            only, step = 'c.get("mlp_only_layers", [])', 'c.get("decoder_sparse_step", 1)'
            sparse = f"[i not in {only} and (i + 1) % {step} == 0 for i in range(c.num_hidden_layers)]"
            self.imports["_routed"].discard("sparse_layers")
        lines.append(f"ffns = [moe if routed else {dense} for routed in {sparse}]")
        self.names(str(width))
        return True

    def router(self, top_k: str | None) -> str:
        score = self.key("score of the router", *SCORES)
        corrected = next((n for n in self.stored if re.search(r"e_score_correction_bias$|expert_bias$", n)), None)
        method = self.key("choice of experts", "topk_method")
        bias = corrected is not None or (method is not None and self.values[method] == "noaux_tc")
        named = str(self.values[score]) if score is not None else ""
        if not named:
            named = "sigmoid" if bias else "softmax"
            self.guess(f"the router scores by {named}")
        kind = {"sqrtsoftplus": "sqrt_softplus"}.get(named, named)
        fields = [f"top_k=c.{top_k}", f'score="{kind}"', f"bias={bias}"]
        if self.key("groups of experts", "n_group", "num_expert_group"):
            self.key("groups of experts", "topk_group")
            self.use("_routed", "groups")
            fields.append("groups=groups(c)")
        again = self.key("weights sum to 1", *RENORMALIZE)
        if again is None:
            self.guess("the weights of the chosen experts are made to sum to 1")
        fields.append(f"renormalize=c.{again}" if again else "renormalize=True")
        scale = self.key("scale of routed experts", *SCALES)
        if scale is not None:
            fields.append(f"scale=c.{scale}")
        return f"Router({', '.join(fields)})"

    def shared(self, width: str | None) -> str:
        wide, count = self.key("width of the shared expert", *SHARED_WIDTHS), self.key("shared experts", *SHARED_COUNTS)
        if wide is not None and not self.values[wide] or wide is None and (count is None or not self.values[count]):
            return ""
        own = f"c.{wide}" if wide is not None else f"c.{count} * c.{width}"
        gate = ', gate="sigmoid"' if self.has("shared_expert_gate.weight") else ""
        return f", SharedExpert({own}{gate})"

    def names(self, width: str) -> None:
        if any(".block_sparse_moe.experts." in n for n in self.stored):
            self.rules.append(f"_names.MLP | _names.block_sparse(c.{width})")
            self.imports["_routed"].discard("moe_names")
            bias = next((n for n in self.stored if re.search(r"e_score_correction_bias$|expert_bias$", n)), None)
            if bias is not None:
                rest = bias.split(".block_sparse_moe.", 1)[-1]
                self.rules.append(f'{{"blocks.{{i}}.ffn.router_bias": "{{p}}layers.{{i}}.block_sparse_moe.{rest}"}}')
        else:
            bias = next((n for n in self.stored if re.search(r"e_score_correction_bias$|expert_bias$", n)), None)
            at = bias.split(".mlp.", 1)[1] if bias is not None and ".mlp." in bias else "gate.e_score_correction_bias"
            self.rules.append(f'moe_names(moe, bias="{at}")' if at != "gate.e_score_correction_bias" else "moe_names(moe)")
        beside = next((m[1] for n in self.stored if (m := re.search(r"\.mlp\.(shared_(?:expert|mlp))\.", n))), None)
        if beside is not None:
            gate = ', "{p}layers.{i}.mlp.shared_expert_gate.weight"' if self.has("shared_expert_gate.weight") else ""
            self.rules.append(f'_names.shared_expert("{{p}}layers.{{i}}.mlp.{beside}"{gate})')
        count = self.values[next(k for k in EXPERTS if self.values.get(k) is not None)]
        for name, shape in self.stored.items():
            named = "gate" in name or "router" in name
            if named and shape == (count, self.values["hidden_size"]) and (m := re.search(r"\.layers\.\d+\.(.*)", "." + name)):
                if m[1] not in ("mlp.gate.weight", "block_sparse_moe.gate.weight"):
                    self.rules.append(f'{{"blocks.{{i}}.ffn.router": "{{p}}layers.{{i}}.{m[1]}"}}')
                break

    def arguments(self) -> list[str]:
        name = str(self.values.get("model_type") or "draft")
        found = ["c", f'"{name}"', "blocks", "norm", "rules"]
        scale = self.key("scale of the embedding", "embedding_multiplier")
        if scale is not None:
            found.append(f"embedding=Embedding(c.{scale})")
        head = []
        divisor = self.key("scale of the logits", "logits_scaling")
        factor = self.key("scale of the logits", "output_multiplier")
        if divisor or factor:
            head.append(f"scale=1.0 / c.{divisor}" if divisor else f"scale=c.{factor}")
        cap = self.key("cap on the logits", "final_logit_softcapping")
        if cap is not None:
            head.append(f"softcap=c.{cap}")
        longest = self.key("context", "model_max_length", "max_seq_len")
        if longest is not None and self.values.get("max_position_embeddings") is None:
            found.append(f"context_tokens=c.{longest}")
        if head:
            found.append(f'head=Head(tied=c.get("tie_word_embeddings", False), {", ".join(head)})')
        ending = "embed_tokens.weight"
        beginning = next((n.removesuffix(ending) for n in self.stored if n.endswith(ending)), None)
        if beginning is not None and beginning != "model.":
            found.append(f'prefixes=("{beginning}",)')
        skip = [p for p in ("mtp", "visual", "vision", "audio", "projector") if any(f"{p}" in n for n in self.stored)]
        if skip:
            found.append("skip=(" + "".join(f'Skip("*{p}*", "not part of the text model"), ' for p in skip).rstrip() + ")")
        elif self.values.get("num_nextn_predict_layers"):
            self.use("_routed", "extra_layers")
            found.append("skip=extra_layers(c)")
        return found
