"""What the checkpoint's vocabulary says: text to token ids, and the exact bytes of every id."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers

from ftc.errors import CheckpointError

FILE = "tokenizer.json"


class Tokenizer:
    """A vocabulary read from `tokenizer.json`. Made by `Tokenizer.load`.

    `size` is the highest id + 1 and `hash` a hex digest of all (id, text) pairs: equal hashes mean equal vocabularies.
    """

    def __init__(self, backend: tokenizers.Tokenizer, table: list[bytes], special: frozenset[int], hash: str) -> None:
        self._backend = backend
        self._table = table
        self._special = special
        self.size = len(table)
        self.hash = hash

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer:
        """Reads FOLDER/tokenizer.json. Raises CheckpointError naming the file if it is missing, damaged or of a kind
        whose tokens have no exact bytes."""
        path = Path(folder) / FILE
        if not path.is_file():
            raise CheckpointError(
                "the checkpoint has no tokenizer",
                where=str(path),
                hint="download the file that belongs to the checkpoint into its folder",
            )
        try:
            text = path.read_text(encoding="utf-8")
            backend = tokenizers.Tokenizer.from_str(text)
            decoder = json.loads(text).get("decoder")
        except Exception as error:  # the tokenizers library raises bare Exception for a file that it cannot read
            raise CheckpointError(
                f"the tokenizer cannot be read: {error}", where=str(path), hint="download the file again"
            ) from error
        backend.no_truncation()
        backend.no_padding()
        added = backend.get_added_tokens_decoder()
        vocabulary = {id: token for token, id in backend.get_vocab(with_added_tokens=True).items()}
        if not vocabulary:
            raise CheckpointError("the tokenizer's vocabulary is empty", where=str(path))
        exact = _exact_bytes(_steps(decoder), str(path))
        table = [b""] * (max(vocabulary) + 1)
        for id, token in vocabulary.items():
            table[id] = added[id].content.encode() if id in added else exact(token)
        special = frozenset(id for id, token in added.items() if token.special)
        lines = "".join(f"{id} {vocabulary[id]!r} {id in special}\n" for id in sorted(vocabulary))
        return cls(backend, table, special, hashlib.sha256(lines.encode()).hexdigest())

    def encode(self, text: str, special: bool = False) -> list[int]:
        """The ids of `text`. Special tokens written in it are recognised; with `special` the file's own are added."""
        if not text.isascii():
            # Arguments of calls may hold half a character, written as an escape; no vocabulary has it.
            text = text.encode("utf-8", "replace").decode()
        return self._backend.encode(text, add_special_tokens=special).ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens included. Bytes that are no UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def token_bytes(self, id: int) -> bytes:
        """The exact bytes of one id; empty for an id without a token (models pad their vocabulary)."""
        return self._table[id] if 0 <= id < self.size else b""

    def token_id(self, text: str) -> int | None:
        """The id of the token written `text` in the vocabulary, or None."""
        return self._backend.token_to_id(text)

    def is_special(self, id: int) -> bool:
        """Whether the id is a control token, which is not shown to users."""
        return id in self._special


def _steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [step for inner in decoder["decoders"] for step in _steps(inner)]
    return [decoder]


def _exact_bytes(steps: list[dict[str, Any]], where: str) -> Any:
    """A function from a token as the vocabulary writes it to its bytes, chosen by the file's decoder."""
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return _byte_level
    if not kinds & {"ByteFallback", "Metaspace", "Replace"}:
        raise CheckpointError(
            "the tokenizer's decoder gives tokens no exact bytes",
            where=where,
            value=sorted(kinds),
            hint="byte-level and byte-fallback tokenizers are supported",
        )
    swaps = [(step["pattern"]["String"], step["content"]) for step in steps
             if step["type"] == "Replace" and "String" in step["pattern"]]  # fmt: skip
    swaps += [(step["replacement"], " ") for step in steps if step["type"] == "Metaspace"]

    def fallback(token: str) -> bytes:
        if _BYTE.fullmatch(token):
            return bytes([int(token[3:5], 16)])
        for old, new in swaps:
            token = token.replace(old, new)
        return token.encode()

    return fallback


_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


def _alphabet() -> dict[str, int]:
    """The byte-level alphabet: printable bytes stand for themselves, the other 68 for U+0100 and up, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_ALPHABET = _alphabet()


def _byte_level(token: str) -> bytes:
    try:
        return bytes([_ALPHABET[character] for character in token])
    except KeyError:  # a token outside the alphabet stands for its own text, as in the library
        return token.encode()
