"""The native library is really there where it can be, and shares torch's thread pool."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

from ftc.ops import native


def test_the_library_is_built_where_there_is_a_compiler():
    """Without this, a library that does not load would only skip the other tests."""
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        pytest.skip("no C++ compiler")
    assert native.available()


@pytest.mark.skipif(not native.available(), reason="no C++ compiler: the native library is not built")
def test_one_openmp_runtime_serves_torch_and_the_kernels():
    assert torch.get_num_threads() >= 1  # torch is loaded, and its OpenMP with it
    native.linear(torch.randn(1, 512), torch.randn(1024, 512))
    lines = Path("/proc/self/maps").read_text().splitlines()
    loaded = {line.split()[-1] for line in lines if "libgomp" in line or "libiomp" in line}
    assert len(loaded) == 1, f"several OpenMP runtimes are loaded: {loaded}"


@pytest.mark.skipif(not native.available(), reason="no C++ compiler: the native library is not built")
def test_threads_follow_the_affinity_mask():
    before = native.threads()
    assert 1 <= before <= (os.cpu_count() or 1)
    native.set_threads(0)
    assert native.threads() == 1
    native.set_threads(before)
