"""Where a user's stop strings end the text, however the text is cut into pieces."""

from __future__ import annotations

from collections.abc import Sequence

from ftc.errors import RequestError
from ftc.text import scan


class StopStrings:
    """Passes text through until one of `stops` is complete; holds back only what may still become one.

    The stop string that is complete first wins (of two that end together, the longer), so the result does not depend
    on how the text is split. Raises RequestError on an empty stop string.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        if "" in stops:
            raise RequestError("a stop string may not be empty", where="stop", value=list(stops))
        self.stops = tuple(stops)
        self.hit: str | None = None
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """(text that is safe to show, the stop string that was met or None). After a hit all text is dropped."""
        if self.hit is not None:
            return "", self.hit
        if not self.stops:
            return text, None
        text = self._held + text
        ends = [(i + len(stop), i, stop) for stop in self.stops if (i := text.find(stop)) >= 0]
        if ends:
            _, start, self.hit = min(ends)
            self._held = ""
            return text[:start], self.hit
        cut = len(text) - scan.held(text, self.stops)
        self._held = text[cut:]
        return text[:cut], None

    def flush(self) -> str:
        """The text held back, now that no more is coming."""
        text, self._held = self._held, ""
        return text
