"""Headers and indexes: what is read, and how each kind of damage is named."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from ftc.errors import CheckpointError
from ftc.weights.checkpoint import MAX_HEADER_BYTES, open_checkpoint, read_header
from tests.unit.weights.layout import file


def entry(first: int, last: int, dtype: str = "F32", shape: list[int] | None = None) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [(last - first) // 4] if shape is None else shape, "data_offsets": [first, last]}


TWICE = ", ".join(['"a": ' + json.dumps(entry(0, 4))] * 2).join("{}").encode()


def test_header_says_what_the_library_says(tmp_path: Path) -> None:
    tensors = {
        "a": torch.randn(3, 5),
        "b": torch.randn(7).bfloat16(),
        "scalar": torch.tensor(2.0).half(),
        "empty": torch.empty(0, 4),
        "i": torch.arange(6, dtype=torch.int32),
    }
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    found, faults = read_header(tmp_path / "x.safetensors")
    assert not faults
    raw = (tmp_path / "x.safetensors").read_bytes()
    with safe_open(tmp_path / "x.safetensors", "pt") as library:
        assert set(found) == set(library.keys())
        for name in library.keys():
            part, t = library.get_slice(name), found[name]
            assert (t.dtype, list(t.shape)) == (part.get_dtype(), part.get_shape())
            own = tensors[name].contiguous().flatten().view(torch.uint8).numpy().tobytes() if t.size_bytes else b""
            assert raw[t.begin : t.begin + t.size_bytes] == own


@pytest.mark.parametrize(
    ("header", "body", "words"),
    [
        (b"", b"", ["header is not JSON"]),
        (b"[]", b"", ["not a JSON object"]),
        (b"[[1, 2]]", b"", ["not a JSON object"]),
        (b'{"a": 1', b"", ["header is not JSON"]),
        (b"\xff\xfe", b"", ["header is not JSON"]),
        (b"[" * 200_000, b"", ["header is not JSON"]),
        ({"a": 1}, b"", ["x.safetensors: a", "wrongly"]),
        ({"a": {"dtype": "F32", "shape": [1]}}, b"0000", ["x.safetensors: a", "data_offsets"]),
        ({"a": entry(0, 4, "F31")}, b"0000", ["a", "unknown dtype 'F31'"]),
        ({"a": entry(0, 4, shape=[-1])}, b"0000", ["a", "shape [-1]"]),
        ({"a": entry(0, 4, shape=[True])}, b"0000", ["a", "shape [True]"]),
        ({"a": entry(4, 0, shape=[1])}, b"0000", ["a", "data_offsets [4, 0]"]),
        ({"a": entry(-4, 0, shape=[1])}, b"0000", ["a", "data_offsets [-4, 0]"]),
        ({"a": entry(0, 8, shape=[1])}, b"0" * 8, ["a", "[1] takes 4 bytes", "span 8"]),
        ({"a": entry(0, 4, shape=[1 << 40, 1 << 40])}, b"0000", ["a", "span 4"]),
        ({"a": entry(0, 8), "b": entry(4, 12)}, b"0" * 12, ["x.safetensors: b", "overlap those of a"]),
        ({"a": entry(0, 8), "b": entry(0, 8)}, b"0" * 8, ["overlap"]),
        (TWICE, b"0000", ["x.safetensors: a", "twice"]),
        ({"a": entry(0, 8)}, b"0" * 7, ["truncated", "expected size", "actual size"]),
        ({"a": entry(0, 8)}, b"0" * 9, ["longer than its header says", "expected size", "actual size"]),
    ],
)  # fmt: skip
def test_broken_headers_are_named(tmp_path: Path, header: object, body: bytes, words: list[str]) -> None:
    file(tmp_path / "x.safetensors", header, body)
    checkpoint = open_checkpoint(tmp_path)
    assert len(checkpoint.problems) == 1
    for word in ["x.safetensors", *words]:
        assert word in str(checkpoint.problems[0])


def test_sizes_in_the_message_are_exact(tmp_path: Path) -> None:
    header = json.dumps({"a": entry(0, 8)}).encode()
    file(tmp_path / "x.safetensors", header, b"0" * 5)
    (problem,) = open_checkpoint(tmp_path).problems
    assert f"expected size {8 + len(header) + 8} bytes, actual size {8 + len(header) + 5} bytes" in str(problem)


@pytest.mark.parametrize("length", [MAX_HEADER_BYTES + 1, (1 << 64) - 1, 100])
def test_header_length_out_of_reach(tmp_path: Path, length: int) -> None:
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", length) + b"{}")
    (problem,) = open_checkpoint(tmp_path).problems
    assert "x.safetensors" in str(problem)
    assert str(length if length > MAX_HEADER_BYTES else 108) in str(problem)


def test_many_faults_are_counted_not_listed(tmp_path: Path) -> None:
    file(tmp_path / "x.safetensors", {f"t{k}": 1 for k in range(50)}, b"")
    problems = open_checkpoint(tmp_path).problems
    assert len(problems) == 11 and "40 more" in str(problems[-1])


def test_folders_with_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such checkpoint folder"):
        open_checkpoint(tmp_path / "missing")
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(CheckpointError, match="pytorch_model.bin") as e:
        open_checkpoint(tmp_path)
    assert "safetensors only" in str(e.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not valid JSON"),
        ("[]", "no weight_map"),
        ('{"weight_map": {"a": 1}}', "no weight_map"),
        ('{"weight_map": {"a": "../x.safetensors"}}', "outside the folder"),
        ('{"weight_map": {"a": "/etc/passwd"}}', "outside the folder"),
    ],
)
def test_broken_indexes_are_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match=words) as e:
        open_checkpoint(tmp_path)
    assert "model.safetensors.index.json" in str(e.value)


def index(folder: Path, **places: str) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def test_index_that_names_a_missing_shard(tmp_path: Path) -> None:
    file(tmp_path / "one.safetensors", {"a": entry(0, 4)}, b"0000")
    index(tmp_path, a="one.safetensors", b="two.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    assert [p.where for p in checkpoint.problems] == [str(tmp_path / "two.safetensors")]
    assert checkpoint.lost == {"b"} and set(checkpoint.tensors) == {"a"}


def test_index_that_names_a_tensor_the_shard_lacks(tmp_path: Path) -> None:
    file(tmp_path / "one.safetensors", {"a": entry(0, 4)}, b"0000")
    index(tmp_path, a="one.safetensors", b="one.safetensors")
    (problem,) = open_checkpoint(tmp_path).problems
    assert "one.safetensors does not hold this tensor" in str(problem) and ": b" in str(problem)


def test_tensor_in_two_shards(tmp_path: Path) -> None:
    file(tmp_path / "one.safetensors", {"a": entry(0, 4)}, b"0000")
    file(tmp_path / "two.safetensors", {"a": entry(0, 4), "b": entry(4, 8)}, b"00000000")
    (problem,) = open_checkpoint(tmp_path).problems
    assert "two.safetensors: a" in str(problem) and "one.safetensors" in str(problem)


def test_only_indexed_shards_are_read_and_single_files_go_first(tmp_path: Path) -> None:
    file(tmp_path / "model.safetensors", {"a": entry(0, 4)}, b"0000")
    file(tmp_path / "other.safetensors", {"a": entry(0, 4)}, b"0000")
    assert {t.file for t in open_checkpoint(tmp_path).tensors.values()} == {"model.safetensors"}
    index(tmp_path, a="other.safetensors")
    assert {t.file for t in open_checkpoint(tmp_path).tensors.values()} == {"other.safetensors"}
