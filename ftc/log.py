"""Log lines on stderr, one sentence each, and the seconds that the stages of a start take."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ftc import settings

_ROOT = logging.getLogger("ftc")


class _Line(logging.Formatter):
    """`2026-01-31 12:00:00.123 INFO    engine: sentence`; the name is left out for the root logger."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03d %(levelname)-7s %(place)s%(message)s", "%Y-%m-%d %H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        _, _, place = record.name.partition(".")
        record.place = f"{place}: " if place else ""
        return super().format(record)


def configure(level: str | None = None) -> None:
    """Sends ftc's log lines to stderr from `level` (a word of settings.LEVELS; default: FTC_LOG) upwards.

    Calling it again changes the level and the stream, never doubles the lines.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Line())
    _ROOT.handlers = [handler]
    _ROOT.setLevel((level or settings.log_level()).upper())
    _ROOT.propagate = False


def logger(place: str = "") -> logging.Logger:
    """The logger of one part of ftc, named in its lines: `logger("engine")`."""
    return _ROOT.getChild(place) if place else _ROOT


class Stages:
    """Times the stages of one job, such as a start, and sums them up in one line."""

    def __init__(self, job: str, log: logging.Logger | None = None) -> None:
        self.job = job
        self.seconds: dict[str, float] = {}
        self._log = log or _ROOT
        self._begin = time.perf_counter()

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Runs one stage; its seconds are kept, and logged at debug level, also when it fails."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - begin
            self.seconds[stage] = self.seconds.get(stage, 0.0) + spent
            self._log.debug("%s: %s took %.3f s.", self.job, stage, spent)

    def total_seconds(self) -> float:
        """Seconds since this object was made, stages or not."""
        return time.perf_counter() - self._begin

    def summary(self) -> str:
        """`start took 1.92 s: read weights 0.41 s, trace 1.20 s, other 0.31 s.`"""
        total = self.total_seconds()
        parts = {**self.seconds, "other": max(0.0, total - sum(self.seconds.values()))}
        return (
            f"{self.job} took {total:.2f} s: "
            + ", ".join(f"{name} {spent:.2f} s" for name, spent in parts.items())
            + "."
        )
