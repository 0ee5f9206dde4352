"""Writes the checkpoint folder that a load case of tests/data/cases describes, damage included."""

from __future__ import annotations

import json
import math
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

CASES = Path(__file__).resolve().parents[2] / "data" / "cases"

_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8, "I32": 4, "U8": 1, "F8_E4M3": 1}
_NUMPY = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "I32": "<i4"}


def case(number: str) -> dict[str, Any]:
    """The one case file whose name begins with `number`, such as "c107"."""
    (path,) = CASES.glob(f"{number}-*.json")
    return json.loads(path.read_text(encoding="utf-8"))


def values(name: str, dtype: str, shape: list[int]) -> bytes:
    """The bytes of one tensor: normal values that depend on its name only, ones for norms."""
    count = math.prod(shape)
    random = np.random.default_rng(zlib.crc32(name.encode()))
    if dtype in ("U8", "F8_E4M3"):
        return random.integers(0, 0x77, count, dtype=np.uint8).tobytes()
    x = np.ones(count, np.float32) if name.endswith("norm.weight") else random.normal(0, 0.02, count).astype(np.float32)
    if dtype == "BF16":
        bits = x.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
    return x.astype(_NUMPY[dtype]).tobytes()


def shard(path: Path, tensors: list[dict[str, Any]]) -> None:
    """One safetensors file; `bytes` of a tensor, where given, are used as they are."""
    header: dict[str, Any] = {}
    body, at = [], 0
    for t in tensors:
        raw = t.get("bytes") or values(t["name"], t["dtype"], t["shape"])
        header[t["name"]] = {"dtype": t["dtype"], "shape": t["shape"], "data_offsets": [at, at + len(raw)]}
        body.append(raw)
        at += len(raw)
    file(path, header, b"".join(body))


def file(path: Path, header: object, body: bytes) -> None:
    """A safetensors file of any header, right or wrong."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def write(given: dict[str, Any], folder: Path, damage: list[dict[str, Any]] | None = None) -> Path:
    """Writes config, index and shards of `given` (a case's input, or one of its variants), then does the damage."""
    folder.mkdir(parents=True, exist_ok=True)
    over = {o["name"]: o for o in given.get("override", [])}
    tensors = [{**t, **over.get(t["name"], {})} for t in given["tensors"]]
    by_shard: dict[str, list[dict[str, Any]]] = {}
    for t in tensors:
        by_shard.setdefault(t["shard"], []).append(t)
    for name, own in by_shard.items():
        shard(folder / name, own)
    dropped = given.get("index_drop", [])
    places = {t["name"]: t["shard"] for t in tensors if t["name"] not in dropped}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (folder / "config.json").write_text(json.dumps(given["config.json"]))
    for op in given.get("corrupt", []) if damage is None else damage:
        _damage(folder / op["file"], op)
    return folder


def _damage(path: Path, op: dict[str, Any]) -> None:
    match op["op"]:
        case "truncate":
            os.truncate(path, path.stat().st_size - op["bytes"])
        case "append":
            path.write_bytes(path.read_bytes() + bytes.fromhex(op["hex"]))
        case "replace":
            path.write_text(op["text"])
        case "set_u64" | "overwrite":
            new = struct.pack("<Q", op["value"]) if op["op"] == "set_u64" else op["text"].encode()
            raw = path.read_bytes()
            path.write_bytes(raw[: op["at"]] + new + raw[op["at"] + len(new) :])
        case other:
            raise ValueError(f"unknown damage {other!r}")
