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

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText  # noqa: E402
from transformers.utils import logging as library_logging  # noqa: E402

library_logging.disable_progress_bar()

Layout = Literal["disk", "runtime"]

VOCAB = 256
PROMPT_TOKENS = 24
NEW_TOKENS = 8

_BASE: dict[str, Any] = dict(
    vocab_size=VOCAB,
    hidden_size=64,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    intermediate_size=96,
    max_position_embeddings=512,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
    tie_word_embeddings=False,
)
_ROUTED: dict[str, Any] = dict(num_experts=8, num_experts_per_tok=3, moe_intermediate_size=48)
_DELTA: dict[str, Any] = dict(
    linear_conv_kernel_dim=4,
    linear_key_head_dim=16,
    linear_value_head_dim=16,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    shared_expert_intermediate_size=48,
    rope_parameters=dict(
        rope_type="default",
        rope_theta=10000.0,
        partial_rotary_factor=0.5,
        mrope_section=[2, 1, 1],
        mrope_interleaved=True,
    ),
)
_TOWER: dict[str, Any] = dict(
    depth=1,
    hidden_size=16,
    intermediate_size=16,
    num_heads=2,
    out_hidden_size=64,
    num_position_embeddings=16,
    patch_size=4,
)
_BANDS: dict[str, Any] = dict(
    rope_type="llama3",
    rope_theta=5e5,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)

# Each config has every kind of layer of its family at least once.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {**_BASE, "num_hidden_layers": 2, "tie_word_embeddings": True, "rope_parameters": _BANDS},
    "qwen3_moe": {**_BASE, **_ROUTED, "num_hidden_layers": 3, "mlp_only_layers": [1], "norm_topk_prob": True},
    "qwen3_5_moe_text": {**_BASE, **_ROUTED, **_DELTA, "num_hidden_layers": 4},
    # The same text model as it is published: under text_config, beside a vision tower.
    "qwen3_5_moe": {**_BASE, **_ROUTED, **_DELTA, "num_hidden_layers": 4},
}
_WRAPPED = ("qwen3_5_moe",)


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


def build(name: str, *, seed: int = 0, layers: int | None = None, **changes: Any) -> torch.nn.Module:
    """The reference model of a family (float32, CPU, eval); `changes` are laid over its (text) config."""
    fields = {**FAMILIES[name], **({} if layers is None else {"num_hidden_layers": layers}), **changes}
    if name in _WRAPPED:
        config = CONFIG_MAPPING[name](text_config=fields, vision_config=_TOWER)
        config.tie_word_embeddings = fields["tie_word_embeddings"]
    else:
        config = CONFIG_MAPPING[name](**fields)
    for part in (config, config.get_text_config()):
        part.eos_token_id = None
        part._attn_implementation = "eager"
        part._experts_implementation = "eager"
    torch.manual_seed(seed)
    with torch.no_grad():
        kind = AutoModelForImageTextToText if name in _WRAPPED else AutoModelForCausalLM
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
    if flat_rope:
        _flatten_rope(folder / "config.json")
    return model.float()


def oracle(model: torch.nn.Module, *, seed: int = 0, gap: float = 0.1, attempts: int = 16) -> Oracle:
    """The first of `attempts` prompts whose greedy run is clear-cut by `gap`, else the clearest one."""
    best: Oracle | None = None
    for attempt in range(attempts):
        found = _run(model, torch.randint(1, VOCAB, (1, PROMPT_TOKENS), generator=_generator(seed, f"prompt{attempt}")))
        if best is None or found.min_gap > best.min_gap:
            best = found
        if best.min_gap >= gap:
            break
    assert best is not None
    return best


@torch.no_grad()
def _run(model: Any, prompt: torch.Tensor) -> Oracle:
    length = prompt.shape[1]
    out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=NEW_TOKENS, do_sample=False)
    ids = out[:, :-1]
    logits = model(input_ids=ids, use_cache=False).logits[0].float()
    top = logits[length - 1 :].topk(2, dim=-1).values
    gap = float((top[:, 0] - top[:, 1]).min())
    return Oracle(prompt[0].tolist(), out[0, length:].tolist(), ids[0].contiguous(), logits.contiguous(), gap)


def _generator(seed: int, name: str) -> torch.Generator:
    return torch.Generator().manual_seed((seed * 1_000_003 + zlib.crc32(name.encode())) % (1 << 63))


def _randomise(model: torch.nn.Module, seed: int) -> None:
    """Values that keep activations of order one and make every parameter matter.

    The library's own start values only tell what a vector is: ones are a plain norm weight, zeros a bias or a
    (1 + w) norm weight.
    """
    tied = model.config.get_text_config().tie_word_embeddings
    for name, p in model.named_parameters():
        r = torch.randn(p.shape, generator=_generator(seed, name), dtype=torch.float32)
        leaf = name.rpartition(".")[2]
        ones = bool(p.abs().sum() > 0)
        if leaf == "A_log":
            new = 0.7 * r
        elif leaf == "dt_bias":
            new = 0.5 * r - 1.0
        elif tied and name.endswith("model.norm.weight"):
            # Random signs: else the input token's own embedding wins every time.
            new = torch.sign(r) * (1.0 + 0.1 * r.abs()) - (0.0 if ones else 1.0)
        elif p.dim() == 1:
            new = p.mean().round() + (0.1 if ones else 0.2) * r
        elif "conv" in name:
            new = r / p.shape[-1] ** 0.5
        elif "embed_tokens" in name:
            new = 0.5 * r if tied else r
        elif name.endswith("lm_head.weight"):
            new = 4.0 * r / p.shape[-1] ** 0.5
        else:
            new = 1.3 * r / p.shape[-1] ** 0.5
        p.copy_(new)


def _flatten_rope(path: Path) -> None:
    config = json.loads(path.read_text())
    part = config.get("text_config", config)
    rope = part.pop("rope_parameters")
    part["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        part["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    special = rope.get("rope_type") != "default" or any(key.startswith("mrope") for key in rope)
    part["rope_scaling"] = rope if special else None
    path.write_text(json.dumps(config, indent=2) + "\n")
