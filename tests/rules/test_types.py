"""The types under ftc/ hold together, checked with the settings of pyproject.toml."""

from __future__ import annotations

import subprocess
import sys

from tests.rules.tree import ROOT


def test_mypy():
    # Incremental: the first run reads everything, later ones only what changed.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
