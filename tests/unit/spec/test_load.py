"""From config.json to a spec: which file claims it, and what is said when none does or it does not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ftc.errors import CheckpointError, SpecError
from ftc.spec.load import build_model, read_config, read_model, registry, spec_hash, spec_modules

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 6,
    "vocab_size": 16,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-6,
}


def test_every_spec_file_is_registered() -> None:
    modules = spec_modules()
    assert set(registry().values()) == set(modules) and len(modules) >= 3


@pytest.mark.parametrize(
    ("text", "words"), [("{", "not valid JSON"), ("[1]", "not a JSON object"), (b"\xff\xfe", "not valid JSON")]
)
def test_configs_that_cannot_be_read(tmp_path: Path, text: str | bytes, words: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(CheckpointError, match=words) as e:
        read_config(tmp_path)
    assert e.value.where == str(tmp_path / "config.json")


def test_folder_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no config.json"):
        read_model(tmp_path)


def test_missing_key_is_named_with_what_is_near() -> None:
    values = {k: v for k, v in CONFIG.items() if k != "hidden_size"} | {"hidden_sizes": 8}
    with pytest.raises(SpecError, match="config.json: hidden_size: a key the spec needs is missing") as e:
        build_model(values)
    assert "hidden_sizes" in str(e.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architectures": None}, "no spec file describes this architecture"),
        ({"architectures": []}, "no spec file describes this architecture"),
        ({"architectures": ["LlamaForCausalLMs"]}, "the nearest known is LlamaForCausalLM"),
        ({"hidden_size": "8"}, "config"),
        ({"num_hidden_layers": "two"}, "config"),
        ({"num_hidden_layers": 0}, "at least one block"),
        ({"num_attention_heads": 3}, "num_attention_heads"),
        ({"num_key_value_heads": 3, "num_attention_heads": 4}, "kv_heads"),
        ({"rope_scaling": {"rope_type": "spiral"}}, "unknown rope type"),
        ({"vocab_size": -1}, "vocab"),
    ],
)
def test_configs_that_describe_no_model(change: dict, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        build_model(CONFIG | change)


def test_own_spec_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"architectures": ["Mine"]}))
    spec = tmp_path / "mine.py"
    spec.write_text("from ftc_models.llama import model\n")
    assert read_model(tmp_path, spec) == build_model(CONFIG)
    spec.write_text("import no_such_module\n")
    with pytest.raises(SpecError, match="does not run: ModuleNotFoundError"):
        read_model(tmp_path, spec)
    spec.write_text("x = 1\n")
    with pytest.raises(SpecError, match="no function model"):
        read_model(tmp_path, spec)
    with pytest.raises(SpecError, match="no such spec file"):
        read_model(tmp_path, tmp_path / "other.py")


def test_spec_hash_follows_the_spec() -> None:
    one = spec_hash(build_model(CONFIG))
    assert one == spec_hash(build_model(dict(reversed(CONFIG.items()))))
    assert one != spec_hash(build_model(CONFIG | {"rms_norm_eps": 1e-5}))
