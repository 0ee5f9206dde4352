"""What a reader of one call owes the parser, whatever the syntax."""

from __future__ import annotations

import re
from enum import Enum

# Function names as the APIs allow them, and the dots and slashes that some tool servers put in.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./:-]{0,127}")


class State(Enum):
    """How far a reader is. PROSE: nothing of a call stood behind the mark; BROKEN: a call began and went wrong."""

    READING = 0
    COMPLETE = 1
    BROKEN = 2
    PROSE = 3


class CallReader:
    """Reads one call from text that arrives in pieces.

    `name` is None until it is known. The pieces that `take` returns join to the arguments as one JSON object; they
    never hold the last brace before the call is COMPLETE, so a cut call never looks whole.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.state = State.READING
        self._ready: list[str] = []

    def push(self, text: str) -> str:
        """Takes more text; returns what does not belong to the call, which is empty while READING."""
        raise AssertionError("every syntax has its own push")

    def finish(self) -> None:
        """The model ended its turn here: the state becomes COMPLETE if only closing marks are missing, else BROKEN."""
        raise AssertionError("every syntax has its own finish")

    def cut(self) -> None:
        """The text was cut here: what is still held of the arguments becomes ready, as it is."""

    def take(self) -> str:
        """New text of the arguments; empty until the name is known."""
        if self.name is None:
            return ""
        text = "".join(self._ready)
        self._ready.clear()
        return text
