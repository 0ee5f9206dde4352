"""Modules say what they decide, their names mean something, their folders are packages, nothing is unfinished."""

from __future__ import annotations

import ast
import re

from tests.rules.tree import ROOT, at, parse, python, read, report, under

FORBIDDEN_STEMS = {"utils", "util", "helpers", "helper", "common", "misc", "types", "base2", "stuff", "tools", "lib"}
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK|NotImplementedError)\b")
# A full stop that ends a sentence: followed by a capital, and not after a one-letter word or a usual abbreviation.
SENTENCE_END = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)(?<!\b\w)[.!?]\s+(?=[A-Z])")


def first_paragraph(text: str) -> str:
    return " ".join(text.strip().split("\n\n")[0].split())


def test_modules_open_with_one_sentence():
    problems = []
    for path in python("ftc", "models", "native", "tests", "tools"):
        text = ast.get_docstring(parse(path))
        if text is None:
            if path.name != "__init__.py" or path.read_text().strip():
                problems.append(f"{at(path, 1)}: no docstring that says what the module decides")
            continue
        sentence = first_paragraph(text)
        if not sentence.endswith((".", "!", "?")) or SENTENCE_END.search(sentence):
            problems.append(f"{at(path, 1)}: the docstring opens with more, or less, than one sentence: {sentence!r}")
    report(problems)


def test_packages_hold_an_init_file():
    folders = {path.parent for path in python("ftc")}
    report(
        [
            f"{at(f)}: no __init__.py, so the package would not be installed"
            for f in folders
            if not (f / "__init__.py").exists()
        ]
    )


def test_file_names_mean_something():
    every = under("ftc", "models", "native", "tests", "tools")
    report(
        [f"{at(path)}: a file called {path.stem!r} can hold anything" for path in every if path.stem in FORBIDDEN_STEMS]
    )


def test_nothing_is_unfinished():
    own = ROOT / "tests" / "rules" / "test_modules.py"
    problems = []
    for path in under("ftc", "models", "native", "tests", "tools", suffixes={".py", ".cpp", ".c", ".h", ".js", ""}):
        if path == own:
            continue
        for number, line in enumerate(read(path).splitlines(), 1):
            if match := UNFINISHED.search(line):
                problems.append(f"{at(path, number)}: {match.group()}")
    report(problems)
