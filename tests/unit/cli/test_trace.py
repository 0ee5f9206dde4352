"""`ftc trace`: what it prints of the embedded model, the page it writes, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from ftc.cli.trace import command
from ftc.errors import FtcError


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FTC_CACHE", str(tmp_path / "cache"))


def trace(*words: str) -> str:
    result = CliRunner().invoke(command, ["demo", *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_all_passes_by_default() -> None:
    text = trace()
    assert "segment 0: embed, layer0 (blocks 0-2), layer1 (block 3), layer0 (blocks 4-6), layer1 (block 7)" in text
    assert "segment 1: head" in text
    assert re.findall(r"^region (\w+):", text, re.M) == ["embed", "layer0", "layer1", "head"]
    assert "ftc.delta_rule.native(" in text and "{format=bfloat16, kernel=native}" in text
    assert "carry_residual: bfloat16[1, 256]" in text


def test_before_any_pass_there_are_words_only() -> None:
    text = trace("--after", "trace", "--region", "layer1", "--rows", "2", "--dtype", "float32")
    assert "schedule: embed" in text and "segment" not in text
    assert "ftc.attention(" in text and ".native" not in text and "format=" not in text
    assert re.findall(r"^region (\w+):", text, re.M) == ["layer1"]
    assert "carry_residual: float32[2, 256]" in text


def test_after_one_pass_and_with_a_pass_off() -> None:
    text = trace("--after", "lower_formats", "--region", "head")
    assert "{format=bfloat16}" in text and "kernel=" not in text
    text = trace("--off", "lower_formats", "--region", "head")
    assert "{kernel=native}" in text and "lower_formats:" not in text


def test_a_prefill_chunk_may_stop_after_each_layer() -> None:
    text = trace("--mode", "prefill", "--region", "embed")
    assert "segment 8: head" in text and "int32[64] = input step.tokens" in text


def test_the_page_opens_on_the_stage_that_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "t.html"
    assert str(path) in trace("--html", str(path), "--after", "choose_kernels")
    text = path.read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])  # type: ignore[index]
    names = [s["name"] for s in data["stages"]]
    assert names[0] == "trace" and names[-1] == "mark_regions" and names[data["selected"]] == "choose_kernels"
    assert list(data["regions"]) == ["embed", "layer0", "layer1", "head"]
    bound = data["regions"]["layer0"][names.index("choose_kernels")]
    ops = data["nodes"][bound["view"]]
    assert {ops[name]["kernel"] for name in bound["changed"]} == {"native"}
    assert len(bound["changed"]) == sum(op["op"].startswith("ftc.") for op in ops.values()) >= 10


@pytest.mark.parametrize(
    ("words", "named", "hint"),
    [
        (("--after", "nonsense"), "--after", "choose_kernels"),
        (("--off", "nonsense"), "nonsense", "choose_kernels"),
        (("--region", "layer9"), "layer9", "layer1"),
        (("--off", "choose_kernels", "--after", "choose_kernels"), "switched off", ""),
        (("--after", "map_slots"), "map_slots", ""),
        (("--mode", "prefill", "--rows", "1"), "--rows", "decode"),
        (("--html", "no/such/folder/t.html"), "--html", ""),
        (("--spec", "no_such_spec.py"), "no_such_spec.py", ""),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(words: tuple[str, ...], named: str, hint: str) -> None:
    with pytest.raises(FtcError) as refused:
        trace(*words)
    assert named in refused.value.message and hint in (refused.value.hint or "")


def test_no_such_model() -> None:
    with pytest.raises(FtcError, match="nowhere"):
        raise CliRunner().invoke(command, ["nowhere"]).exception or AssertionError
