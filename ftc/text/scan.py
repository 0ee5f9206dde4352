"""Where marks stand in text that is still arriving, and how much of its end might become one."""

from __future__ import annotations

from collections.abc import Iterable


def first(text: str, marks: Iterable[str]) -> tuple[int, str] | None:
    """The position and the mark that comes first in `text`; at one position the longest mark wins."""
    found = [(i, -len(mark), mark) for mark in marks if (i := text.find(mark)) >= 0]
    if not found:
        return None
    i, _, mark = min(found)
    return i, mark


def held(text: str, marks: Iterable[str]) -> int:
    """How many characters at the end of `text` are a true prefix of some mark, so must wait for more text."""
    return max((_overlap(text, mark) for mark in marks), default=0)


def _overlap(text: str, mark: str) -> int:
    start = max(0, len(text) - len(mark) + 1)
    while (start := text.find(mark[0], start)) >= 0:
        if mark.startswith(text[start:]):
            return len(text) - start
        start += 1
    return 0
