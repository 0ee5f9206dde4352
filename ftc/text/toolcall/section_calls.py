"""How a call written as a name, a mark and a JSON object is read while it arrives: the arguments keep the model's text."""

from __future__ import annotations

import re

from ftc.spec.chat import SectionCalls
from ftc.text import scan
from ftc.text.toolcall.base import NAME, CallReader, State
from ftc.text.toolcall.json_value import JsonValue

_SPACE = " \t\r\n"
_INDEX = re.compile(r":\d+$")


class SectionCallsReader(CallReader):
    """Reads `call_open NAME arguments_open {...} call_close`. Arguments that are absent mean `{}`."""

    def __init__(self, syntax: SectionCalls) -> None:
        super().__init__()
        self._syntax = syntax
        self._buffer = ""
        self._place = "open" if syntax.call_open else "name"  # open, name, value, close
        self._value: JsonValue | None = None

    def push(self, text: str) -> str:
        self._buffer += text
        return self._run(final=False)

    def finish(self) -> None:
        self._run(final=True)
        if self.state is State.READING:
            if self._place == "close" and not self._buffer.strip(_SPACE):
                self._complete()
            else:
                self.state = State.BROKEN

    def _run(self, final: bool) -> str:
        steps = {"open": self._read_open, "name": self._read_name, "value": self._read_value, "close": self._read_close}
        while self.state is State.READING and steps[self._place](final):
            pass
        if self.state is State.READING:
            return ""
        rest, self._buffer = self._buffer, ""
        return rest

    def _read_open(self, final: bool) -> bool:
        """Each of these returns whether the next one can go on at once."""
        text, opening = self._buffer.lstrip(_SPACE), self._syntax.call_open
        if text.startswith(opening):
            self._buffer = text[len(opening) :]
            self._place = "name"
            return True
        if not opening.startswith(text):
            self.state = State.PROSE
        return False

    def _read_name(self, final: bool) -> bool:
        opening = self._syntax.arguments_open
        name, end, rest = self._buffer.partition(opening)
        if not end:
            name = name[: len(name) - scan.held(name, (opening,))]
        name = name.strip(_SPACE)
        if (name or end) and not NAME.fullmatch(name):
            self.state = State.BROKEN if self._syntax.call_open else State.PROSE
        if not end or self.state is not State.READING:
            return False
        self.name = _INDEX.sub("", name.removeprefix(self._syntax.prefix)) or name
        self._buffer = rest
        self._place = "value"
        return True

    def _read_value(self, final: bool) -> bool:
        if self._value is None:
            text = self._buffer.lstrip(_SPACE)
            ends = tuple(mark for mark in (self._syntax.call_close, self._syntax.close) if mark)
            if text.startswith(ends):
                self._buffer = text
                self._ready.append("{")
                self._place = "close"
                return True
            if text and not text.startswith("{"):
                if not any(mark.startswith(text) for mark in ends):
                    self.state = State.BROKEN
                return False
            if not text:
                return False
            self._value, self._buffer = JsonValue(), text
        end = self._value.push(self._buffer)
        done = self._value.done
        # The last brace waits for the end of the call: cut arguments must not look complete.
        self._ready.append(self._buffer[: end - done])
        self._buffer = self._buffer[end:]
        if self._value.broken:
            self.state = State.BROKEN
        elif done:
            self._place = "close"
            return True
        return False

    def _read_close(self, final: bool) -> bool:
        closing = self._syntax.call_close
        # The mark may itself begin with a line break, so what stands before it is looked at both ways.
        for text in (self._buffer, self._buffer.lstrip(_SPACE)):
            if text.startswith(closing):
                self._buffer = text[len(closing) :]
                self._complete()
                return False
        text = self._buffer.lstrip(_SPACE)
        if self._syntax.close and text.startswith(self._syntax.close):
            self._buffer = text
            self._complete()
        elif not any(mark.startswith(one) for mark in (closing, self._syntax.close) for one in (text, self._buffer)):
            self.state = State.BROKEN
        return False

    def _complete(self) -> None:
        self._ready.append("}")
        self.state = State.COMPLETE
