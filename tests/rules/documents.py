"""The commands in README.md and docs/: which blocks there are, and what a reader is told to expect of each.

A block of bash or Python directly below one of these comments is run by the tests:

    <!-- run -->          ends by itself with status 0
    <!-- run: server -->  bash only: starts a server on the port that it names; at most one a page
    <!-- with server -->  ends with status 0 while the server of its page is up
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from tests.rules.tree import ROOT, read, under

BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*?) -->\n)?^```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
MARKS = {"run": ("bash", "python"), "run: server": ("bash",), "with server": ("bash", "python")}


class Block(msgspec.Struct, frozen=True):
    """One fenced block: where its text starts, its language, its text and its mark ("" when it has none)."""

    path: Path
    line: int
    language: str
    mark: str
    text: str


def pages() -> list[Path]:
    return [ROOT / "README.md", *under("docs", suffixes={".md"})]


def blocks(path: Path, text: str | None = None) -> list[Block]:
    text = read(path) if text is None else text
    return [
        Block(path, text.count("\n", 0, at.start("text")) + 1, at["language"], (at["mark"] or "").strip(), at["text"])
        for at in BLOCK.finditer(text)
    ]


def links(path: Path) -> list[tuple[int, str]]:
    """(line, target) of each link of a page that points into the repository, without its #fragment."""
    found = []
    for number, line in enumerate(read(path).splitlines(), 1):
        for target in re.findall(r"\]\(([^)\s]+)\)", line):
            if not re.match(r"[a-z]+:|#", target):
                found.append((number, target.split("#")[0]))
    return found
