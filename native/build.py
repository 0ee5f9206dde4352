"""Decides how the native library is compiled: one cffi extension, `ftc._native`, from the C ABI in ftc.h."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
# setuptools compiles from the project root and wants relative paths; the in-place build below compiles elsewhere.
FOLDER = str(HERE) if __name__ == "__main__" else os.path.relpath(HERE)
SOURCES = [
    "dispatch.cpp",
    "measure.cpp",
    "sample.cpp",
    "tape.cpp",
    "worker.cpp",
    "isa_scalar.cpp",
    "isa_avx2.cpp",
    "isa_avx512.cpp",
    "isa_avx512_bf16.cpp",
]
# No -march: the wheel stays portable, each isa_*.cpp raises its own target. No -ffast-math: NaN marks a fault.
FLAGS = [
    "-std=c++17",
    "-O3",
    "-fopenmp",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fvisibility=hidden",
    "-Wall",
    "-g0",  # the interpreter was built with -g, which makes the library 13 MB instead of 2
    # gcc 12 warns about its own AVX-512 headers otherwise
    "-Wno-uninitialized",
    "-Wno-maybe-uninitialized",
]


def declarations() -> str:
    """The ABI as cffi reads it: ftc.h without preprocessor lines and without the extern "C" braces."""
    text = (HERE / "ftc.h").read_text()
    return re.sub(r'^(#.*|extern "C" \{|\}.*)$', "", text, flags=re.MULTILINE)


ffi = FFI()
ffi.cdef(declarations())
ffi.set_source(
    "ftc._native",
    '#include "ftc.h"',
    sources=[os.path.join(FOLDER, name) for name in SOURCES],
    depends=sorted(os.path.join(FOLDER, path.name) for path in HERE.glob("*.h")),
    include_dirs=[FOLDER],
    source_extension=".cpp",
    extra_compile_args=FLAGS,
    # libgomp stays dynamic on purpose: torch brings the same soname, so both run on one thread pool.
    extra_link_args=["-fopenmp", "-static-libstdc++", "-static-libgcc"],
    py_limited_api=True,
)

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # away from pyproject.toml, whose package list is not meant for this build
        built = Path(ffi.compile(tmpdir=folder))
        target = HERE.parent / "ftc" / built.name
        partial = target.with_suffix(".partial")
        shutil.copy(built, partial)
        partial.replace(target)  # a process that has the old file loaded keeps it
    print(f"built {target}")
