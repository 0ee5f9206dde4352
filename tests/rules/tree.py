"""The files of the repository, as the rules see them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Made by tools, never by people. The recipe is provenance: kept as it was when it made the embedded checkpoint.
IGNORED_NAMES = {
    ".git",
    ".venv",
    "__pycache__",
    "build",
    "dist",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    ".hypothesis",
}
PROVENANCE = ROOT / "models" / "demo" / "recipe"

SOURCES = {".py", ".cpp", ".c", ".h", ".css", ".html", ".js"}
TEXTS = SOURCES | {".md", ".toml", ".txt", ".sh", ".cfg", ".ini", ".yml", ".yaml", ""}


@cache
def files() -> tuple[Path, ...]:
    """Every file of the repository but caches, build products and the recipe, in a stable order."""
    found: list[Path] = []
    folders = [ROOT]
    while folders:
        for path in sorted(folders.pop().iterdir()):
            ignored = path.name in IGNORED_NAMES or path.name.endswith(".egg-info") or path.name.startswith("_native")
            if ignored or path == PROVENANCE:
                continue
            if path.is_dir():
                folders.append(path)
            else:
                found.append(path)
    return tuple(sorted(found))


def under(*folders: str, suffixes: set[str] | None = None) -> list[Path]:
    """The files below the named top folders, with one of `suffixes` when given."""
    tops = tuple(ROOT / folder for folder in folders)
    return [
        path
        for path in files()
        if any(top in path.parents for top in tops) and (suffixes is None or path.suffix in suffixes)
    ]


def python(*folders: str) -> list[Path]:
    return under(*folders, suffixes={".py"})


def texts() -> list[Path]:
    """Files that people write: source, prose and scripts. Checkpoint files are data."""
    return [path for path in files() if path.suffix in TEXTS]


@cache
def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(read(path), filename=str(path))


def at(path: Path, line: int | None = None) -> str:
    """`ftc/log.py:12`, as an editor wants it."""
    short = path.relative_to(ROOT).as_posix()
    return short if line is None else f"{short}:{line}"


def report(problems: list[str]) -> None:
    """Fails with all problems, one a line."""
    assert not problems, f"{len(problems)} found:\n" + "\n".join(problems)
