"""`ftc doctor`: its findings on this machine, on machines that lack something, and its exit code."""

from __future__ import annotations

import json
import math
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from ftc.cli import doctor, machine
from ftc.cli.doctor import command
from ftc.ops import native
from ftc.target import isa

DEMO = Path(__file__).parents[3] / "models" / "demo"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FTC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(doctor, "MEASURED_BYTES", 16 << 20)
    monkeypatch.setattr(doctor, "MEASURED_S", 0.05)


def test_one_line_a_finding_in_a_process() -> None:
    result = subprocess.run([sys.executable, "-m", "ftc", "doctor"], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    assert all(re.match(r"(ok   |warn |fail ) \S", line) for line in lines)
    names = [line[6:].split("  ")[0].strip() for line in lines]
    assert names == [
        "system", "python", "torch", "triton", "packages", "native", "compiler", "cpus", "memory", "huge pages", "bandwidth",
        *(["gpu"] * names.count("gpu")), "artefacts", "port", "embedded model",
    ]  # fmt: skip
    assert "could not be looked at" not in result.stdout and "\x1b" not in result.stdout


def test_json_has_the_figures(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["--json"])
    told = json.loads(result.stdout)
    findings = {f["name"]: f for f in told["findings"]}
    assert told["can_serve"] is True and result.exit_code == 0
    # a machine reads between 0.1 GB/s and 10 TB/s
    assert 1e8 < findings["bandwidth"]["value"] < 1e13
    assert findings["memory"]["value"] > doctor.LEAST_BYTES
    assert str(tmp_path / "cache") in findings["artefacts"]["text"]
    assert not (tmp_path / "cache").exists(), "looking makes nothing"
    assert native.isa() in findings["native"]["text"] and isa() != ""


def test_a_failure_is_exit_code_1_and_the_rest_is_still_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FTC_THREADS", "many")
    result = CliRunner().invoke(command, ["--json"])
    told = json.loads(result.stdout)
    failed = [f["name"] for f in told["findings"] if f["mark"] == "fail"]
    assert result.exit_code == 1 and told["can_serve"] is False
    assert failed == ["cpus"] and told["findings"][-1]["name"] == "embedded model"


def test_no_compiler_and_no_native_kernels_are_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftc.compile.key.cxx_version", lambda: "none")
    monkeypatch.setattr(native, "available", lambda: False)
    found = [doctor.compiler(), doctor.native_kernels(), doctor.bandwidth()]
    assert [f.mark for f in found] == ["warn"] * 3
    assert "g++" in found[0].hint and "install" in found[1].hint


def test_a_cache_that_cannot_be_made_fails_and_one_that_cannot_be_written_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FTC_CACHE", str(tmp_path / "file" / "cache"))
    assert doctor.artefacts().mark == "fail" and "FTC_CACHE" in doctor.artefacts().hint
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "x").write_bytes(b"12345")
    monkeypatch.setenv("FTC_CACHE", str(tmp_path / "cache"))
    assert (doctor.artefacts().mark, doctor.artefacts().value) == ("ok", 5)

    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refuse)
    assert doctor.artefacts().mark == "warn" and "Permission denied" in doctor.artefacts().text


def test_a_port_in_use_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(doctor, "PORT", taken.getsockname()[1])
        assert doctor.port().mark == "warn" and "--port" in doctor.port().hint
    assert doctor.port().mark == "ok"


def test_the_embedded_model_is_intact_and_damage_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.embedded().mark == "ok"
    sums = (DEMO / "SHA256SUMS").read_text().split()[1::2]
    assert set(sums) >= {p.name for p in DEMO.iterdir() if p.suffix in (".safetensors", ".json")} - {"golden.json"}
    copy = tmp_path / "demo"
    shutil.copytree(DEMO, copy, ignore=shutil.ignore_patterns("recipe", "*.npz"))
    shard = copy / "model-00002-of-00003.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    (copy / "tokenizer.json").unlink()
    monkeypatch.setattr("ftc.weights.hub.locate", lambda name: copy)
    found = doctor.embedded()
    assert found.mark == "warn" and shard.name in found.text and "tokenizer.json" in found.text and "00001" not in found.text


