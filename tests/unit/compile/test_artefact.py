"""Artefacts on disk: whole or absent, explained when missing, made by one process at a time, and never too many."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ftc.compile.artefact import Store
from ftc.errors import ArtefactError

FACTORS = {"subject": "a", "torch": "1", "isa": "x", "threads": "2"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def names(store: Store, layer: str = "kernels") -> list[str]:
    return sorted(p.name for p in (store.root / layer).iterdir())


def test_what_was_put_is_read_back(store: Store) -> None:
    store.put("kernels", FACTORS, b"one")
    assert store.read("kernels", FACTORS) == b"one"
    assert store.read("lowered", FACTORS) is None
    path = store.put("kernels", FACTORS, lambda path: path.write_bytes(b"two") and None)
    assert path.read_bytes() == b"two" and len(names(store)) == 2
    assert [p.name for p in store.root.iterdir() if p.name.startswith("new-")] == []


CHILD = """
import os, signal, sys
from pathlib import Path
from ftc.compile import artefact

store = artefact.Store(Path(sys.argv[1]))
replace = os.replace

def die_after(first):
    def half(source, target):
        if first == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)
        os.kill(os.getpid(), signal.SIGKILL)
    return half

def write(path):
    path.write_bytes(b"half of it")
    if sys.argv[2] == "writing":
        os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[2] != "writing":
    artefact.os.replace = die_after(int(sys.argv[2] == "after the first rename"))
store.put("kernels", {"subject": "a", "torch": "1", "isa": "x", "threads": "2"}, write)
"""


@pytest.mark.parametrize("moment", ["writing", "before the first rename", "after the first rename"])
@pytest.mark.parametrize("before", [False, True], ids=["empty", "an older one is there"])
def test_a_killed_writer_leaves_nothing_to_be_seen(store: Store, tmp_path: Path, moment: str, before: bool) -> None:
    if before:
        store.put("kernels", FACTORS, b"older")
    child = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path), moment], check=False)
    assert child.returncode == -signal.SIGKILL
    # never the half: the older one, or nothing where its data was already replaced
    assert store.read("kernels", FACTORS) in ((b"older", None) if before else (None,))
    store.put("kernels", FACTORS, b"whole")
    assert store.read("kernels", FACTORS) == b"whole"


def test_what_killed_writers_left_is_swept_after_a_day(store: Store, tmp_path: Path) -> None:
    for moment in ("writing", "after the first rename"):
        subprocess.run([sys.executable, "-c", CHILD, str(tmp_path), moment], check=False)
    left = [*store.root.glob("new-*"), *store.root.glob("kernels/*.data")]
    assert len(left) == 3
    store.put("lowered", FACTORS, b"young ones may belong to a living writer")
    assert all(path.exists() for path in left)
    for path in left:
        os.utime(path, (0, 0))
    store.put("lowered", FACTORS, b"content")
    assert not any(path.exists() for path in left)


@pytest.mark.parametrize("damage", ["cut", "changed", "gone", "note"])
def test_a_damaged_entry_is_absent_and_can_be_made_again(store: Store, damage: str) -> None:
    data = store.put("kernels", FACTORS, b"content")
    note = data.with_suffix(".json")
    match damage:
        case "cut":
            data.write_bytes(b"cont")
        case "changed":
            data.write_bytes(b"contenT")
        case "gone":
            data.unlink()
        case "note":
            note.write_text("{")
    assert store.find("kernels", FACTORS) is None
    store.put("kernels", FACTORS, b"content")
    assert store.read("kernels", FACTORS) == b"content"


@pytest.mark.parametrize("factor", [f for f in FACTORS if f != "subject"])
def test_a_miss_names_the_factor_that_differs(store: Store, factor: str) -> None:
    store.put("kernels", FACTORS, b"content")
    store.put("kernels", {f: "far" for f in FACTORS} | {"subject": "a"}, b"another, in which all differ")
    assert store.explain("kernels", FACTORS | {factor: "new"}) == f"{factor}: {FACTORS[factor]} -> new"


def test_a_miss_without_a_like_entry_says_so(store: Store) -> None:
    store.put("kernels", FACTORS, b"content")
    assert "stored before" in store.explain("kernels", FACTORS | {"subject": "b"})


HOLD = """
import sys
from pathlib import Path
from ftc.compile.artefact import Store

with Store(Path(sys.argv[1])).lock("compile"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_one_process_at_a_time(store: Store, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stdin is not None
        assert child.stdout.readline() == "held\n"
        with (store.root / "compile.lock").open("w") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        child.stdin.close()  # a process that ends, however it ends, holds nothing any more
        with store.lock("compile"):
            pass
    assert child.returncode == 0


def test_the_longest_unused_go_first(tmp_path: Path) -> None:
    store = Store(tmp_path, cap_bytes=35)
    for n in range(3):
        path = store.put("kernels", FACTORS | {"torch": str(n)}, bytes(10))
        os.utime(path.with_suffix(".json"), (n, n))
    assert store.read("kernels", FACTORS | {"torch": "0"})  # used now
    store.put("kernels", FACTORS | {"torch": "3"}, bytes(10))
    here = [n for n in range(4) if store.find("kernels", FACTORS | {"torch": str(n)})]
    assert here == [0, 2, 3]
    assert len(names(store)) == 6


def test_the_folder_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtefactError, match="cannot be made"):
        Store(tmp_path / "file")


def test_notes_are_readable(store: Store) -> None:
    note = store.put("kernels", FACTORS, b"content").with_suffix(".json")
    assert json.loads(note.read_text())["factors"] == FACTORS
