"""A plain build of the package holds everything it needs, and a machine without a C++ compiler gets one sentence."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.rules.tree import IGNORED_NAMES, ROOT, at, python, read


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """(wheel, build output) of a copy of the tree, on a machine without a compiler: that needs seconds."""
    folder = tmp_path_factory.mktemp("packaging")
    ignore = shutil.ignore_patterns(*IGNORED_NAMES, "_native*", "*.egg-info")
    shutil.copytree(ROOT, folder / "tree", ignore=ignore)
    code = f"from setuptools import build_meta; build_meta.build_wheel({str(folder)!r})"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=folder / "tree",
        env={**os.environ, "CXX": "no-such-compiler"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel, done.stdout + done.stderr


def test_without_a_compiler_there_is_one_sentence(built: tuple[Path, str]):
    _, output = built
    warnings = [line for line in output.splitlines() if line.startswith("warning: ftc ")]
    assert len(warnings) == 1 and "no C++ compiler was found" in warnings[0], output
    assert "Traceback" not in output


def test_wheel_serves_every_python_from_3_11(built: tuple[Path, str]):
    assert "-cp311-abi3-" in built[0].name


def test_wheel_holds_the_whole_package(built: tuple[Path, str]):
    held = set(zipfile.ZipFile(built[0]).namelist())
    wanted = {at(path) for path in python("ftc")} | {"ftc/py.typed"}
    wanted |= {at(path).replace("models/", "ftc_models/", 1) for path in python("models")}
    wanted |= {f"ftc_models/demo/{path.name}" for path in (ROOT / "models/demo").iterdir() if path.is_file()}
    assert wanted <= held, sorted(wanted - held)
    assert not [name for name in held if name.startswith(("tests/", "tools/", "models/"))]


def test_licences_travel_with_the_wheel(built: tuple[Path, str]):
    held = zipfile.ZipFile(built[0]).namelist()
    assert [name for name in held if name.endswith("licenses/LICENSE")]
    assert "ftc_models/demo/README.md" in held and "ftc_models/demo/recipe/README.md" in held


def test_every_dependency_is_pinned_in_the_tested_set():
    project = tomllib.loads(read(ROOT / "pyproject.toml"))["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    names = {word.split(";")[0].split(">")[0].strip().lower().replace("-", "_") for word in asked}
    lines = [line for line in read(ROOT / "constraints.txt").splitlines() if line and not line.startswith("#")]
    assert all(line.count("==") == 1 for line in lines)
    pinned = {line.split("==")[0].lower().replace("-", "_") for line in lines}
    assert names <= pinned, names - pinned
