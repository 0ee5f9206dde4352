"""`ftc spec diff`: agreement, and for a wrong spec the layer and the part that are wrong."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

import ftc_models
from ftc.cli.compare import compare
from ftc.cli.spec import command
from tests import tiny

MODELS = Path(ftc_models.__path__[0])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @cache
    def make(family: str) -> Path:
        folder = tmp_path_factory.mktemp(family)
        tiny.write(family, folder)
        return folder

    return make


def broken(folder: Path, name: str, right: str, wrong: str) -> Path:
    text = (MODELS / f"{name}.py").read_text(encoding="utf-8")
    assert text.count(right) == 1
    path = folder / "broken.py"
    path.write_text(text.replace(right, wrong), encoding="utf-8")
    return path


@pytest.mark.parametrize("family", ["qwen3_moe", "granitemoehybrid", "muse_spark", "longcat_flash"])
def test_a_right_spec_agrees(checkpoint: Callable[[str], Path], family: str) -> None:
    found = compare(checkpoint(family), None)
    assert found.agrees and found.layer is None and found.part is None and found.parts == []


def test_a_wrong_norm_in_a_mixer(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    spec = broken(tmp_path, "granitemoehybrid", "gate_then_norm", "norm_then_gate")
    found = compare(checkpoint("granitemoehybrid"), spec)
    assert found.layer == 0 and found.part == "input of mixer.out"


def test_a_wrong_router_shows_in_the_first_routed_layer(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    spec = broken(tmp_path, "jamba", "renormalize=False", "renormalize=True")
    found = compare(checkpoint("jamba"), spec)
    assert found.layer == 1 and found.part == "ffn branch"


def test_a_wrong_norm_is_named_itself(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    spec = broken(tmp_path, "lfm2_moe", 'qk_norm=RMSNorm(c.norm_eps, over="head")', 'qk_norm=RMSNorm(0.1, over="head")')
    found = compare(checkpoint("lfm2_moe"), spec)
    assert found.layer == 2 and found.part == "mixer.q_norm"


def test_the_command_says_where(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    folder = str(checkpoint("granitemoehybrid"))
    right = CliRunner().invoke(command, ["diff", folder, "--reference"])
    assert right.exit_code == 0 and right.output.startswith("agrees: 3 layers and the logits")
    spec = broken(tmp_path, "granitemoehybrid", "gate_then_norm", "norm_then_gate")
    wrong = CliRunner().invoke(command, ["diff", folder, "--reference", "--spec", str(spec)])
    assert wrong.exit_code == 1 and wrong.output.endswith("first disagreement: layer 0, input of mixer.out\n")
    assert CliRunner().invoke(command, ["diff", folder]).exit_code == 2


def test_a_draft_is_written_once(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    out = tmp_path / "new.py"
    made = CliRunner().invoke(command, ["new", str(checkpoint("qwen3_moe")), "--out", str(out)])
    assert made.exit_code == 0 and "Every tensor of the checkpoint has its place." in made.output
    assert compare(checkpoint("qwen3_moe"), out).agrees
    again = CliRunner().invoke(command, ["new", str(checkpoint("qwen3_moe")), "--out", str(out)])
    assert again.exit_code == 2 and "exists" in again.output
