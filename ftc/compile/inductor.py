"""The torch-private calls of the compiler, all of them: graph -> compiled region -> bytes on disk and back.

Importing this file imports Inductor (6 s), so only the compiling child and the loader of artefacts do.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch._inductor.config as inductor_config
from torch import Tensor, fx
from torch._inductor import CompiledArtifact, standalone_compile
from torch._inductor.codecache import PyCodeCache

from ftc.ops import native


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


class Compiled:
    """A loaded region. `module` is the generated Python module whose `call` runs it, where there is exactly one."""

    def __init__(self, artefact: Any, module: ModuleType | None) -> None:
        self._artefact, self.module = artefact, module

    def __call__(self, *tensors: Tensor) -> Sequence[Tensor]:
        return self._artefact(*tensors)


def load_compiled(path: Path) -> Compiled:
    """The region stored at `path`; raises RuntimeError or AssertionError where it belongs to another torch build."""
    before = len(PyCodeCache.modules)
    artefact: Any = CompiledArtifact.load(path=str(path), format="binary")
    new = PyCodeCache.modules[before:]
    return Compiled(artefact, new[0] if len(new) == 1 else None)


# What the body of a generated `call` may do for a recording to be the whole of it: allocate, reinterpret, run compiled
# kernels and native ops. Anything else (an aten fallback, an op in plain torch) would be missing from the tape.
_RECORDABLE = re.compile(
    r"\s*("
    r"|#.*|del .*|return .*|args\.clear\(\)|.* = args"
    r"|buf\d+ = (empty_strided_cpu|reinterpret_tensor)\(.*"
    r"|buf\d+ = buf\d+(\[\d+\])?(; .*)?"
    r"|buf\d+(; .*)?"
    r"|cpp_fused\w*\(.*"
    r"|buf\d+ = torch\.ops\.ftc\.\w+\.native\(.*"
    r")"
)


def recordable(region: Compiled) -> bool:
    """Whether a recording of the region's kernels would be all that it does."""
    if region.module is None or not hasattr(region.module, "call"):
        return False
    source = inspect.getsource(region.module.call)
    return all(_RECORDABLE.fullmatch(line) for line in source.splitlines()[1:])


@contextlib.contextmanager
def recorded(region: Compiled, tape: native.Tape) -> Iterator[None]:
    """While entered, running `region` also records its compiled kernels and keeps its buffers alive on `tape`."""
    names = vars(region.module)
    before = dict(names)
    for name, value in before.items():
        if name.startswith("cpp_fused"):
            names[name] = _recorded_kernel(value, tape)
    names["empty_strided_cpu"] = lambda *a: tape.keep(before["empty_strided_cpu"](*a))
    try:
        yield
    finally:
        names.update(before)


def _recorded_kernel(kernel: Any, tape: native.Tape) -> Callable[..., None]:
    library = ctypes.CDLL(kernel.__self__.__file__)
    address = ctypes.cast(library.kernel, ctypes.c_void_p).value
    assert address is not None

    def call(*tensors: Tensor) -> None:
        tape.add_kernel(address, [t.data_ptr() for t in tensors])
        kernel(*tensors)

    return call
