"""One small model, compiled once: layers of attention + dense, and of attention + gated delta + experts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
import torch
from torch import fx

from ftc.compile import inductor
from ftc.trace.inputs import Shape
from tests import odd
from tests.rig import Rig

SHAPES = (Shape(2, 2), Shape(16, 1))
CHANGES: dict[str, Any] = dict(streams=1, index_top_k=0)


class Written(msgspec.Struct, frozen=True):
    """What the compiler made of one region: its graph and the wrapper code."""

    graph: fx.GraphModule
    code: str


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Number of layers -> checkpoint folder."""
    made: dict[int, Path] = {}

    def folder(layers: int) -> Path:
        if layers not in made:
            made[layers] = tmp_path_factory.mktemp(f"layers{layers}")
            odd.write(made[layers], layers=layers, **CHANGES)
        return made[layers]

    return folder


def open_rig(folder: Path, **options: Any) -> Rig:
    return Rig(folder, torch.float32, spec=odd.SPEC, **{"shapes": SHAPES, "context": 128, "sequences": 4, **options})


@pytest.fixture(scope="session")
def made(folder_of: Callable[[int], Path]) -> Iterator[tuple[Rig, list[Written]]]:
    """The compiled rig of 4 layers, and all that was compiled for it."""
    from torch._inductor.graph import GraphLowering

    found: list[Written] = []
    codes: list[str] = []
    compile_graph = inductor.compile_graph

    def keep(graph: fx.GraphModule, *rest: Any) -> None:
        codes.clear()
        compile_graph(graph, *rest)
        found.append(Written(graph, codes[-1]))

    with mock.patch.object(GraphLowering, "save_output_code", codes.append):
        with mock.patch.object(inductor, "compile_graph", keep):
            rig = open_rig(folder_of(4), compiled=True)
    yield rig, found


@pytest.fixture(scope="session")
def compiled(made: tuple[Rig, list[Written]]) -> Rig:
    return made[0]


@pytest.fixture(scope="session")
def uncompiled(folder_of: Callable[[int], Path]) -> Rig:
    return open_rig(folder_of(4))
