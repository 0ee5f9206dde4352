"""No file is longer than 400 lines unless pyproject.toml says why."""

from __future__ import annotations

import tomllib

from tests.rules.tree import ROOT, SOURCES, at, files, read, report

LIMIT = 400


def exceptions() -> dict[str, dict]:
    return tomllib.loads(read(ROOT / "pyproject.toml"))["tool"]["ftc"]["sizes"]


def test_files_are_short():
    allowed = exceptions()
    problems = []
    for path in files():
        if path.suffix in SOURCES:
            lines, limit = len(read(path).splitlines()), allowed.get(at(path), {}).get("lines", LIMIT)
            if lines > limit:
                problems.append(f"{at(path)}: {lines} lines, more than {limit}: split it by idea")
    report(problems)


def test_exceptions_are_needed_and_explained():
    problems = []
    for name, entry in exceptions().items():
        path = ROOT / name
        if not path.is_file():
            problems.append(f"[tool.ftc.sizes] {name}: no such file, take the entry out")
        elif len(read(path).splitlines()) <= LIMIT:
            problems.append(f"[tool.ftc.sizes] {name}: no longer over {LIMIT} lines, take the entry out")
        if len(entry.get("reason", "").split()) < 5 or not isinstance(entry.get("lines"), int):
            problems.append(f"[tool.ftc.sizes] {name}: wants `lines` and a `reason` in words")
    report(problems)
