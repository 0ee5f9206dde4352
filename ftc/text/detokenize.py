"""Which text a growing list of tokens has become for certain."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence
from typing import Protocol


class TokenBytes(Protocol):
    """What the detokenizer needs of a vocabulary."""

    def token_bytes(self, id: int) -> bytes:
        """The bytes one token stands for."""

    def is_special(self, id: int) -> bool:
        """Whether the token is a control token."""


class Detokenizer:
    """Turns token ids into text piece by piece, in constant time per token.

    A character whose bytes are spread over tokens is given out when its last byte is there. Bytes that can never be
    UTF-8 become U+FFFD; a character cut off by the end of the output is dropped. `skip_special` leaves control tokens
    out, except those in `keep`.
    """

    def __init__(self, tokenizer: TokenBytes, skip_special: bool = True, keep: Collection[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._keep = frozenset(keep)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Sequence[int]) -> str:
        """The text that became certain with these tokens."""
        return self._decoder.decode(b"".join(self._bytes(id) for id in ids))

    def flush(self) -> str:
        """Ends the output: forgets the bytes of an unfinished character; the text is always empty."""
        self._decoder.reset()
        return ""

    def _bytes(self, id: int) -> bytes:
        if self._skip_special and id not in self._keep and self._tokenizer.is_special(id):
            return b""
        return self._tokenizer.token_bytes(id)
