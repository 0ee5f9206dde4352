"""Each variable has its default, its meaning and its refusal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ftc import settings
from ftc.errors import FtcError


def test_cache_dir_follows_the_variable_then_xdg_then_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("FTC_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert settings.cache_dir() == tmp_path / ".cache" / "ftc"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert settings.cache_dir() == tmp_path / ".cache" / "ftc"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert settings.cache_dir() == tmp_path / "xdg" / "ftc"
    monkeypatch.setenv("FTC_CACHE", "~/own")
    assert settings.cache_dir() == tmp_path / "own"
    monkeypatch.setenv("FTC_CACHE", "")
    assert settings.cache_dir() == tmp_path / "xdg" / "ftc"
    assert not list(tmp_path.iterdir())


def test_threads_default_to_the_affinity_mask():
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    code += "from ftc import settings; print(settings.threads())"
    out = subprocess.run(
        [sys.executable, "-c", code],
        env=settings.environment(FTC_THREADS=None),
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.strip() == "1"


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "²"])
def test_threads_refuse_nonsense(monkeypatch: pytest.MonkeyPatch, text: str):
    monkeypatch.setenv("FTC_THREADS", text)
    with pytest.raises(FtcError, match="FTC_THREADS") as caught:
        settings.threads()
    assert caught.value.value == text


def test_threads_take_a_number(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FTC_THREADS", " 7 ")
    assert settings.threads() == 7


def test_log_level(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("FTC_LOG", raising=False)
    assert settings.log_level() == "info"
    monkeypatch.setenv("FTC_LOG", "WARNING")
    assert settings.log_level() == "warning"
    monkeypatch.setenv("FTC_LOG", "loud")
    with pytest.raises(FtcError, match="debug, info, warning, error"):
        settings.log_level()


def test_environment_lays_changes_over_and_takes_away(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("A_KEPT", "1")
    monkeypatch.setenv("A_GONE", "1")
    child = settings.environment(A_GONE=None, A_NEW="2")
    assert (child["A_KEPT"], child["A_NEW"], "A_GONE" in child) == ("1", "2", False)
    assert os.environ["A_GONE"] == "1" and "A_NEW" not in os.environ


def test_export_reaches_libraries(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("A_LIBRARY_READS", "0")
    settings.export(A_LIBRARY_READS="3")
    assert os.environ["A_LIBRARY_READS"] == "3"
