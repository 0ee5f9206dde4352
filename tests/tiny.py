"""Tiny random checkpoints of every family that has a spec, written by the reference library: their oracle.

Weights depend only on (seed, tensor name, shape), so another number of layers changes no other tensor. The two
layouts are those found in public files: "disk" has what published checkpoints of the family hold, "runtime" the
module tree of the library, where experts are stacked.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any, Literal

import msgspec

from tests.zoo import FAMILIES, VOCAB

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText  # noqa: E402
from transformers.models.auto import modeling_auto  # noqa: E402
from transformers.utils import logging as library_logging  # noqa: E402

library_logging.disable_progress_bar()

Layout = Literal["disk", "runtime"]

PROMPT_TOKENS = 48
NEW_TOKENS = 32

_FINAL_NORMS = ("model.norm.weight", "language_model.norm.weight", "embedding_norm.weight", "final_layernorm.weight",
                "norm_f.weight")  # fmt: skip


class Oracle(msgspec.Struct, frozen=True):
    """What the reference library says of one checkpoint, in float32.

    `input_ids` is prompt + greedy tokens without the last; `logits` [len(input_ids), vocab] come from one forward
    without a cache. `min_gap` is the least lead of a greedy token over the second best.
    """

    prompt: list[int]
    greedy: list[int]
    input_ids: torch.Tensor
    logits: torch.Tensor
    min_gap: float


def architecture(name: str) -> str:
    """The class name that the reference library gives checkpoints of a family."""
    family = FAMILIES[name]
    if family.around is not None:
        return str(modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[family.model_type or name])
    return str(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[family.model_type or name])


def config(name: str, **changes: Any) -> dict[str, Any]:
    """The values of the family's `config.json`; `changes` are laid over its (text) config."""
    values = _config(name, changes).to_dict()
    return {k: v for k, v in values.items() if v is not None} | {"architectures": [architecture(name)]}


def _config(name: str, changes: dict[str, Any]) -> Any:
    family = FAMILIES[name]
    fields, config_class = {**family.fields, **changes}, CONFIG_MAPPING[family.model_type or name]
    if family.around is None:
        return config_class(**fields)
    config = config_class(text_config=fields, **family.around)
    config.tie_word_embeddings = fields["tie_word_embeddings"]
    return config


