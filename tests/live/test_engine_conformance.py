"""The real engine on the embedded model keeps the contract that every engine keeps."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.unit.engine.conformance import Conformance


class TestRealEngine(Conformance):
    @pytest.fixture(scope="class")
    @classmethod
    def engine_command(cls, demo: Path) -> list[str]:
        return [sys.executable, "-m", "ftc.runtime", "--model", str(demo), "--max-running", "4", "--max-queued", "8"]
