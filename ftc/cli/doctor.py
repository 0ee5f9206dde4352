"""`ftc doctor`: what this machine is and what is missing, one line a finding; serving is impossible where one says `fail`."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import os
import platform
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import click
import msgspec

from ftc import settings
from ftc.cli import machine
from ftc.errors import FtcError

Mark = Literal["ok", "warn", "fail"]
COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}

PORT = 8000
# Below this the embedded model, its caches and Python itself (0.7 GB resident) do not fit.
LEAST_BYTES = 1 << 30
MEASURED_BYTES, MEASURED_S = 256 << 20, 1.0
LEAST_CAPABILITY = (8, 0)


class Finding(msgspec.Struct, frozen=True):
    """One line. `fail`: nothing can be served before it is put right; `warn`: slower, or something does not work."""

    name: str
    mark: Mark
    text: str
    hint: str = ""
    value: float | None = None


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(as_json: bool) -> None:
    """Say what machine this is and what is missing. Exit code 1 where a model cannot be served at all."""
    found = []
    for finding in examine():
        found.append(finding)
        if not as_json:
            mark = click.style(f"{finding.mark:<5}", fg=COLOURS[finding.mark], bold=finding.mark != "ok")
            click.echo(f"{mark} {finding.name:<15} {finding.text}" + (f"; {finding.hint}" if finding.hint else ""))
    can_serve = all(f.mark != "fail" for f in found)
    if as_json:
        click.echo(json.dumps({"can_serve": can_serve, "findings": [msgspec.to_builtins(f) for f in found]}, indent=1))
    sys.exit(0 if can_serve else 1)


def examine() -> Iterator[Finding]:
    """Every finding, in order. A check that breaks is a finding itself."""
    checks: tuple[Callable[[], Finding | list[Finding]], ...] = (
        system, python, packages, native_kernels, compiler, cpus, memory, huge_pages, bandwidth, gpu, artefacts, port, embedded
    )  # fmt: skip
    for check in checks:
        try:
            result = check()
        except Exception as error:
            result = Finding(check.__name__, "warn", f"could not be looked at: {type(error).__name__}: {error}")
        yield from result if isinstance(result, list) else [result]


def system() -> Finding:
    name = machine.processor()
    text = machine.system() + (f", {name}" if name else "")
    if platform.system() != "Linux":
        return Finding("system", "fail", text, "ftc runs on Linux and WSL2")
    return Finding("system", "ok", text)


def python() -> Finding:
    least = importlib.metadata.metadata("ftc")["Requires-Python"]
    version = platform.python_version()
    return Finding("python", "ok" if reaches(version, least) else "fail", f"{version} (wanted: {least})")


def packages() -> list[Finding]:
    """torch and triton by name, the other requirements in one line."""
    found, others, lacking = [], 0, []
    for requirement in importlib.metadata.requires("ftc") or []:
        spec, _, marker = requirement.partition(";")
        match = re.match(r"([\w.-]+)\s*(.*)", spec.strip())
        if match is None or "extra" in marker:
            continue
        name, wanted = match[1], match[2].strip()
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = ""
        is_good = bool(version) and reaches(version, wanted)
        asked = f" (wanted: {wanted})" if wanted else ""
        if name == "triton":
            text = version or "not installed"
            found.append(Finding(name, "ok" if version else "warn", text, "" if version else "kernels for a GPU need it"))
        elif name == "torch":
            hint = "" if is_good else "install ftc again with its constraints.txt"
            found.append(Finding(name, "ok" if is_good else "fail", (version or "not installed") + asked, hint))
        else:
            others += 1
            lacking += [] if is_good else [f"{name} {version or 'is missing'}{asked}"]
    text = ", ".join(lacking) or f"the {others} other packages are there"
    return [*found, Finding("packages", "fail" if lacking else "ok", text, "install ftc again" if lacking else "")]


def native_kernels() -> Finding:
    from ftc.ops import native
    from ftc.target import isa

    if not native.available():
        return Finding("native", "warn", "the CPU kernels are not built: everything runs, many times slower",
                       "install a C++ compiler (g++ or clang++) and install ftc again")  # fmt: skip
    if isa() == "scalar":
        return Finding("native", "warn", f"built, using {native.isa()}", "this processor has no AVX2: expect little speed")
    return Finding("native", "ok", f"built, using {native.isa()}")


def compiler() -> Finding:
    from ftc.compile.key import cxx_version

    version = cxx_version()
    if version == "none":
        return Finding("compiler", "warn", "no C++ compiler: layers run uncompiled", "install g++")
    return Finding("compiler", "ok", version)


def cpus() -> Finding:
    allowed, there, quota = len(os.sched_getaffinity(0)), os.cpu_count() or 1, machine.cpu_quota()
    try:
        threads = settings.threads()
    except FtcError as error:
        return Finding("cpus", "fail", error.message, error.hint or "")
    limit = "" if quota == math.inf else f", {quota:g} by the container's limit"
    text = f"{threads} thread{'s' * (threads > 1)} of {allowed} CPUs allowed, {there} there{limit}"
    if threads > min(allowed, max(1.0, quota)):
        return Finding("cpus", "warn", text, f"set {settings.THREADS.name} lower: waiting threads hold up the others")
    if machine.load() > allowed + 1:
        return Finding("cpus", "warn", f"{text}, load {machine.load():.1f}", "other programs want the CPUs too", threads)
    return Finding("cpus", "ok", text, value=threads)


def memory() -> Finding:
    import psutil

    now, left = psutil.virtual_memory(), machine.memory_left()
    free = int(min(now.available, left))
    limit = "" if left == math.inf else f", the container may take {size(left)} more"
    text = f"{size(free)} free of {size(now.total)}{limit}"
    if free < LEAST_BYTES:
        return Finding("memory", "fail", text, f"less than {size(LEAST_BYTES)} holds no model", free)
    return Finding("memory", "ok", text, value=free)


def huge_pages() -> Finding:
    word = machine.huge_pages()
    if word in ("always", "madvise"):
        return Finding("huge pages", "ok", word)
    return Finding("huge pages", "warn", word or "none", "weights are read faster with transparent huge pages on `madvise`")


def bandwidth() -> Finding:
    from ftc.ops import native

    if not native.available():
        return Finding("bandwidth", "warn", "not measured: the CPU kernels are not built")
    native.set_threads(settings.threads())
    rate = native.read_bandwidth(MEASURED_BYTES, MEASURED_S)
    text = f"{rate / 1e9:.1f} GB/s read from memory by {settings.threads()} threads"
    return Finding("bandwidth", "ok", text, value=rate)


def gpu() -> Finding | list[Finding]:
    found = machine.gpus()
    if found is None:
        return Finding("gpu", "warn", "an NVIDIA driver is there, and no answer from it", "install the package nvidia-ml-py")
    if not found:
        return Finding("gpu", "ok", "none: everything runs on the CPU")
    return [
        Finding(
            "gpu",
            "ok" if g.capability >= LEAST_CAPABILITY else "warn",
            f"{g.name}, {size(g.memory_bytes)}, sm_{g.capability[0]}{g.capability[1]}, driver {g.driver}",
            "" if g.capability >= LEAST_CAPABILITY else "too old: sm_80 and newer",
            g.memory_bytes,
        )
        for g in found
    ]


def artefacts() -> Finding:
    place = settings.cache_dir()
    held = folder_bytes(place)
    above = next(p for p in (place, *place.parents) if p.exists())
    try:
        with tempfile.TemporaryFile(dir=above):
            pass
    except OSError as error:
        mark: Mark = "warn" if place.is_dir() else "fail"
        return Finding("artefacts", mark, f"{place} cannot be written: {error.strerror}", f"set {settings.CACHE.name}", held)
    free = shutil.disk_usage(above).free
    text = f"{place}, {size(held)} held, {size(free)} free on its disk"
    if free < 1 << 30:
        return Finding("artefacts", "warn", text, "compiled programs of one model take some 100 MB", held)
    return Finding("artefacts", "ok", text, value=held)


def port() -> Finding:
    reason = _refused(PORT)
    if not reason:
        return Finding("port", "ok", f"127.0.0.1:{PORT} is free")
    if reason := _refused(0):
        return Finding("port", "fail", f"no port can be opened on loopback: {reason}")
    return Finding("port", "warn", f"127.0.0.1:{PORT} is taken by another program", "serve with another --port")


def embedded() -> Finding:
    """Every file of the embedded model against the sums stored beside it."""
    from ftc.weights.hub import EMBEDDED, locate

    folder = locate(EMBEDDED)
    sums = [line.split("  ") for line in (folder / "SHA256SUMS").read_text(encoding="utf-8").splitlines()]
    bad = [name for wanted, name in sums if _sha256(folder / name) != wanted]
    if bad:
        return Finding("embedded model", "warn", f"damaged: {', '.join(bad)}", "install ftc again")
    return Finding("embedded model", "ok", f"{len(sums)} files as they were published")


def reaches(version: str, wanted: str) -> bool:
    """Whether `version` satisfies the lower bound of `wanted`, such as ">=2.11"; no bound is always reached."""
    match = re.search(r">=\s*([\d.]+)", wanted)
    return match is None or _numbers(version) >= _numbers(match[1])


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below; what goes away meanwhile does not count."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total


def size(count: float) -> str:
    """`1.5 GiB`, `20 MiB`, `3 KiB`."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 1 << power:
            return f"{count / (1 << power):.3g} {unit}" if count < 1000 << power else f"{count / (1 << power):.0f} {unit}"
    return f"{count:.0f} bytes"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version.partition("+")[0])[:3])


def _refused(number: int) -> str:
    """Why a port cannot be opened on loopback, "" where it can."""
    try:
        with socket.create_server(("127.0.0.1", number)):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
