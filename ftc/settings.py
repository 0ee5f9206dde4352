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


API_KEY = Setting(
    "FTC_API_KEY", "none: open to all", "Keys that clients must send, separated by commas; each one opens the server."
)
API_KEY_FILE = Setting("FTC_API_KEY_FILE", "none", "A file with more such keys, one a line; lines with # are comments.")
CACHE = Setting(
    "FTC_CACHE",
    "$XDG_CACHE_HOME/ftc, else ~/.cache/ftc",
    "Folder of the compiled artefacts. It may be deleted at any time; what is missing is made again.",
)
CORS = Setting(
    "FTC_CORS", "none", "Origins whose pages may use the server, separated by commas, such as http://localhost:3000; * is any."
)
LOG = Setting("FTC_LOG", "info", "Least severe log lines shown: debug, info, warning or error.")
NONCE = Setting(
    "FTC_NONCE",
    "drop",
    "What is done with a system block that some agents change with every request, at the cost of the cache: drop or keep.",
)
THREADS = Setting(
    "FTC_THREADS",
    "the CPUs this process may run on",
    "Threads of the CPU kernels, one pool for native and compiled code.",
)

SETTINGS = (API_KEY, API_KEY_FILE, CACHE, CORS, LOG, NONCE, THREADS)

LEVELS = ("debug", "info", "warning", "error")


def read(setting: Setting) -> str | None:
    """The variable's text, or None when it is unset or empty."""
    return os.environ.get(setting.name, "").strip() or None


def api_keys() -> tuple[str, ...]:
    """The keys of the server, from the variable and from the file; none means open to all. Raises FtcError."""
    keys = [key.strip() for key in (read(API_KEY) or "").split(",")]
    if text := read(API_KEY_FILE):
        try:
            lines = Path(text).expanduser().read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise FtcError(f"the key file cannot be read: {error}", where=API_KEY_FILE.name, value=text) from error
        from_file = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if not from_file:
            # An empty file must not open a server that was meant to be closed.
            raise FtcError("the key file holds no key", where=API_KEY_FILE.name, value=text)
        keys += from_file
    return tuple(dict.fromkeys(key for key in keys if key))


def cors_origins() -> tuple[str, ...]:
    """Origins whose pages may use the server."""
    return tuple(origin.strip().rstrip("/") for origin in (read(CORS) or "").split(",") if origin.strip())


def keeps_nonce() -> bool:
    """Whether a system block that changes with every request stays. Raises FtcError for any other word."""
    word = (read(NONCE) or "drop").lower()
    if word not in ("drop", "keep"):
        raise FtcError("not a choice", where=NONCE.name, value=word, hint="use drop or keep.")
    return word == "keep"


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


def thread_pool() -> dict[str, str]:
    """Variables for the thread pool of native and compiled kernels, read when its library loads.

    Threads wait about 50 us for the next op, then sleep: decoding the embedded model takes 0.52 ms a token so, 0.82 ms when
    they sleep at once; spinning for long makes a step up to ten times as slow as soon as other programs want the CPUs.
    """
    return {"OMP_NUM_THREADS": str(threads()), "OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "3000"}


def export(**changes: str) -> None:
    """Sets variables of this process that a library reads when it is loaded, such as OMP_NUM_THREADS."""
    os.environ.update(changes)
