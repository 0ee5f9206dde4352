"""`ftc compile`: what it finds, makes and says, and that nothing is half-written however it ends."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ftc.cli.compile import command, plain
from ftc.compile import key
from ftc.errors import ArtefactError, FtcError, TargetError
from ftc.trace.inputs import Shape

SHAPES = (Shape(1, 1), Shape(64, 1))
REGIONS = 4


class Compiler:
    """Stands in for Inductor, which needs seconds a region: writes the region's arguments, fails when it is told to."""

    def __init__(self) -> None:
        self.calls = 0
        self.fault: tuple[int, BaseException] | None = None

    def __call__(self, graph: Any, example: list[Any], threads: int, path: Path) -> None:
        self.calls += 1
        path.write_bytes(b"half")
        if self.fault is not None and self.calls == self.fault[0]:
            raise self.fault[1]
        path.write_bytes(f"{len(example)} inputs, {threads} threads".encode())


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiler]:
    monkeypatch.setenv("FTC_CACHE", str(tmp_path / "cache"))
    # the command sets it for its own process
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setattr("ftc.compile.job.SHAPES", SHAPES)
    found = Compiler()
    monkeypatch.setattr("ftc.compile.inductor.compile_graph", found)
    root = logging.getLogger("ftc")
    before = root.handlers, root.level, root.propagate
    yield found
    root.handlers, root.propagate = before[0], before[2]
    root.setLevel(before[1])


