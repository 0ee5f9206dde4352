"""What the server reads from a checkpoint folder, and what it refuses to read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ftc.errors import CheckpointError
from ftc.serve.model import ServedModel, load_model
from ftc.spec.chat import JsonInTags
from tests.unit.serve.server import DEMO, demo_model


def with_config(folder: Path, config: Any) -> ServedModel:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((DEMO / name).read_bytes())
    if config is not None:
        (folder / "generation_config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return demo_model(folder)


def test_the_embedded_model() -> None:
    model = load_model(DEMO, names=("demo", "demo"))
    golden = json.loads((DEMO / "golden.json").read_text())
    assert sorted(model.stop_ids) == sorted(golden["eos_token_ids"])
    assert model.name == "demo"
    assert (model.defaults.temperature, model.defaults.top_p, model.defaults.top_k) == (0.6, 0.95, 20)
    assert model.defaults.max_tokens == 512
    assert isinstance(model.syntax, JsonInTags)
    assert [model.tokenizer.token_bytes(id) for id in model.mark_ids] == [
        b"<think>",
        b"</think>",
        b"<tool_call>",
        b"</tool_call>",
    ]


def test_without_a_generation_config_the_apis_own_defaults_hold(tmp_path: Path) -> None:
    model = with_config(tmp_path, None)
    assert (model.defaults.temperature, model.defaults.top_p, model.defaults.top_k) == (1.0, 1.0, 0)
    assert model.defaults.max_tokens is None
    assert [model.tokenizer.token_bytes(id) for id in model.stop_ids] == [b"<|im_end|>"]


def test_a_generation_config_that_does_not_sample_is_greedy(tmp_path: Path) -> None:
    assert with_config(tmp_path, {"do_sample": False, "eos_token_id": 3}).defaults.temperature == 0
    assert 3 in demo_model(tmp_path).stop_ids


@pytest.mark.parametrize(
    "config", ["{", "[]", {"temperature": "hot"}, {"eos_token_id": "x"}, {"top_k": 1.5}, {"eos_token_id": [1, None]}]
)
def test_a_broken_generation_config_is_named(tmp_path: Path, config: Any) -> None:
    with pytest.raises(CheckpointError, match="generation_config.json"):
        with_config(tmp_path, config)
