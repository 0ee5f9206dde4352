"""Which tensors a folder of safetensors holds and where their bytes lie, read from the headers alone."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from ftc.errors import CheckpointError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

# The format's own limit; a larger number is a sign that the first 8 bytes are no header length.
MAX_HEADER_BYTES = 100_000_000

# A packed type keeps two elements in a byte, so sizes are counted in bits.
DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16,
    "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64,
    "F4": 4,
}  # fmt: skip

LISTED = 10  # problems of one kind that are spelt out; the rest is counted

_AGAIN = "the file is incomplete; download it again"
_POINTER = b"version https://git-lfs"


class StoredTensor(msgspec.Struct, frozen=True):
    """One tensor as its shard's header gives it; `begin` counts bytes from the start of the file."""

    name: str
    file: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    size_bytes: int


class Checkpoint(msgspec.Struct, frozen=True):
    """The tensors of a folder by name.

    `problems` are faults of the files themselves; `lost` names tensors that only a faulty file would have
    described; `warnings` are sentences about what was accepted nevertheless.
    """

    folder: Path
    tensors: dict[str, StoredTensor]
    problems: tuple[CheckpointError, ...] = ()
    lost: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()


def open_checkpoint(folder: Path) -> Checkpoint:
    """Reads the index (where there is one) and every shard's header, never the tensors.

    Faults of single shards are gathered in `problems`; CheckpointError is raised where there is nothing to read at all.
    """
    if not folder.is_dir():
        raise CheckpointError("no such checkpoint folder", where=str(folder))
    index = _read_index(folder / INDEX) if (folder / INDEX).is_file() else None
    shards = sorted(set(index.values())) if index is not None else _shards(folder)
    tensors: dict[str, StoredTensor] = {}
    problems: list[CheckpointError] = []
    unread: set[str] = set()
    twice: list[StoredTensor] = []
    for shard in shards:
        try:
            found, faults = read_header(folder / shard)
        except CheckpointError as e:
            unread.add(shard)
            problems.append(e)
            continue
        problems += faults
        for name, tensor in found.items():
            if tensors.setdefault(name, tensor) is not tensor:
                twice.append(tensor)
    problems += capped(
        CheckpointError(f"the tensor is in {tensors[t.name].file} too", where=f"{folder / t.file}: {t.name}") for t in twice
    )
    lost: set[str] = set()
    warnings: list[str] = []
    if index is not None:
        lost = {name for name, shard in index.items() if shard in unread}
        strays = [n for n, s in index.items() if s not in unread and (n not in tensors or tensors[n].file != s)]
        problems += capped(
            CheckpointError(f"{index[n]} does not hold this tensor, as the index says", where=f"{INDEX}: {n}") for n in strays
        )
        lost.update(n for n in strays if n not in tensors)
        unlisted = [n for n in tensors if n not in index]
        if unlisted:
            more = f" and {len(unlisted) - LISTED} more" if len(unlisted) > LISTED else ""
            listed = ", ".join(unlisted[:LISTED]) + more
            warnings.append(f"{INDEX} does not list {listed}; read from the shards' own headers.")
    return Checkpoint(folder, tensors, tuple(problems), frozenset(lost), tuple(warnings))


def capped(problems: Iterable[CheckpointError]) -> list[CheckpointError]:
    """The first LISTED problems of one kind, and one more that counts the rest."""
    own = list(problems)
    if len(own) <= LISTED:
        return own
    return [*own[:LISTED], CheckpointError(f"... and {len(own) - LISTED} more of this kind")]


def read_header(path: Path) -> tuple[dict[str, StoredTensor], list[CheckpointError]]:
    """The tensors of one safetensors file, and what is wrong with single ones or with the file's length.

    Raises CheckpointError naming the file where the header itself cannot be read.
    """
    where = str(path)
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            lead = file.read(8)
            if lead + file.read(len(_POINTER) - 8) == _POINTER:
                what = "this is the pointer that a partial download left, not the file"
                raise CheckpointError(what, where=where, hint=_AGAIN)
            file.seek(8)
            length = int.from_bytes(lead, "little")
            if len(lead) < 8:
                what = f"the file ends before its header: expected size at least 8 bytes, actual size {size} bytes"
                raise CheckpointError(what, where=where, hint=_AGAIN)
            if length > MAX_HEADER_BYTES:
                raise CheckpointError(
                    f"the header would be longer than the {MAX_HEADER_BYTES} bytes the format allows",
                    where=where,
                    value=length,
                    hint="this is no safetensors file, or it is damaged; download it again",
                )
            if 8 + length > size:
                raise CheckpointError(
                    f"the header does not fit: expected size at least {8 + length} bytes, actual size {size} bytes",
                    where=where,
                    hint=_AGAIN,
                )
            text = file.read(length)
    except FileNotFoundError:
        raise CheckpointError("this shard is not in the folder", where=where, hint="download it again") from None
    except OSError as e:
        raise CheckpointError(f"the file cannot be read: {e.strerror}", where=where) from None
    return _parse(path, text, size)


