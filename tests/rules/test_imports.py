"""Imports point only leftwards along the line, and specs import nothing but their vocabulary."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.rules.imports import imports, module_name
from tests.rules.tree import ROOT, at, parse, python, report

ORDER = (
    ("errors", "log", "settings", "target"),
    ("spec",),
    ("ops",),
    ("trace",),
    ("passes",),
    ("compile",),
    ("weights",),
    ("text",),
    ("engine",),
    ("runtime",),
    ("serve",),
    ("cli",),
    ("__main__",),
)
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}

# What a spec file may use besides ftc.spec, and what the shared tables beside them may.
# what families share, besides the vocabulary: the modules of models/ whose names begin with an underscore
TABLES = tuple(f"ftc_models.{p.stem}" for p in python("models") if p.stem.startswith("_") and p.stem != "__init__")
SPEC_MAY = ("__future__", "ftc.spec", *TABLES)
TABLES_MAY = (*SPEC_MAY, "collections.abc", "ftc.errors", "functools", "math", "typing")

# Parts that must start fast, or that must never see a tensor.
WITHOUT_TORCH = (
    "ftc.errors",
    "ftc.log",
    "ftc.settings",
    "ftc.spec",
    "ftc.text",
    "ftc.engine",
    "ftc.serve",
    "ftc.cli.main",
)


def wrong_imports(tree: ast.Module, module: str, is_package: bool = False) -> list[tuple[int, str]]:
    """(line, imported) of each import in an ftc module that points to the right of its own layer."""
    layer = module.split(".")[1] if "." in module else ""
    wrong = []
    for line, name in imports(tree, module, is_package):
        top, _, rest = name.partition(".")
        part = rest.split(".")[0]
        if top in ("tests", "tools", "native", "models"):
            wrong.append((line, name))
        elif top == "ftc" and part in RANK and RANK[part] > RANK.get(layer, -1):
            wrong.append((line, name))
        elif top == "ftc_models" and layer != "spec":
            wrong.append((line, name))
    return wrong


def inside(name: str, allowed: tuple[str, ...]) -> bool:
    return any(name == a or name.startswith(a + ".") for a in allowed)


def test_every_part_has_a_place_in_the_order():
    parts = {module_name(path).split(".")[1] for path in python("ftc") if path.parent != ROOT / "ftc"}
    parts |= {path.stem for path in python("ftc") if path.parent == ROOT / "ftc" and path.stem != "__init__"}
    report(
        [
            f"ftc/{part} has no place in ORDER of {at(ROOT / 'tests/rules/test_imports.py')}"
            for part in parts - RANK.keys()
        ]
    )


def test_imports_point_left():
    report(
        [
            f"{at(path, line)}: {module_name(path)} must not import {name}"
            for path in python("ftc")
            for line, name in wrong_imports(parse(path), module_name(path), path.stem == "__init__")
        ]
    )


def test_specs_import_only_their_vocabulary():
    problems = []
    for path in python("models"):
        allowed = TABLES_MAY if path.stem.startswith("_") else SPEC_MAY
        for line, name in imports(parse(path), module_name(path), path.stem == "__init__"):
            if not inside(name, allowed):
                problems.append(f"{at(path, line)}: a spec file must not import {name}")
    report(problems)


def test_spec_imports_no_torch_anywhere():
    report(
        [
            f"{at(path, line)}: the vocabulary must not import {name}"
            for path in [*python("ftc/spec"), *python("models")]
            for line, name in imports(parse(path), module_name(path), path.stem == "__init__")
            if name.split(".")[0] in ("torch", "triton", "numpy", "transformers")
        ]
    )


@pytest.mark.parametrize("part", WITHOUT_TORCH)
def test_starts_without_torch(part: str):
    path = ROOT / part.replace(".", "/")
    if path.with_suffix(".py").exists():
        names = [part]
    else:
        names = [module_name(p) for p in python(part.replace(".", "/"))]
    assert names, f"{part} does not exist"
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\n"
    code += "print([name for name in ('torch', 'triton') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code, *names], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]", f"importing {part} loads {done.stdout.strip()}"


@pytest.mark.parametrize(
    ("module", "source", "expected"),
    [
        ("ftc.spec.rope", "import ftc.ops.rope", [(1, "ftc.ops.rope")]),
        ("ftc.spec.rope", "from ftc import ops", [(1, "ftc.ops")]),
        ("ftc.spec.rope", "from ..runtime import engine", [(1, "ftc.runtime.engine")]),
        ("ftc.text.stop", "def f():\n    from ftc.engine import messages", [(2, "ftc.engine.messages")]),
        ("ftc.log", "import importlib\nimportlib.import_module('ftc.cli.main')", [(2, "ftc.cli.main")]),
        ("ftc.ops.linear", "from tests.unit import x", [(1, "tests.unit.x")]),
        ("ftc.serve.app", "import ftc_models.demo", [(1, "ftc_models.demo")]),
        ("ftc.errors", "import ftc.spec.chat", [(1, "ftc.spec.chat")]),
        ("ftc.serve.app", "from ftc.text import stop\nfrom .sse import x\nimport torch, ftc.errors", []),
        ("ftc.log", "from ftc import settings", []),
    ],
)
def test_the_rule_itself(module: str, source: str, expected: list[tuple[int, str]]):
    assert wrong_imports(ast.parse(source), module) == expected
