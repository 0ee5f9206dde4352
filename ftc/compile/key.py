"""Keys of artefacts: every factor by name, so that a miss can say which one differed."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import ftc
from ftc.target import Target, versions

Factors = Mapping[str, str]


def key_of(factors: Factors) -> str:
    """24 hex digits over all factors."""
    return hashlib.sha256(json.dumps(dict(factors), sort_keys=True).encode()).hexdigest()[:24]


@cache
def sources(*packages: str) -> str:
    """Hash of the sources of ftc sub-packages: what they would do to the same input."""
    root, digest = Path(ftc.__file__).parent, hashlib.sha256()
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def logical(spec: str, shape: str, dtype: str) -> dict[str, str]:
    """What a trace depends on."""
    return {"spec": spec, "shape": shape, "dtype": dtype, "trace sources": sources("spec", "ops", "trace")}


def lowered(logical_key: str, target: Target, plan: str, passes: tuple[str, ...], tuning: Factors) -> dict[str, str]:
    """What passes depend on."""
    return {
        "logical": logical_key,
        "target": target.kind,
        "kernels": ",".join(target.kernels),
        "plan": plan,
        "passes": ",".join(passes),
        "pass sources": sources("passes"),
        "tuning": key_of(tuning),
    }


def compiled(graph: str, target: Target) -> dict[str, str]:
    """What compiled code depends on, besides the graph."""
    return {
        "graph": graph,
        **versions(),
        "compiler": cxx_version(),
        "isa": target.isa,
        "threads": str(target.threads),
        "compile sources": sources("compile"),
    }


@cache
def cxx_version() -> str:
    """First line of the C++ compiler's version, "none" without one."""
    path = shutil.which("g++") or shutil.which("c++")
    if path is None:
        return "none"
    return subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout.splitlines()[0]
