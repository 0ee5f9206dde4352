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
        self._again = ""  # what another call in the same marks begins with, where a value may not hold it
        self._framed = True  # one newline at each end of a value is no part of it
        self._marks = tuple(
            mark for mark in (syntax.parameter_close, syntax.parameter_open, syntax.function_close, syntax.close) if mark
        )

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
        found = self._tag(text, opening)
        if found is None:
            return False
        self.name = found[0]
        self._place = "between"
        return True

    def _tag(self, text: str, opening: str) -> tuple[str, str] | None:
        """Name and attributes of the tag at the start of `text`; consumes the tag. None: wait, or the state is BROKEN."""
        inner, end, rest = self._split(text[len(opening) :], opening)
        name, attributes = self._read_tag(inner)
        if not _may_be_name(inner) or (end and not name):
            self.state = State.BROKEN
        if not end or self.state is State.BROKEN:
            return None
        self._buffer = rest
        return name, attributes

    def _split(self, behind: str, opening: str) -> tuple[str, bool, str]:
        """What stands in a tag of which `behind` is all but the opening, whether the tag has ended, and the rest."""
        inner, end, rest = behind.partition(">")
        return inner, bool(end), rest

    def _read_tag(self, inner: str) -> tuple[str, str]:
        """Name and attributes in a tag."""
        return inner.strip(), ""

    def _types_of(self, key: str, attributes: str) -> frozenset[str]:
        """JSON types that the value of a parameter may have."""
        assert self.name is not None
        return self._tools.types(self.name, key)

    def _to_json(self, text: str) -> str:
        return to_json(text, self._types)

    def _read_between(self, final: bool) -> bool:
        syntax = self._syntax
        text = self._buffer.lstrip(_SPACE)
        if text.startswith(syntax.parameter_open):
            found = self._tag(text, syntax.parameter_open)
            if found is None:
                return False
            self._open_value(*found)
            return True
        if syntax.function_close and text.startswith(syntax.function_close):
            self._buffer = text[len(syntax.function_close) :]
            self._complete()
        elif text.startswith((syntax.close, syntax.open)):
            self._buffer = text
            self._complete()
        elif not _begins(text, (syntax.parameter_open, syntax.function_close, syntax.close, syntax.open)):
            self.state = State.BROKEN
        return False

    def _open_value(self, key: str, attributes: str) -> None:
        self._types = self._types_of(key, attributes)
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
            inner, end, _ = self._split(behind, mark)
            at_line_start = self._buffer[i - 1] == "\n" if i else self._line_start
            if not at_line_start or not _may_be_name(inner) or not (end or not final):
                return False
            if not end:
                return None
            assert self.name is not None
            return self._tools.declares(self.name, self._read_tag(inner)[0]) or self.name not in self._tools
        follows = [syntax.open]
        if mark == syntax.function_close:
            follows += [syntax.close, self._again]
        elif mark == syntax.parameter_close:
            follows += [syntax.close, syntax.parameter_open, syntax.function_close]
        follows = [one for one in follows if one]
        behind = behind.lstrip(_SPACE)
        if behind.startswith(tuple(follows)):
            return True
        if final:
            return not behind
        return None if _begins(behind, tuple(follows)) else False

    def _add(self, text: str) -> None:
        """More of the value. The first newline of a value is framing; the last one so far is held."""
        if not text:
            return
        self._line_start = text.endswith("\n")
        if not self._framed:
            self._take(text)
            return
        if self._fresh:
            self._fresh = False
            text = text.removeprefix("\n")
        if not text:
            return
        text = "\n" * self._newline + text
        self._newline = text.endswith("\n")
        self._take(text.removesuffix("\n"))

    def _take(self, text: str) -> None:
        if self._types == STRING:
            self._ready.append(json.dumps(text, ensure_ascii=False)[1:-1])
        else:
            self._value.append(text)

    def _close_value(self) -> None:
        self._ready.append('"' if self._types == STRING else self._to_json("".join(self._value)))
        self._value.clear()
        self._place = "between"

    def _complete(self) -> None:
        self._ready.append("}" if self._count else "{}")
        self.state = State.COMPLETE


def _may_be_name(text: str) -> bool:
    return len(text) <= MAX_NAME and "\n" not in text and "<" not in text


def _begins(text: str, marks: tuple[str, ...]) -> bool:
    return any(mark.startswith(text) for mark in marks)