def _parse(path: Path, text: bytes, size: int) -> tuple[dict[str, StoredTensor], list[CheckpointError]]:
    where, start = str(path), 8 + len(text)
    faults: list[CheckpointError] = []
    try:
        top = json.loads(text, object_pairs_hook=tuple)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as e:
        raise CheckpointError(f"the header is not JSON: {e}", where=where, hint=_AGAIN) from None
    if not isinstance(top, tuple):  # objects come as tuples of pairs, which shows names that repeat
        raise CheckpointError("the header is not a JSON object", where=where, hint=_AGAIN)
    found: dict[str, StoredTensor] = {}
    for name, fields in top:
        if name == "__metadata__":
            continue
        try:
            tensor = _tensor(path.name, name, dict(fields), start)
        except (KeyError, TypeError, ValueError) as e:
            faults.append(CheckpointError(f"the header describes this tensor wrongly: {e}", where=f"{where}: {name}"))
            continue
        if name in found:
            faults.append(CheckpointError("the header lists this tensor twice", where=f"{where}: {name}"))
        found[name] = tensor
    faults = capped(faults)
    end, last = start, ""
    overlaps = []
    for tensor in sorted(found.values(), key=lambda t: (t.begin, t.size_bytes)):
        if tensor.begin < end and tensor.size_bytes:
            overlaps.append(CheckpointError(f"its bytes overlap those of {last}", where=f"{where}: {tensor.name}"))
        if tensor.begin + tensor.size_bytes > end:
            end, last = tensor.begin + tensor.size_bytes, tensor.name
    faults += capped(overlaps)
    if end != size and not faults:
        kind, hint = ("truncated", _AGAIN) if size < end else ("longer than its header says", "download it again")
        what = f"the file is {kind}: expected size {end} bytes, actual size {size} bytes"
        faults.append(CheckpointError(what, where=where, hint=hint))
    return found, faults


def _tensor(file: str, name: str, fields: dict[str, Any], start: int) -> StoredTensor:
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if dtype not in DTYPE_BITS:
        raise ValueError(f"unknown dtype {dtype!r}")
    if not isinstance(shape, list) or any(type(n) is not int or n < 0 for n in shape):
        raise ValueError(f"shape {shape!r}")
    if not isinstance(offsets, list) or len(offsets) != 2 or any(type(n) is not int for n in offsets):
        raise ValueError(f"data_offsets {offsets!r}")
    first, last = offsets
    if not 0 <= first <= last:
        raise ValueError(f"data_offsets {offsets!r}")
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    if (last - first) * 8 != bits:
        raise ValueError(f"{dtype} of shape {shape} takes {bits // 8} bytes, its data_offsets span {last - first}")
    return StoredTensor(name, file, dtype, tuple(shape), start + first, last - first)


def _read_index(path: Path) -> dict[str, str]:
    try:
        values = json.loads(path.read_bytes())
    except (UnicodeDecodeError, json.JSONDecodeError) as e:
        raise CheckpointError(f"not valid JSON: {e}", where=str(path), hint=_AGAIN) from None
    places = values.get("weight_map") if isinstance(values, dict) else None
    if not isinstance(places, dict) or not all(isinstance(f, str) for f in places.values()):
        raise CheckpointError("the index has no weight_map from tensor to file name", where=str(path))
    outside = [f for f in places.values() if os.path.basename(f) != f or f in ("", ".", "..")]
    if outside:
        raise CheckpointError("the index names a file outside the folder", where=str(path), value=outside[0])
    return places


def _shards(folder: Path) -> list[str]:
    if (folder / SINGLE).is_file():
        return [SINGLE]
    found = sorted(f.name for f in folder.glob("*.safetensors"))
    if not found:
        held = sorted(f.name for f in folder.iterdir())
        raise CheckpointError(
            "no *.safetensors file in the checkpoint folder",
            where=str(folder),
            value=held[:LISTED],
            hint="weights are read from safetensors only",
        )
    return found
