"""The torch-private calls of the compiler, all of them: graph -> compiled region -> bytes on disk and back.

Importing this file imports Inductor (6 s), so only the compiling child and the loader of artefacts do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config as inductor_config
from torch import Tensor, fx
from torch._inductor import CompiledArtifact, standalone_compile

Compiled = Callable[..., Sequence[Tensor]]


@contextlib.contextmanager
def settings(threads: int) -> Iterator[None]:
    """Inductor's options for regions: no size asserts (pools are passed on, not read), one thread pool of `threads`."""
    with inductor_config.patch(
        {
            "size_asserts": False,
            "nan_asserts": False,
            "alignment_asserts": False,
            "cpp.threads": threads,
            "cpp.weight_prepack": False,
            "freezing": False,
            "compile_threads": 1,
        }
    ):
        yield


def compile_graph(graph: fx.GraphModule, example: list[Tensor], threads: int, path: Path) -> None:
    """Compiles one region for the shapes of `example` and writes it to `path` (one file)."""
    with settings(threads), torch.no_grad():
        artefact = standalone_compile(graph, example, dynamic_shapes="from_example_inputs")
    artefact.save(path=str(path), format="binary")


def load_compiled(path: Path) -> Compiled:
    """The region stored at `path`; raises RuntimeError or AssertionError where it belongs to another torch build."""
    artefact: Any = CompiledArtifact.load(path=str(path), format="binary")

    def run(*tensors: Tensor) -> Sequence[Tensor]:
        return artefact(*tensors)

    return run
