"""A text model in a published multimodal checkpoint that the reference library cannot write: served text-only all the same."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests import tiny
from tests.rig import Rig


def wrap(folder: Path, architecture: str, prefix: str, towers: tuple[str, ...]) -> None:
    """Puts the text model of `folder` behind `prefix`, beside tensors of other towers, with its config as a part."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    whole = {"architectures": [architecture], "text_config": config, "vision_config": {"hidden_size": 16}}
    (folder / "config.json").write_text(json.dumps(whole), encoding="utf-8")
    tensors = {prefix + name: t for name, t in load_file(folder / "model.safetensors").items()}
    tensors |= {name: torch.zeros(2, 2) for name in towers}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_experts_weighted_at_their_input_in_a_wrapper(tmp_path: Path) -> None:
    reference = tiny.write("llama4_text", tmp_path)
    towers = ("vision_model.model.layers.0.mlp.fc1.weight", "multi_modal_projector.linear_1.weight")
    wrap(tmp_path, "Llama4ForConditionalGeneration", "language_model.", towers)
    tokens = torch.randint(1, tiny.VOCAB, (24,), generator=torch.Generator().manual_seed(2)).tolist()
    with torch.no_grad():
        theirs = reference(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
    rig = Rig(tmp_path, torch.float32, sequences=1, context=64)
    ours = rig.prompt(rig.sequence(), tokens, None, every=True)
    assert float((ours - theirs).abs().max() / theirs.abs().max()) < 1e-4
