"""Rigs shared by the oracle tests: opening a model and compiling its programs happens once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.rig import Rig


@pytest.fixture(scope="session")
def demo_rig(demo: Path) -> Callable[[str, bool], Rig]:
    """(dtype, compiled) -> the embedded model."""
    made: dict[tuple[str, bool], Rig] = {}

    def rig(dtype: str, compiled: bool) -> Rig:
        if (dtype, compiled) not in made:
            made[dtype, compiled] = Rig(demo, getattr(torch, dtype), compiled=compiled)
        return made[dtype, compiled]

    return rig
