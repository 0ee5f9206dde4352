"""How a server is operated: who may use it, from which pages, and what is done for caches; read from the settings."""

from __future__ import annotations

import hashlib
import hmac

import msgspec

from ftc import settings


class Operation(msgspec.Struct, frozen=True):
    """`key_digests`: SHA-256 of the keys, none means open to all. `origins`: other sites whose pages may use it.

    `keep_nonce` leaves a system block that changes with every request where it is.
    """

    key_digests: tuple[bytes, ...] = ()
    origins: tuple[str, ...] = ()
    keep_nonce: bool = False

    @classmethod
    def make(cls, keys: tuple[str, ...] = (), origins: tuple[str, ...] = (), keep_nonce: bool = False) -> Operation:
        """From the keys as clients send them."""
        return cls(tuple(map(_digest, keys)), origins, keep_nonce)

    @classmethod
    def from_settings(cls) -> Operation:
        """Raises FtcError naming the variable or the file."""
        return cls.make(settings.api_keys(), settings.cors_origins(), settings.keeps_nonce())

    def admits(self, key: str | None) -> bool:
        """Whether a request with this key may pass; the time it takes tells nothing about the keys."""
        if not self.key_digests:
            return True
        given = _digest(key or "")
        matches = [hmac.compare_digest(given, digest) for digest in self.key_digests]
        return key is not None and any(matches)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