def build(name: str, *, seed: int = 0, layers: int | None = None, **changes: Any) -> torch.nn.Module:
    """The reference model of a family (float32, CPU, eval); `changes` are laid over its (text) config."""
    family = FAMILIES[name]
    config = _config(name, changes if layers is None else {"num_hidden_layers": layers, **changes})
    for part in (config, config.get_text_config()):
        part.eos_token_id = None
        part._attn_implementation = "eager"
        part._experts_implementation = "eager"
    torch.manual_seed(seed)
    with torch.no_grad():
        kind = AutoModelForCausalLM if family.around is None else AutoModelForImageTextToText
        model = kind.from_config(config, dtype=torch.float32)
        _randomise(model, seed)
        model.tie_weights()
    model.eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def write(
    name: str,
    folder: Path,
    *,
    layout: Layout = "disk",
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    layers: int | None = None,
    flat_rope: bool = False,
    **changes: Any,
) -> torch.nn.Module:
    """Writes the checkpoint into `folder` and gives the model, whose weights equal the stored ones.

    `flat_rope` writes rope_theta and rope_scaling, as files of older versions of the library have them.
    """
    model = build(name, seed=seed, layers=layers, **changes).to(dtype)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder, save_original_format=layout == "disk")
    rename = FAMILIES[name].rename
    if layout == "disk" and rename is not None:
        tensors = load_file(folder / "model.safetensors")
        save_file({rename(n): t for n, t in tensors.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    if flat_rope:
        _flatten_rope(folder / "config.json")
    return model.float()


def oracle(
    model: torch.nn.Module, *, seed: int = 0, gap: float = 0.1, attempts: int = 16, prompt: int = PROMPT_TOKENS,
    new: int = NEW_TOKENS,
) -> Oracle:  # fmt: skip
    """The first of `attempts` prompts whose greedy run is clear-cut by `gap`, else the clearest one."""
    best: Oracle | None = None
    for attempt in range(attempts):
        tokens = torch.randint(1, VOCAB, (1, prompt), generator=_generator(seed, f"prompt{attempt}"))
        found = _run(model, tokens, new)
        if best is None or found.min_gap > best.min_gap:
            best = found
        if best.min_gap >= gap:
            break
    assert best is not None
    return best


@torch.no_grad()
def _run(model: Any, prompt: torch.Tensor, new: int) -> Oracle:
    length = prompt.shape[1]
    out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=new, do_sample=False)
    ids = out[:, :-1]
    logits = model(input_ids=ids, use_cache=False).logits[0].float()
    top = logits[length - 1 :].topk(2, dim=-1).values
    gap = float((top[:, 0] - top[:, 1]).min())
    return Oracle(prompt[0].tolist(), out[0, length:].tolist(), ids[0].contiguous(), logits.contiguous(), gap)


def _generator(seed: int, name: str) -> torch.Generator:
    return torch.Generator().manual_seed((seed * 1_000_003 + zlib.crc32(name.encode())) % (1 << 63))


def _randomise(model: torch.nn.Module, seed: int) -> None:
    """Values that keep activations of order one and make every parameter and kept buffer matter.

    The library's own start values only tell what a vector is: ones are a plain norm weight, zeros a bias or a
    (1 + w) norm weight.
    """
    config = model.config.get_text_config()
    passing = {
        f"{prefix}.{b}" if prefix else b for prefix, m in model.named_modules() for b in m._non_persistent_buffers_set
    }
    buffers = {n: b for n, b in model.named_buffers() if n not in passing}
    for name, p in {**dict(model.named_parameters()), **buffers}.items():
        generator = _generator(seed, name)
        if p.is_floating_point():
            r = torch.randn(p.shape, generator=generator, dtype=torch.float32)
            new = _values(name, p, r, config)
            if new is not None:
                p.copy_(new)
        elif name.endswith("tid2eid"):  # experts of each token id, all different
            order = torch.rand(p.shape[0], config.n_routed_experts, generator=generator).argsort(dim=-1)
            p.copy_(order[:, : p.shape[1]].to(p.dtype))


def _values(name: str, p: torch.Tensor, r: torch.Tensor, config: Any) -> torch.Tensor | None:
    """What replaces `p`, made of the random `r`; None leaves fixed tables as they are."""
    leaf = name.rpartition(".")[2]
    ones = bool(p.abs().sum() > 0)
    tied = getattr(config, "tie_word_embeddings", False)
    if leaf == "A_log":
        return 0.7 * r
    if leaf == "dt_bias":
        return 0.5 * r - 1.0
    if leaf == "D":
        return 1.0 + 0.2 * r
    if leaf == "sinks":
        return r
    if "correction_bias" in leaf or leaf == "expert_bias":
        return 0.2 * r
    if leaf in ("slope_rate", "query_decay", "key_decay", "diagonal_decay"):
        return None
    if leaf.endswith("_scale") or leaf in ("scale", "layer_scalar"):
        return 1.0 + 0.2 * r
    if tied and name.endswith(_FINAL_NORMS):
        # Random signs: else the input token's own embedding wins every time.
        return torch.sign(r) * (1.0 + 0.1 * r.abs()) - (0.0 if ones else 1.0)
    if p.dim() <= 1:
        return p.mean().round() + (0.1 if ones else 0.2) * r
    if "conv" in name and p.dim() == 3:
        return r / p.shape[-1] ** 0.5
    if "embed_tokens" in name or "word_embeddings" in name:
        return 0.5 * r if tied else r
    if p.dim() == 3:
        # stacked experts: [E, out, in], but [E, in, out] where the library multiplies from the right
        inputs = p.shape[1] if config.model_type in ("gpt_oss", "llama4_text") else p.shape[2]
        return 1.4 * r / inputs**0.5
    if name.endswith("lm_head.weight"):
        return 4.0 * r / p.shape[-1] ** 0.5
    return 1.2 * r / p.shape[-1] ** 0.5


def _flatten_rope(path: Path) -> None:
    config = json.loads(path.read_text())
    part = config.get("text_config", config)
    rope = part.get("rope_parameters")
    if not rope or any(isinstance(v, dict) for v in rope.values()):  # a rope per kind of layer has no flat spelling
        return
    del part["rope_parameters"]
    part["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        part["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    special = rope.get("rope_type") != "default" or any(key.startswith("mrope") for key in rope)
    part["rope_scaling"] = rope if special else None
    path.write_text(json.dumps(config, indent=2) + "\n")
