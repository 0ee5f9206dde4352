"""Only ftc/settings.py looks at the environment, and each of its variables is in the table and in the documentation."""

from __future__ import annotations

import ast
import re

from ftc import settings
from tests.rules.tree import ROOT, at, parse, python, read, report, texts

NAMES = ("environ", "environb", "getenv", "getenvb", "putenv", "unsetenv")


def environment_uses(tree: ast.Module) -> list[int]:
    """Lines that reach the environment through `os`, whatever name it was imported by."""
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in NAMES and isinstance(node.value, ast.Name):
            lines.append(node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            lines += [node.lineno for alias in node.names if alias.name in NAMES]
    return lines


def test_nothing_else_reads_the_environment():
    allowed = ROOT / "ftc" / "settings.py"
    report(
        [
            f"{at(path, line)}: the environment is read in ftc/settings.py only"
            for path in python("ftc", "models")
            if path != allowed
            for line in environment_uses(parse(path))
        ]
    )


def test_the_rule_itself():
    for source in ("import os\nos.environ['X']", "import os as o\no.getenv('X')", "from os import environ"):
        assert environment_uses(ast.parse(source)), source
    assert environment_uses(ast.parse("import os\nos.path.join('a')")) == []


def test_every_variable_is_in_the_table():
    known = {setting.name for setting in settings.SETTINGS}
    problems = []
    for path in texts():
        for number, line in enumerate(read(path).splitlines(), 1):
            for name in re.findall(r"\bFTC_[A-Z]+(?:_[A-Z]+)*\b", line):
                is_macro = path.suffix in (".h", ".cpp", ".c") or path.name == "build.py"
                if name not in known and not is_macro:
                    problems.append(f"{at(path, number)}: {name} is not in ftc/settings.py")
    report(problems)


def test_every_variable_is_documented():
    text = read(ROOT / "docs" / "settings.md")
    for setting in settings.SETTINGS:
        assert f"| `{setting.name}` | {setting.default} | {setting.doc} |" in text, (
            f"docs/settings.md lacks the row of {setting.name}"
        )
