"""Progress on a terminal and off it."""

from __future__ import annotations

import io

import pytest

from ftc.cli import progress
from ftc.cli.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines_name_each_phase_once():
    out = io.StringIO()
    with Progress(out) as show:
        for done in range(101):
            show("read weights", done, 100)
        show("compile", 0, 0)
    lines = [line.split(" in ")[0] for line in out.getvalue().splitlines()]
    assert lines == ["read weights ...", "read weights: done", "compile ...", "compile: done"]
    assert "\x1b" not in out.getvalue()


def test_a_long_phase_is_heard_of_now_and_then(monkeypatch: pytest.MonkeyPatch):
    now = iter([0.0, 1.0, 6.0, 7.0, 12.0, 13.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    out = io.StringIO()
    with Progress(out) as show:
        for done, total in ((0, 8), (1, 8), (4, 8), (5, 8), (9, 0)):
            show("download", done, total)
    assert out.getvalue() == "download ...\ndownload: 50 %\ndownload: 12 s\ndownload: done in 13.0 s\n"


def test_a_failed_phase_is_not_called_done():
    out = io.StringIO()
    with pytest.raises(OSError), Progress(out) as show:
        show("download", 1, 2)
        raise OSError
    assert out.getvalue() == "download ...\n"


def test_bars_fill_up_and_close():
    out = Terminal()
    with Progress(out) as show:
        show("read weights", 5, 10)
        show("read weights", 30, 10)
        show("compile", 0, 0)
        show("compile", 3, 6)
    last = out.getvalue()
    assert "read weights" in last and "compile" in last and "100%" in last
    assert last.rstrip("\n").count("\x1b[?25l") == last.count("\x1b[?25h")


def test_nothing_fed_prints_nothing():
    out = io.StringIO()
    with Progress(out):
        pass
    assert out.getvalue() == ""
