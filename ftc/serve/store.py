"""Which answers can be asked for again or built upon: the last ones, as many as fit a bound on their size."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import msgspec

from ftc.serve.errors import UnknownResponseError
from ftc.serve.schema.responses import Response

MAX_BYTES = 256 << 20
MAX_COUNT = 4096


class Stored(msgspec.Struct, frozen=True):
    """One answer and all the items it was made from, those of the answers before it included."""

    response: Response
    input: list[dict[str, Any]]
    own: int  # how many items at the end of `input` are the request's own

    def items(self) -> list[dict[str, Any]]:
        """The conversation up to and with this answer."""
        return [*self.input, *msgspec.to_builtins(self.response.output)]


class ResponseStore:
    """The answers of one server, in memory; the one that was used longest ago goes first."""

    def __init__(self, max_bytes: int = MAX_BYTES, max_count: int = MAX_COUNT) -> None:
        self._max_bytes, self._max_count = max_bytes, max_count
        self._entries: OrderedDict[str, tuple[Stored, int]] = OrderedDict()
        self._bytes = 0

    def put(self, stored: Stored) -> None:
        """Keeps an answer; one that alone is over the bound is not kept."""
        # Shared items of a conversation count for each answer: the bound is never passed, only met early.
        size = len(msgspec.json.encode(stored))
        self._entries[stored.response.id] = (stored, size)
        self._bytes += size
        while self._bytes > self._max_bytes or len(self._entries) > self._max_count:
            _, (_, freed) = self._entries.popitem(last=False)
            self._bytes -= freed

    def get(self, id: str, where: str = "response_id") -> Stored:
        """Raises UnknownResponseError naming `where`."""
        if id not in self._entries:
            raise UnknownResponseError(
                "no stored response has this id", where=where, value=id, hint="send the whole conversation as input"
            )
        self._entries.move_to_end(id)
        return self._entries[id][0]

    def delete(self, id: str) -> None:
        """Raises UnknownResponseError."""
        self.get(id)
        self._bytes -= self._entries.pop(id)[1]
