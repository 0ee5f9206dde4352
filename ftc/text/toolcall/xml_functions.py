"""How a call written with function and parameter tags is read while it arrives: values follow the tool's schema.

Values may hold any text, so a tag in a value only counts where what follows fits: a closed parameter is followed by the
next tag of the call; an unclosed one ends before a declared parameter on a new line, or where the whole call ends.
"""

from __future__ import annotations

import json

from ftc.spec.chat import XmlFunctions
from ftc.text import scan
from ftc.text.toolcall.base import CallReader, State
from ftc.text.toolcall.schema import STRING, ToolSchemas, to_json

MAX_NAME = 256
_SPACE = " \t\r\n"


class XmlFunctionsReader(CallReader):
    """Reads `<function=NAME> <parameter=KEY>VALUE</parameter> ... </function>`.

    String values are given out while they arrive, others when they are complete.
    """

    def __init__(self, syntax: XmlFunctions, tools: ToolSchemas) -> None:
        super().__init__()
        self._syntax = syntax
        self._tools = tools
        self._buffer = ""
        self._place = "function"  # function, between (the tags of parameters), value
        self._count = 0
        self._types = STRING
        self._value: list[str] = []  # of a value that is not a plain string
        self._fresh = True  # nothing of the value was read, not even the newline behind its opening tag
        self._line_start = True
        self._newline = False  # one newline is held: it is framing if the value ends behind it
        self._marks = (syntax.parameter_close, syntax.parameter_open, syntax.function_close, syntax.close)

    def push(self, text: str) -> str:
        self._buffer += text
        return self._run(final=False)

    def finish(self) -> None:
        self._run(final=True)
        if self.state is State.READING:
            if self._place == "between" and not self._buffer.strip(_SPACE):
                self._complete()
            else:
                self.state = State.BROKEN

    def cut(self) -> None:
        if self._place == "value":
            self._add(self._buffer)
            self._ready.append("".join(self._value))
        self._buffer = ""

    def _run(self, final: bool) -> str:
        steps = {"function": self._read_function, "between": self._read_between, "value": self._read_value}
        while self.state is State.READING and steps[self._place](final):
            pass
        if self.state is State.READING:
            return ""
        rest, self._buffer = self._buffer, ""
        return rest

    def _read_function(self, final: bool) -> bool:
        """Each of these returns whether the next one can go on at once."""
        text, opening = self._buffer.lstrip(_SPACE), self._syntax.function_open
        if not text.startswith(opening):
            if not opening.startswith(text):
                self.state = State.PROSE
            return False
        name = self._name(text, opening)
        if name is None:
            return False
        self.name = name
        self._place = "between"
        return True

    def _name(self, text: str, opening: str) -> str | None:
        """The name in a tag at the start of `text`; consumes the tag. None: wait, or the state is BROKEN."""
        name, end, rest = text[len(opening) :].partition(">")
        if not _may_be_name(name) or (end and not name.strip()):
            self.state = State.BROKEN
        if not end or self.state is State.BROKEN:
            return None
        self._buffer = rest
        return name.strip()

    def _read_between(self, final: bool) -> bool:
        syntax = self._syntax
        text = self._buffer.lstrip(_SPACE)
        if text.startswith(syntax.parameter_open):
            key = self._name(text, syntax.parameter_open)
            if key is None:
                return False
            self._open_value(key)
            return True
        if text.startswith(syntax.function_close):
            self._buffer = text[len(syntax.function_close) :]
            self._complete()
        elif text.startswith((syntax.close, syntax.open)):
            self._buffer = text
            self._complete()
        elif not _begins(text, (syntax.parameter_open, syntax.function_close, syntax.close, syntax.open)):
            self.state = State.BROKEN
        return False

    def _open_value(self, key: str) -> None:
        assert self.name is not None
        self._types = self._tools.types(self.name, key)
        self._ready.append(("{" if self._count == 0 else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
        if self._types == STRING:
            self._ready.append('"')
        self._count += 1
        self._value.clear()
        self._fresh, self._line_start, self._newline = True, True, False
        self._place = "value"

    def _read_value(self, final: bool) -> bool:
        start = 0
        while hit := scan.first(self._buffer[start:], self._marks):
            i, mark = start + hit[0], hit[1]
            ends = self._ends_value(i, mark, final)
            if ends:
                self._add(self._buffer[:i])
                self._close_value()
                self._buffer = self._buffer[i + len(mark) * (mark == self._syntax.parameter_close) :]
                return True
            if ends is None:
                self._add(self._buffer[:i])
                self._buffer = self._buffer[i:]
                return False
            start = i + 1
        safe = max(start, len(self._buffer) - scan.held(self._buffer, self._marks))
        self._add(self._buffer[:safe])
        self._buffer = self._buffer[safe:]
        return False

    def _ends_value(self, i: int, mark: str, final: bool) -> bool | None:
        """Whether the tag at `i` ends the value; None while that depends on text to come."""
        syntax = self._syntax
        behind = self._buffer[i + len(mark) :]
        if mark == syntax.parameter_open:
            key, end, _ = behind.partition(">")
            at_line_start = self._buffer[i - 1] == "\n" if i else self._line_start
            if not at_line_start or not _may_be_name(key) or not (end or not final):
                return False
            if not end:
                return None
            assert self.name is not None
            return self._tools.declares(self.name, key.strip()) or self.name not in self._tools
        follows: tuple[str, ...] = (syntax.open,)
        if mark == syntax.function_close:
            follows = (syntax.open, syntax.close)
        elif mark == syntax.parameter_close:
            follows = (syntax.open, syntax.close, syntax.parameter_open, syntax.function_close)
        behind = behind.lstrip(_SPACE)
        if behind.startswith(follows):
            return True
        if final:
            return not behind
        return None if _begins(behind, follows) else False

    def _add(self, text: str) -> None:
        """More of the value. The first newline of a value is framing; the last one so far is held."""
        if not text:
            return
        self._line_start = text.endswith("\n")
        if self._fresh:
            self._fresh = False
            text = text.removeprefix("\n")
        if not text:
            return
        text = "\n" * self._newline + text
        self._newline = text.endswith("\n")
        text = text.removesuffix("\n")
        if self._types == STRING:
            self._ready.append(json.dumps(text, ensure_ascii=False)[1:-1])
        else:
            self._value.append(text)

    def _close_value(self) -> None:
        self._ready.append('"' if self._types == STRING else to_json("".join(self._value), self._types))
        self._value.clear()
        self._place = "between"

    def _complete(self) -> None:
        self._ready.append("}" if self._count else "{}")
        self.state = State.COMPLETE


def _may_be_name(text: str) -> bool:
    return len(text) <= MAX_NAME and "\n" not in text and "<" not in text


def _begins(text: str, marks: tuple[str, ...]) -> bool:
    return any(mark.startswith(text) for mark in marks)