def compile_demo(*words: str) -> str:
    result: Result = CliRunner().invoke(command, ["demo", *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def table(text: str) -> dict[str, tuple[int, ...]]:
    """Layer -> found, made, stored."""
    return {m[1]: tuple(map(int, m.groups()[1:])) for m in re.finditer(r"^(\w+) +(\d+) +(\d+) +(\d+) ", text, re.M)}


def whole_entries(cache: Path) -> int:
    """Entries of the kernels layer; asserts that each has both its files and nothing else lies around."""
    assert not list(cache.glob("v1/new-*"))
    data, notes = ({p.stem for p in cache.glob(f"v1/kernels/*.{ending}")} for ending in ("data", "json"))
    assert data == notes
    for note in cache.glob("v1/*/*.json"):
        assert json.loads(note.read_text())["bytes"] == note.with_suffix(".data").stat().st_size
    return len(data)


def test_the_first_run_makes_all_and_the_second_finds_it(compiler: Compiler, tmp_path: Path) -> None:
    text = compile_demo()
    count = len(SHAPES) * REGIONS
    assert table(text) == {"logical": (0, 2, 2), "lowered": (0, 2, 2), "kernels": (0, count, count)}
    assert f"kernels, {count} of them: nothing like it was stored before" in text
    assert str(tmp_path / "cache" / "v1") in text
    assert compiler.calls == whole_entries(tmp_path / "cache") == count
    text = compile_demo()
    assert table(text) == {"logical": (2, 0, 2), "lowered": (2, 0, 2), "kernels": (count, 0, count)}
    assert "made because" not in text and compiler.calls == count


def test_the_logical_layer_holds_words_and_the_lowered_one_kernels(compiler: Compiler, tmp_path: Path) -> None:
    compile_demo()
    texts = {
        layer: [json.loads(p.read_bytes())["text"]["layer0"] for p in (tmp_path / "cache/v1" / layer).glob("*.data")]
        for layer in ("logical", "lowered")
    }
    assert all("ftc.experts(" in t and ".native" not in t for t in texts["logical"])
    assert all("ftc.experts.native(" in t for t in texts["lowered"])


def test_a_miss_names_what_differed(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_demo()
    count = len(SHAPES) * REGIONS
    monkeypatch.setattr(key, "cxx_version", lambda: "another compiler")
    text = compile_demo()
    assert table(text) == {"logical": (2, 0, 2), "lowered": (2, 0, 2), "kernels": (0, count, count)}
    assert re.search(rf"kernels, {count} of them: compiler: .* -> another compiler$", text, re.M)
    text = compile_demo("--dtype", "float32")
    assert "logical, 2 of them: dtype: bfloat16 -> float32" in text
    assert "lowered, 2 of them: other logical (dtype: bfloat16 -> float32)" in text
    text = compile_demo("--off", "choose_kernels")
    assert table(text)["logical"] == (2, 0, 2)
    assert re.search(r"lowered, 2 of them: passes: .*choose_kernels.* -> ", text)


def test_a_region_that_fails_ends_it_with_its_name_and_keeps_what_was_done(compiler: Compiler, tmp_path: Path) -> None:
    compiler.fault = (3, RuntimeError("no such register\nand much more"))
    with pytest.raises(ArtefactError) as failed:
        compile_demo()
    assert failed.value.message == "compile decode-1 layer1: the compiler failed: RuntimeError: no such register"
    assert whole_entries(tmp_path / "cache") == 2
    compiler.fault = None
    assert table(compile_demo())["kernels"] == (2, 6, 8)


def test_ctrl_c_in_the_middle_of_a_region_leaves_nothing_of_it(compiler: Compiler, tmp_path: Path) -> None:
    compiler.fault = (4, KeyboardInterrupt())
    result = CliRunner().invoke(command, ["demo"], standalone_mode=False)
    assert result.exit_code == 1 and "made because" not in result.stdout
    assert whole_entries(tmp_path / "cache") == 3


def test_without_a_c_compiler_it_says_so(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key, "cxx_version", lambda: "none")
    with pytest.raises(TargetError, match=r"C\+\+ compiler"):
        compile_demo()
    assert compiler.calls == 0


@pytest.mark.parametrize(("words", "named"), [(("--off", "nonsense"), "nonsense"), (("--spec", "none.py"), "none.py")])
def test_what_is_not_there_is_named(words: tuple[str, ...], named: str, compiler: Compiler) -> None:
    with pytest.raises(FtcError, match=named):
        compile_demo(*words)
    assert compiler.calls == 0


@pytest.mark.parametrize("words", [("nowhere",), ("demo", "--dtype", "int3"), ()])
def test_wrong_usage_in_a_process(words: tuple[str, ...]) -> None:
    result = subprocess.run([sys.executable, "-m", "ftc", "compile", *words], capture_output=True, text=True, timeout=60)
    assert result.returncode == (1 if words == ("nowhere",) else 2)
    assert "Traceback" not in result.stderr and result.stdout == ""


def test_reasons_for_people() -> None:
    assert plain(f"graph: {'a' * 16} -> {'b' * 16}; torch: 2.11.0 -> 2.13.0; passes: a,b -> a") == (
        "other graph; torch: 2.11.0 -> 2.13.0; passes: a,b -> a"
    )
    assert plain(f"isa: avx2 -> avx512; pass sources: {'0' * 16} -> {'1' * 16}") == "isa: avx2 -> avx512; other pass sources"


RUN = """
from ftc.cli.main import main
from ftc.compile import job
job.SHAPES = job.SHAPES[:1]
main(["compile", "demo"])
"""


@pytest.mark.full
def test_ctrl_c_of_the_real_compiler_and_going_on_after_it(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    environment = {**os.environ, "FTC_CACHE": str(cache)}
    process = subprocess.Popen(
        [sys.executable, "-c", RUN],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        limit = time.monotonic() + 240
        while len(list(cache.glob("v1/kernels/*.json"))) < 1:
            assert process.poll() is None and time.monotonic() < limit
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130 and "Traceback" not in stderr, stderr
    stored = whole_entries(cache)
    assert 1 <= stored < REGIONS
    again = subprocess.run([sys.executable, "-c", RUN], env=environment, capture_output=True, text=True, timeout=240)
    assert again.returncode == 0, again.stderr
    assert table(again.stdout)["kernels"] == (stored, REGIONS - stored, REGIONS)
