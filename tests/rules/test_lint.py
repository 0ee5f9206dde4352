"""The code passes the linter with the rules of pyproject.toml."""

from __future__ import annotations

import subprocess
import sys

from tests.rules.tree import ROOT


def test_ruff():
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--output-format", "concise", "."],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
