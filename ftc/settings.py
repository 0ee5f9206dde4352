"""Every environment variable that ftc reads, in one table; no other file looks at the environment.

A value that makes no sense is refused with the variable's name the first time it is asked for.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from ftc.errors import FtcError


class Setting(msgspec.Struct, frozen=True):
    """One environment variable: its name, what holds when it is unset or empty (in words), and what it decides."""

    name: str
    default: str
    doc: str


CACHE = Setting(
    "FTC_CACHE",
    "$XDG_CACHE_HOME/ftc, else ~/.cache/ftc",
    "Folder of the compiled artefacts. It may be deleted at any time; what is missing is made again.",
)
LOG = Setting("FTC_LOG", "info", "Least severe log lines shown: debug, info, warning or error.")
THREADS = Setting(
    "FTC_THREADS",
    "the CPUs this process may run on",
    "Threads of the CPU kernels, one pool for native and compiled code.",
)

SETTINGS = (CACHE, LOG, THREADS)

LEVELS = ("debug", "info", "warning", "error")


def read(setting: Setting) -> str | None:
    """The variable's text, or None when it is unset or empty."""
    return os.environ.get(setting.name, "").strip() or None


def cache_dir() -> Path:
    """The artefact folder (not created here)."""
    if text := read(CACHE):
        return Path(text).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG standard says that a relative value is to be ignored.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "ftc"


def log_level() -> str:
    """One of LEVELS. Raises FtcError for any other word."""
    level = (read(LOG) or "info").lower()
    if level not in LEVELS:
        raise FtcError("not a log level", where=LOG.name, value=level, hint=f"use one of {', '.join(LEVELS)}.")
    return level


def threads() -> int:
    """Threads of the CPU kernels: FTC_THREADS, else one per CPU in the affinity mask. Raises FtcError below 1."""
    text = read(THREADS)
    if text is None:
        return len(os.sched_getaffinity(0))
    if not text.isdecimal() or int(text) < 1:
        raise FtcError("not a number of threads", where=THREADS.name, value=text, hint="use a whole number from 1.")
    return int(text)


def environment(**changes: str | None) -> dict[str, str]:
    """The environment for a child process: this one with `changes` laid over it; None takes a variable away."""
    merged: dict[str, str | None] = {**os.environ, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def export(**changes: str) -> None:
    """Sets variables of this process that a library reads when it is loaded, such as OMP_NUM_THREADS."""
    os.environ.update(changes)
