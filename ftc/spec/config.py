"""A checkpoint's `config.json` as a spec reads it: attribute access, aliases, and refusals that name the key."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from ftc.errors import SpecError

_MISSING = object()


class Config:
    """Read-only view of a JSON object. `c.key` raises SpecError where the key is missing; `c.get(key, default)` does not."""

    def __init__(self, values: Mapping[str, Any], where: str = "config.json") -> None:
        self._values, self._where = values, where

    def __getattr__(self, key: str) -> Any:
        if key.startswith("__"):
            raise AttributeError(key)
        value = self.get(key, _MISSING)
        if value is _MISSING:
            raise SpecError("a key the spec needs is missing", where=f"{self._where}: {key}", hint=self._near(key))
        return value

    def get(self, key: str, default: Any = None) -> Any:
        """The value, wrapped where it is an object; `default` where the key is absent or null."""
        value = self._values.get(key)
        if value is None:
            return default
        return Config(value, f"{self._where}: {key}") if isinstance(value, Mapping) else value

    def first(self, *keys: str, default: Any = _MISSING) -> Any:
        """The value of the first key present: the aliases under which public files write one thing."""
        for key in keys:
            if self._values.get(key) is not None:
                return self.get(key)
        if default is _MISSING:
            raise SpecError("none of the keys is there", where=f"{self._where}: {' / '.join(keys)}", hint=self._near(keys[0]))
        return default

    def filled(self, **defaults: Any) -> Config:
        """The same with `defaults` in place of keys that are absent or null: what a family's files leave out."""
        return Config(defaults | {k: v for k, v in self._values.items() if v is not None}, self._where)

    def over(self, **changes: Any) -> Config:
        """The same with `changes` laid over it."""
        return Config({**self._values, **changes}, self._where)

    def keys(self) -> list[str]:
        return list(self._values)

    def refuse(self, key: str, what: str, hint: str | None = None) -> SpecError:
        """An error about the value of `key`, to be raised by the caller."""
        return SpecError(what, where=f"{self._where}: {key}", value=self._values.get(key), hint=hint)

    def unknown(self, key: str, what: str, known: Iterable[str]) -> SpecError:
        """An error about a word under `key` that is none of the `known` ones, to be raised by the caller."""
        words = list(known)
        near = max(words, key=lambda word: difflib.SequenceMatcher(None, str(self._values.get(key)), word).ratio())
        return self.refuse(key, what, f"known: {', '.join(words)}; the nearest is {near}")

    def _near(self, key: str) -> str:
        close = difflib.get_close_matches(key, list(self._values), n=3)
        return f"similar keys in the file: {', '.join(close)}" if close else "the file has no similar key"
