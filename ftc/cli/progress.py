"""Shows how far a long job is: bars on a terminal, a few plain lines anywhere else."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

PLAIN_SECONDS = 5.0


class Progress:
    """A sink for (phase, done, total), used as a context manager.

    `done` and `total` count anything, bytes or layers; a total of 0 means that it is not known. A phase ends when
    the next one begins or the `with` is left.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        stream = stream or sys.stderr
        self._view: _Bars | _Lines = _Bars(stream) if stream.isatty() else _Lines(stream)

    def __enter__(self) -> Progress:
        self._view.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._view.close(failed=error is not None)

    def __call__(self, phase: str, done: int, total: int) -> None:
        self._view.update(phase, min(done, total) if total > 0 else done, max(total, 0))


class _Bars:
    """One bar per phase; a bar without a known total moves to and fro."""

    def __init__(self, stream: TextIO) -> None:
        columns = (
            TextColumn("{task.description:<24}"),
            BarColumn(bar_width=32),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
        )
        self._bars = Bars(*columns, console=Console(file=stream))
        self._phase = ""
        self._task: TaskID | None = None

    def start(self) -> None:
        self._bars.start()

    def update(self, phase: str, done: int, total: int) -> None:
        if self._task is None or phase != self._phase:
            self._finish()
            self._phase, self._task = phase, self._bars.add_task(phase, total=total or None)
        self._bars.update(self._task, completed=done, total=total or None)

    def close(self, failed: bool) -> None:
        if not failed:
            self._finish()
        self._bars.stop()

    def _finish(self) -> None:
        if self._task is not None:
            total = self._bars.tasks[self._task].total or 1
            self._bars.update(self._task, completed=total, total=total)


class _Lines:
    """One line when a phase begins, one every PLAIN_SECONDS while it lasts, one with its seconds when it ends."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._phase = ""
        self._begin = self._said = 0.0

    def start(self) -> None:
        pass

    def update(self, phase: str, done: int, total: int) -> None:
        now = time.monotonic()
        if phase != self._phase:
            self._finish(now)
            self._phase, self._begin, self._said = phase, now, now
            self._say(f"{phase} ...")
        elif now - self._said >= PLAIN_SECONDS:
            self._said = now
            self._say(f"{phase}: {100 * done // total} %" if total else f"{phase}: {now - self._begin:.0f} s")

    def close(self, failed: bool) -> None:
        if not failed:
            self._finish(time.monotonic())

    def _finish(self, now: float) -> None:
        if self._phase:
            self._say(f"{self._phase}: done in {now - self._begin:.1f} s")
            self._phase = ""

    def _say(self, line: str) -> None:
        print(line, file=self._stream, flush=True)
