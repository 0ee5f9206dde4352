"""Artefacts on disk: four layers under one versioned folder, each entry whole or absent, checked when it is read.

An entry is `LAYER/KEY.data` with `LAYER/KEY.json` (factors, size, checksum), which is written last: without it the entry
does not exist. Both arrive by rename. CUDA graphs are never stored.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ftc.compile.key import Factors, key_of
from ftc.errors import ArtefactError
from ftc.log import logger

VERSION = "v1"
LAYERS = ("logical", "tuning", "lowered", "kernels")
CAP_BYTES = 2 << 30
LEFTOVER_S = 86_400  # what a writer that was killed left behind; no living one takes that long

_log = logger("artefacts")


class Store:
    """The artefact folder. `subject` in factors names what an entry is for, so that misses compare like with like."""

    def __init__(self, root: Path, cap_bytes: int = CAP_BYTES) -> None:
        self.root, self.cap_bytes = root / VERSION, cap_bytes
        try:
            for layer in LAYERS:
                (self.root / layer).mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise ArtefactError(f"the artefact folder cannot be made: {e.strerror}", where=str(root)) from None

    @property
    def inductor_dir(self) -> Path:
        """Inductor's own cache: on a CPU compiled code lives there and artefacts refer to it."""
        return self.root / "kernels" / "inductor"

    def find(self, layer: str, factors: Factors) -> Path | None:
        """The entry's data file if it is whole; a damaged entry is removed and counts as absent."""
        data, note = self._paths(layer, key_of(factors))
        try:
            told = json.loads(note.read_text(encoding="utf-8"))
            content = data.read_bytes()
        except (OSError, ValueError):
            return None
        if told.get("bytes") != len(content) or told.get("sha256") != hashlib.sha256(content).hexdigest():
            _log.warning("%s is damaged and will be made again", data.name)
            self.discard(layer, factors)
            return None
        with contextlib.suppress(OSError):
            os.utime(note)  # recently used entries are the last to be trimmed
        return data

    def read(self, layer: str, factors: Factors) -> bytes | None:
        path = self.find(layer, factors)
        return None if path is None else path.read_bytes()

    def put(self, layer: str, factors: Factors, write: Callable[[Path], None] | bytes) -> Path:
        """Stores an entry: `write` is given a temporary path to fill, or is the content itself."""
        data, note = self._paths(layer, key_of(factors))
        with tempfile.TemporaryDirectory(dir=self.root, prefix="new-") as folder:
            fresh = Path(folder) / "data"
            if isinstance(write, bytes):
                fresh.write_bytes(write)
            else:
                write(fresh)
            content = fresh.read_bytes()
            told = {"factors": dict(factors), "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            told_file = Path(folder) / "note"
            told_file.write_text(json.dumps(told, indent=1), encoding="utf-8")
            os.replace(fresh, data)
            os.replace(told_file, note)
        self._trim()
        return data

    def discard(self, layer: str, factors: Factors) -> None:
        data, note = self._paths(layer, key_of(factors))
        note.unlink(missing_ok=True)
        data.unlink(missing_ok=True)

    def explain(self, layer: str, factors: Factors) -> str:
        """Why `factors` are not here: what differs from the nearest entry of the same subject."""
        best: list[str] | None = None
        for note in (self.root / layer).glob("*.json"):
            try:
                other = json.loads(note.read_text(encoding="utf-8"))["factors"]
            except (OSError, ValueError, KeyError):
                continue
            if other.get("subject") != factors.get("subject"):
                continue
            differs = [f"{k}: {other.get(k)} -> {v}" for k, v in factors.items() if other.get(k) != v]
            if best is None or len(differs) < len(best):
                best = differs
        return "nothing like it was stored before" if best is None else "; ".join(best) or "the entry is damaged"

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Held by one process at a time, so that two do not compile the same thing."""
        path = self.root / f"{name}.lock"
        with path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _paths(self, layer: str, key: str) -> tuple[Path, Path]:
        folder = self.root / layer
        return folder / f"{key}.data", folder / f"{key}.json"

    def _trim(self) -> None:
        for left in (*self.root.glob("new-*"), *(d for d in self.root.glob("*/*.data") if not d.with_suffix(".json").exists())):
            with contextlib.suppress(OSError):
                if time.time() - left.stat().st_mtime > LEFTOVER_S:
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
        entries = []
        for note in self.root.glob("*/*.json"):
            with contextlib.suppress(OSError):
                entries.append((note.stat().st_mtime, note.with_suffix(".data").stat().st_size, note))
        total = sum(size for _, size, _ in entries)
        for _, size, note in sorted(entries):
            if total <= self.cap_bytes:
                return
            note.unlink(missing_ok=True)
            note.with_suffix(".data").unlink(missing_ok=True)
            total -= size
