"""Padding rows hold anything: no op lets them into a live row or a pool, neither as reference nor as native kernel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ftc.ops import native
from ftc.ops.op import prefer
from tests import odd
from tests.padding import check_padding
from tests.rig import Rig


@pytest.fixture(scope="module", params=[dict(), dict(streams=1, index_top_k=0)], ids=["odd", "plain"])
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Rig:
    folder: Path = tmp_path_factory.mktemp("padding")
    odd.write(folder, layers=2, **request.param)
    return Rig(folder, torch.float32, spec=odd.SPEC, sequences=4, context=128)


@pytest.fixture(params=["reference", "native"])
def kernels(request: pytest.FixtureRequest, rig: Rig) -> Iterator[str]:
    if request.param == "native" and not native.available():
        pytest.skip("no C++ compiler: the native library is not built")
    prefer(request.param)
    yield request.param
    prefer("native")


def test_padding_changes_nothing(rig: Rig, kernels: str) -> None:
    check_padding(rig)
