"""What this machine is, read from the system: processors, memory, limits of the container, GPUs."""

from __future__ import annotations

import contextlib
import math
import os
import platform
from pathlib import Path

import msgspec

CGROUP = Path("/sys/fs/cgroup")


class Gpu(msgspec.Struct, frozen=True):
    """One NVIDIA GPU; `capability` is its compute capability, (9, 0) for sm_90."""

    name: str
    memory_bytes: int
    capability: tuple[int, int]
    driver: str


def system() -> str:
    """`Linux 6.1.0 x86_64, WSL2`."""
    release = platform.release()
    return f"{platform.system()} {release} {platform.machine()}" + (", WSL2" if "microsoft" in release.lower() else "")


def processor() -> str:
    """The processor's own name, "" where the system does not tell."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("model name", "Model")):
                return line.split(":", 1)[1].strip()
    return ""


def cpu_quota(folder: Path = CGROUP) -> float:
    """CPUs' worth of time that the control group mounted here gives; infinite where it sets no limit."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = (folder / "cpu.max").read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError):
        quota, period = ((folder / "cpu" / f"cpu.cfs_{n}_us").read_text() for n in ("quota", "period"))
        return math.inf if int(quota) <= 0 else int(quota) / int(period)
    return math.inf


def memory_left(folder: Path = CGROUP) -> float:
    """Bytes up to the memory limit of the control group mounted here; infinite where it sets none."""
    for limit, used in (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")):
        with contextlib.suppress(OSError, ValueError):
            most, now = (folder / limit).read_text().strip(), int((folder / used).read_text())
            # version 1 says "no limit" with a number near 2^63
            return math.inf if most == "max" or int(most) >= 1 << 60 else max(0, int(most) - now)
    return math.inf


def huge_pages() -> str:
    """The chosen word of the system's transparent huge pages: always, madvise or never; "" where it has none."""
    with contextlib.suppress(OSError):
        text = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
        return text.partition("[")[2].partition("]")[0]
    return ""


def gpus() -> list[Gpu] | None:
    """The GPUs that the driver shows; None where there is a driver and nothing to ask it with."""
    try:
        import pynvml  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return None if has_nvidia_driver() else []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None if has_nvidia_driver() else []
    try:
        found = []
        for i in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(i)
            name, driver = (_text(t) for t in (pynvml.nvmlDeviceGetName(handle), pynvml.nvmlSystemGetDriverVersion()))
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle).total
            found.append(Gpu(name, memory, tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle)), driver))
        return found
    finally:
        pynvml.nvmlShutdown()


def has_nvidia_driver() -> bool:
    """Whether a driver is loaded, or, under WSL2, given by the host."""
    return any(Path(p).exists() for p in ("/proc/driver/nvidia/version", "/usr/lib/wsl/lib/libcuda.so.1"))


def load() -> float:
    """Processes that wanted a CPU, mean of the last minute."""
    return os.getloadavg()[0]


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
