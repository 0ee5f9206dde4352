"""Log lines: where they go, what they look like, and how stages are timed."""

from __future__ import annotations

import logging
import re
import time

import pytest

from ftc import log


@pytest.fixture(autouse=True)
def as_before():
    root = logging.getLogger("ftc")
    kept = root.handlers, root.level, root.propagate
    yield
    root.handlers, root.level, root.propagate = kept


def test_a_line_has_time_level_place_and_sentence(capsys: pytest.CaptureFixture[str]):
    log.configure("info")
    log.logger("engine").warning("The cache is %d %% full.", 90)
    log.logger().info("Ready.")
    log.logger().debug("Not shown.")
    out, err = capsys.readouterr()
    assert out == ""
    stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}"
    assert re.fullmatch(f"{stamp} WARNING engine: The cache is 90 % full.\n{stamp} INFO    Ready.\n", err)


def test_configuring_twice_doubles_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FTC_LOG", "error")
    log.configure("debug")
    log.configure()
    log.logger("a").info("hidden")
    log.logger("a").error("once")
    assert capsys.readouterr().err.count("\n") == 1


def test_stages_sum_up(capsys: pytest.CaptureFixture[str]):
    log.configure("debug")
    stages = log.Stages("start", log.logger("engine"))
    with stages("read weights"):
        time.sleep(0.02)
    with pytest.raises(KeyError), stages("trace"):
        raise KeyError
    with stages("read weights"):
        time.sleep(0.02)
    assert list(stages.seconds) == ["read weights", "trace"]
    assert 0.04 <= stages.seconds["read weights"] <= stages.total_seconds()
    assert re.fullmatch(
        r"start took \d+\.\d\d s: read weights 0\.\d\d s, trace 0\.00 s, other 0\.\d\d s\.", stages.summary()
    )
    assert capsys.readouterr().err.count("engine: start: read weights took 0.0") == 2
