"""This machine as data: what passes and artefact keys may know of it."""

from __future__ import annotations

import platform
import sys
from functools import cache
from pathlib import Path

import msgspec


class Target(msgspec.Struct, frozen=True):
    """`kind` is the lowering: "cpu", "sim" or "cuda". `kernels` are the kernel variants to prefer, best first.

    `isa` is the instruction set level native code runs at, `threads` the size of the one thread pool.
    """

    kind: str
    isa: str
    threads: int
    kernels: tuple[str, ...]


@cache
def cpu_flags() -> frozenset[str]:
    """Feature flags of the first processor, lower case; empty where the system does not tell."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("flags", "Features")):
                return frozenset(line.split(":", 1)[1].split())
    except OSError:
        pass
    return frozenset()


def isa() -> str:
    """The widest instruction set level native code has a path for here."""
    flags = cpu_flags()
    if platform.machine() not in ("x86_64", "AMD64"):
        return "scalar"
    if {"avx512f", "avx512bw", "avx512vl"} <= flags:
        return "avx512_bf16" if "avx512_bf16" in flags else "avx512"
    return "avx2" if {"avx2", "fma"} <= flags else "scalar"


def cpu_target(threads: int, native: bool) -> Target:
    """The machine without a GPU; `native` says whether the native library is there."""
    return Target("cpu", isa(), threads, ("native",) if native else ())


def sim_target(threads: int, native: bool) -> Target:
    """A GPU played by this machine: its lowering, with streams and slots in host memory."""
    return Target("sim", isa(), threads, ("native",) if native else ())


def cuda_target(capability: str, threads: int) -> Target:
    """A GPU such as "sm_90"; `threads` serve the CPU branch."""
    return Target("cuda", capability, threads, ("triton", "library"))


def versions() -> dict[str, str]:
    """What compiled code depends on, read without importing torch."""
    from importlib.metadata import PackageNotFoundError, version

    def of(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "none"

    return {
        "python": f"{sys.version_info.major}.{sys.version_info.minor}-{platform.machine()}",
        "torch": of("torch"),
        "triton": of("triton"),
    }
