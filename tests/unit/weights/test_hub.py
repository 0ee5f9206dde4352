"""Where models are found: the embedded one, folders, and a hub that breaks off, goes away or says no."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ftc.errors import CheckpointError
from ftc.spec.load import read_model
from ftc.weights.hub import locate
from tests.unit.weights.fakehub import COMMIT, NAME, FakeHub

ROOT = Path(__file__).resolve().parents[3]

# In a process of its own: the library reads its endpoint and cache when it is imported.
SCRIPT = """
import json, sys
from ftc.errors import FtcError
from ftc.weights.hub import locate
seen = []
try:
    print(json.dumps({"folder": str(locate(sys.argv[1], lambda *now: seen.append(now))), "seen": seen}))
except FtcError as e:
    print(json.dumps({"error": str(e), "kind": type(e).__name__}))
"""

FILES = {
    "config.json": b'{"a": 1}',
    "model.safetensors": bytes(range(256)) * 1000,
    "tokenizer.json": b"{}",
    "README.md": b"not needed",
    "pytorch_model.bin": b"never",
    "original/model.safetensors": b"the same once more",
    "consolidated.00.safetensors": b"and again",
}
NEEDED = {"config.json", "model.safetensors", "tokenizer.json"}


def ask(model: str, home: Path, endpoint: str, **changes: str) -> dict[str, Any]:
    environment = {**os.environ, "HF_HOME": str(home), "HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "0"}
    environment |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", **changes}
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, model], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


def held(folder: str) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()}


def test_embedded_model(demo: Path) -> None:
    assert locate("demo").resolve() == demo.resolve()
    assert read_model(locate("demo")).moe_branches


def test_folder(tmp_path: Path) -> None:
    assert locate(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("name", ["missing", "./a/b", "a/b/c", "/no/such/folder", "a b/c", "../x/y", ""])
def test_neither_folder_nor_id(name: str) -> None:
    with pytest.raises(CheckpointError, match="no such folder, and not a hub id") as e:
        locate(name)
    assert "'demo'" in str(e.value)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(CheckpointError, match="this is a file of type"):
        locate(str(tmp_path / name))


def test_download_takes_what_is_needed_and_is_kept(tmp_path: Path) -> None:
    with FakeHub(FILES) as hub:
        first = ask(NAME, tmp_path, hub.url)
        assert held(first["folder"]) == {n: FILES[n] for n in NEEDED}
        assert {n for n, _ in hub.requests} == NEEDED
        phase, done, total = first["seen"][-1]
        assert phase == "download" and done == total == sum(len(FILES[n]) for n in NEEDED)
        hub.requests.clear()
        assert ask(f"{NAME}@{COMMIT}", tmp_path, hub.url)["folder"] == first["folder"]
        assert not hub.requests
    # The hub is gone: the finished download serves.
    assert ask(NAME, tmp_path, hub.url)["folder"] == first["folder"]
    assert ask(NAME, tmp_path, hub.url, HF_HUB_OFFLINE="1")["folder"] == first["folder"]


def test_a_cut_connection_goes_on_at_the_byte(tmp_path: Path) -> None:
    large = bytes(range(256)) * 100_000  # the library writes pieces of 10 MiB, and keeps whole ones
    with FakeHub({"model.safetensors": large}) as hub:
        hub.cut = "model.safetensors"
        answer = ask(NAME, tmp_path, hub.url)
        assert held(answer["folder"])["model.safetensors"] == large
        ranges = [r for n, r in hub.requests if n == "model.safetensors"]
        assert len(ranges) == 2 and ranges[0] is None
        begin = int(ranges[1].removeprefix("bytes=").rstrip("-"))
        assert 0 < begin <= len(large) // 2


def test_a_failed_download_goes_on_at_the_file(tmp_path: Path) -> None:
    with FakeHub(FILES) as hub:
        hub.files = {n: b for n, b in FILES.items() if n != "model.safetensors"}
        hub.files |= {"model-1.safetensors": b"x" * 100_000, "model-2.safetensors": b"y" * 100_000}
        hub.dead = "model-2.safetensors"
        answer = ask(NAME, tmp_path, hub.url)
        assert answer["kind"] == "CheckpointError" and NAME in answer["error"]
        assert "finished files are kept" in answer["error"] and "Traceback" not in answer["error"]
        hub.dead = None
        hub.requests.clear()
        answer = ask(NAME, tmp_path, hub.url)
        assert [n for n, _ in hub.requests] == ["model-2.safetensors"]
        assert held(answer["folder"])["model-2.safetensors"] == hub.files["model-2.safetensors"]


def test_refusals_are_one_sentence(tmp_path: Path) -> None:
    with FakeHub(FILES) as hub:
        assert "the hub has no such model" in ask("tiny/other", tmp_path, hub.url)["error"]
        assert "not this revision" in ask(f"{NAME}@v9", tmp_path, hub.url)["error"]
    for changes in ({}, {"HF_HUB_OFFLINE": "1"}):
        error = ask(NAME, tmp_path, hub.url, **changes)["error"]
        assert error.splitlines()[0] == f"{NAME}: the hub cannot be reached, and no complete download is in the local cache"
        assert len(error.splitlines()) == 2