def test_little_memory_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory_left", lambda: 100 << 20)
    assert doctor.memory().mark == "fail" and "100 MiB" in doctor.memory().text


def test_more_threads_than_the_container_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FTC_THREADS", "2")
    monkeypatch.setattr(machine, "load", lambda: 0.0)
    monkeypatch.setattr(doctor.os, "sched_getaffinity", lambda _: {0, 1, 2})
    assert doctor.cpus().mark == "ok"
    monkeypatch.setattr(machine, "cpu_quota", lambda: 1.5)
    assert doctor.cpus().mark == "warn" and "1.5" in doctor.cpus().text
    monkeypatch.setattr(machine, "cpu_quota", lambda: math.inf)
    monkeypatch.setattr(machine, "load", lambda: 9.0)
    assert doctor.cpus().mark == "warn" and "load 9.0" in doctor.cpus().text


def test_gpus_old_new_none_and_unanswered(monkeypatch: pytest.MonkeyPatch) -> None:
    def gpu(capability: tuple[int, int]) -> machine.Gpu:
        return machine.Gpu("Some GPU", 24 << 30, capability, "570.1")

    monkeypatch.setattr(machine, "gpus", lambda: [gpu((12, 0)), gpu((7, 5))])
    new, old = doctor.gpu()  # type: ignore[misc]
    assert (new.mark, old.mark) == ("ok", "warn")
    assert "Some GPU, 24 GiB, sm_120, driver 570.1" in new.text and "sm_80" in old.hint
    monkeypatch.setattr(machine, "gpus", list)
    assert doctor.gpu().mark == "ok"  # type: ignore[union-attr]
    monkeypatch.setattr(machine, "gpus", lambda: None)
    assert "nvidia-ml-py" in doctor.gpu().hint  # type: ignore[union-attr]


def test_a_check_that_breaks_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> str:
        raise OSError("no /sys here")

    monkeypatch.setattr(machine, "huge_pages", broken)
    found = [f for f in doctor.examine() if f.name == "huge_pages"]
    assert found[0].mark == "warn" and "no /sys here" in found[0].text


def test_limits_of_both_versions_of_control_groups(tmp_path: Path) -> None:
    assert machine.cpu_quota(tmp_path) == machine.memory_left(tmp_path) == math.inf
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")
    assert (machine.cpu_quota(tmp_path), machine.memory_left(tmp_path)) == (1.5, 600)
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert machine.cpu_quota(tmp_path) == machine.memory_left(tmp_path) == math.inf
    old = tmp_path / "old"
    for name, text in (("cpu/cpu.cfs_quota_us", "200000"), ("cpu/cpu.cfs_period_us", "100000"),
                       ("memory/memory.limit_in_bytes", "1000"), ("memory/memory.usage_in_bytes", "1")):  # fmt: skip
        (old / name).parent.mkdir(parents=True, exist_ok=True)
        (old / name).write_text(text)
    assert (machine.cpu_quota(old), machine.memory_left(old)) == (2.0, 999)


@pytest.mark.parametrize(
    ("version", "wanted", "is_good"),
    [("2.13.0+cpu", ">=2.11", True), ("2.9.1", ">=2.11", False), ("3.11.7", ">=3.11", True), ("0.9", "", True)],
)
def test_versions(version: str, wanted: str, is_good: bool) -> None:
    assert doctor.reaches(version, wanted) is is_good


@pytest.mark.parametrize(
    ("count", "text"), [(5, "5 bytes"), (1536, "1.5 KiB"), (3 << 20, "3 MiB"), (24 << 30, "24 GiB"), (1023 << 20, "1023 MiB")]
)
def test_sizes_in_words(count: int, text: str) -> None:
    assert doctor.size(count) == text
