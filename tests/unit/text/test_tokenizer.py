"""Ids and bytes agree with the tokenizers library and with the golden prompts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers

from ftc.errors import CheckpointError
from ftc.spec.chat import Chat, JsonInTags, Reasoning
from ftc.text.parser import mark_ids
from ftc.text.tokenizer import Tokenizer

DEMO = Path(__file__).parents[3] / "models" / "demo"
TOKENIZER = Tokenizer.load(DEMO)
REFERENCE = tokenizers.Tokenizer.from_file(str(DEMO / "tokenizer.json"))
CASES = json.loads((DEMO / "golden.json").read_text(encoding="utf-8"))["cases"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_golden_prompts_have_the_recorded_ids(case: dict) -> None:
    assert TOKENIZER.encode(case["prompt_text"]) == case["prompt_ids"]
    assert TOKENIZER.decode(case["output_ids"]) == case["output_text"]


@given(st.text())
def test_bytes_of_the_tokens_are_the_bytes_of_the_text(text: str) -> None:
    normal = REFERENCE.normalizer.normalize_str(text)
    ids = TOKENIZER.encode(text)
    assert ids == REFERENCE.encode(text, add_special_tokens=False).ids
    assert b"".join(TOKENIZER.token_bytes(id) for id in ids) == normal.encode()


def test_every_id_decodes_as_in_the_library() -> None:
    for id in range(TOKENIZER.size):
        reference = REFERENCE.decode([id], skip_special_tokens=False)
        assert TOKENIZER.token_bytes(id).decode("utf-8", "replace") == reference


def test_special_tokens_in_the_text_are_recognised_and_none_added() -> None:
    end = TOKENIZER.token_id("<|im_end|>")
    assert end == 8185 and TOKENIZER.encode("<|im_end|>") == [end]
    assert TOKENIZER.is_special(end) and not TOKENIZER.is_special(TOKENIZER.token_id("<think>") or 0)
    assert TOKENIZER.token_id("no such token") is None
    assert TOKENIZER.token_bytes(TOKENIZER.size) == b"" == TOKENIZER.token_bytes(-1)


def test_added_tokens_stand_for_their_own_text(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    backend.add_tokens(["é<x>", "Ġy"])
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    assert [tokenizer.token_bytes(id).decode() for id in tokenizer.encode("é<x>Ġy")] == ["é<x>", "Ġy"]
    assert tokenizer.hash != TOKENIZER.hash


def test_marks_of_the_dialect_have_ids() -> None:
    names = [TOKENIZER.token_id(t) for t in ("<think>", "</think>", "<tool_call>", "</tool_call>")]
    assert mark_ids(Chat(reasoning=Reasoning()), JsonInTags(), TOKENIZER.token_id) == set(names)
    assert mark_ids(Chat(), None, TOKENIZER.token_id) == set()


def byte_fallback(folder: Path, **changes: int) -> tokenizers.Tokenizer:
    vocabulary = {"<unk>": 0, "<s>": 1} | {f"<0x{byte:02X}>": 2 + byte for byte in range(256)}
    for token in ("▁", "a", "b", "▁a", "ab", "▁ab", "é"):
        vocabulary[token] = len(vocabulary)
    merges = [("▁", "a"), ("a", "b"), ("▁", "ab")]
    backend = tokenizers.Tokenizer(
        models.BPE(vocabulary | changes, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens(["<s>"])
    backend.save(str(folder / "tokenizer.json"))
    return backend


@given(text=st.text(alphabet="ab é你😀<>0x_\n"))
def test_byte_fallback_gives_exact_bytes(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.getbasetemp() / "fallback"
    if not folder.exists():
        folder.mkdir()
        byte_fallback(folder)
    tokenizer = Tokenizer.load(folder)
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))) == text.encode()
    assert tokenizer.decode(tokenizer.encode("<s>" + text)) == "<s>" + text


def test_the_hash_follows_the_vocabulary(tmp_path: Path) -> None:
    hashes = set()
    for name, changes in (("one", {}), ("again", {}), ("other", {"zz": 300})):
        (tmp_path / name).mkdir()
        byte_fallback(tmp_path / name, **changes)
        hashes.add(Tokenizer.load(tmp_path / name).hash)
    assert len(hashes) == 2 and all(len(bytes.fromhex(hash)) == 32 for hash in hashes)


@pytest.mark.parametrize("text", [None, "", "{", "[]", "null", '{"version": "1.0"}'])
def test_a_missing_or_broken_file_is_named(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)


def test_tokens_without_exact_bytes_are_refused(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(CheckpointError, match="no exact bytes"):
        Tokenizer.load(tmp_path)
