"""`ftc spec show` and `ftc spec check`: what they print and how they end."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ftc.cli.main import main
from ftc.cli.spec import command
from ftc.errors import CheckpointError, SpecError
from tests.unit.weights.layout import case, write


def run(*words: str) -> Result:
    return CliRunner().invoke(command, list(words))


def test_show_in_words() -> None:
    result = run("show", "demo")
    assert result.exit_code == 0
    for words in ("19.3 M in all", "6 x gated_delta + moe, layers 0-2, 4-6", "2 x attention + moe, layers 3, 7", "top 4"):
        assert words in result.output
    assert "\x1b" not in result.output, "no colours where the output is no terminal"


@pytest.mark.parametrize("form", ["", "config.json"])
def test_show_as_json_of_a_folder_or_a_bare_config(demo: Path, tmp_path: Path, form: str) -> None:
    shutil.copy(demo / "config.json", tmp_path)
    result = run("show", str(tmp_path / form), "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["parameters"] == 19_258_336 and found["hidden"] == 256
    assert [k["blocks"] for k in found["kinds"]] == [[0, 1, 2, 4, 5, 6], [3, 7]]


def test_show_of_a_users_own_spec(demo: Path, tmp_path: Path) -> None:
    config = json.loads((demo / "config.json").read_text()) | {"architectures": ["Mine"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert isinstance(run("show", str(tmp_path)).exception, SpecError)
    (tmp_path / "mine.py").write_text("from ftc_models.qwen3_5_moe import model\n")
    result = run("show", str(tmp_path), "--spec", str(tmp_path / "mine.py"))
    assert result.exit_code == 0 and "19.3 M in all" in result.output


@pytest.mark.parametrize(("name", "text", "words"), [
    ("config.json", "{", "not valid JSON"), ("config.json", "[]", "not a JSON object"), ("tiny.gguf", "GGUF", "this is a file"),
])  # fmt: skip
def test_show_of_a_file_that_is_no_config(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    error = run("show", str(tmp_path / name)).exception
    assert isinstance(error, CheckpointError) and words in str(error)


def test_check_of_a_good_checkpoint(tmp_path: Path) -> None:
    assert "140 tensors: 140 used for 118 parameters, 0 skipped." in run("check", "demo").output
    result = run("check", str(write(case("c107")["input"], tmp_path)))
    assert result.exit_code == 0 and "24 tensors: 24 used" in result.output


def test_check_lists_every_mismatch_and_ends_with_1(tmp_path: Path) -> None:
    given = case("c112")["input"]
    damage = [{"op": "truncate", "file": "model-00002-of-00002.safetensors", "bytes": 64}]
    folder = str(write(given, tmp_path, damage))
    result = run("check", folder)
    assert result.exit_code == 1
    with pytest.raises(SystemExit) as e:
        main(["spec", "check", folder])
    assert e.value.code == 1
    for words in ("2 problems found", "experts.3.down_proj.weight", "model-00002-of-00002.safetensors", "actual size"):
        assert words in result.output


def test_check_names_warnings_and_skips(tmp_path: Path) -> None:
    given = case("c113")["input"]
    given["config.json"]["tie_word_embeddings"] = True
    result = run("check", str(write(given, tmp_path)))
    assert result.exit_code == 0
    assert "warning: model.safetensors.index.json does not list model.layers.0.self_attn.o_proj.weight" in result.output
    assert "skipped (tied: the head reads the embedding): lm_head.weight" in result.output


def test_check_refuses_a_number_format_from_the_config_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(case("c118")["input"]["variants"][1]["config.json"]))
    error = run("check", str(tmp_path)).exception
    assert isinstance(error, CheckpointError) and "exl3" in str(error)
