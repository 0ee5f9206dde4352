"""Drafts of spec files: what they make of tiny checkpoints, and what they say they do not understand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ftc.errors import SpecError
from ftc.spec.draft import draft
from ftc.spec.load import build_model
from ftc.weights.checkpoint import open_checkpoint
from ftc.weights.manifest import resolve
from tests import tiny
from tests.rig import Rig

# Whose drafts are right as they are: the plain ones of each kind of mixer and router.
RIGHT = ("llama", "qwen2_moe", "mixtral", "olmoe", "qwen3_next", "deepseek_v3", "glm4_moe", "minimax_m2", "hy_v3")


def drafted(folder: Path) -> Path:
    values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    made = draft(values, {n: t.shape for n, t in open_checkpoint(folder).tensors.items()})
    path = folder / "draft.py"
    path.write_text(made.text, encoding="utf-8")
    return path


@pytest.mark.parametrize("family", RIGHT)
def test_a_plain_family_needs_no_change(family: str, tmp_path: Path) -> None:
    reference = tiny.write(family, tmp_path)
    tokens = torch.randint(1, tiny.VOCAB, (40,), generator=torch.Generator().manual_seed(0)).tolist()
    with torch.no_grad():
        theirs = reference(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
    rig = Rig(tmp_path, torch.float32, spec=drafted(tmp_path), sequences=1, context=64)
    ours = rig.prompt(rig.sequence(), tokens, None, every=True)
    assert float((ours - theirs).abs().max() / theirs.abs().max()) < 1e-4


def test_every_tensor_has_a_place(tmp_path: Path) -> None:
    tiny.write("dots1", tmp_path)
    values = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    resolve(build_model(values, "config.json", drafted(tmp_path)), open_checkpoint(tmp_path))


def test_what_is_not_understood_is_said_in_the_file() -> None:
    config = tiny.build("llama").config.to_dict() | {"swirl_factor": 7, "attention_dropout": 0.1}
    made = draft(config)
    assert made.unknown == {"mlp_bias": False, "swirl_factor": 7} and "attention_dropout" in made.without_effect
    assert "# NOT UNDERSTOOD: swirl_factor = 7" in made.text.splitlines()


def test_unknown_layers_are_a_guess_that_is_told() -> None:
    config = tiny.build("qwen3_moe").config.to_dict() | {"layer_types": ["full_attention", "vortex", "vortex"]}
    assert any("'vortex'" in guess for guess in draft(config).guesses)


def test_no_language_model() -> None:
    with pytest.raises(SpecError, match="hidden_size"):
        draft({"model_type": "vision_only", "image_size": 224})
