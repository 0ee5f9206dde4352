"""How a call written as a name and an object with marked strings is read: as a whole, when its brace closes."""

from __future__ import annotations

import json
import re
from typing import Any

from ftc.spec.chat import CallObject
from ftc.text.toolcall.base import NAME, CallReader, State
from ftc.text.toolcall.json_value import MAX_DEPTH

_SPACE = " \t\r\n"
_WORD = re.compile(r"[^\s,:{}\[\]]+")


class CallObjectReader(CallReader):
    """Reads `call:NAME{KEY:<|"|>TEXT<|"|>,KEY:1,...}`."""

    def __init__(self, syntax: CallObject) -> None:
        super().__init__()
        self._syntax = syntax
        self._text = ""
        self._start = -1  # of the object
        self._at = 0  # how far the search for its end has come
        self._depth = 0
        self._in_text = False
        self._found = ""  # the name, before it is certain that this is a call

    def push(self, text: str) -> str:
        self._text += text
        if self._start < 0 and not self._read_head():
            return self._text if self.state is not State.READING else ""
        end = self._end()
        if end is None:
            return self._text if self.state is not State.READING else ""
        try:
            value, behind = self._value(self._start, 0)
            if behind != end:
                raise ValueError("text behind the object")
            arguments = json.dumps(value, ensure_ascii=False)
        except (ValueError, IndexError):
            self.state = State.BROKEN
            return ""
        self.name = self._found
        self._ready.append(arguments)
        self.state = State.COMPLETE
        return self._text[end:]

    def finish(self) -> None:
        if self.state is State.READING:
            self.state = State.BROKEN if self._found else State.PROSE

    def cut(self) -> None:
        self._ready.append("{")

    def _read_head(self) -> bool:
        text, begins = self._text.lstrip(_SPACE), self._syntax.call
        if not text.startswith(begins):
            if not begins.startswith(text):
                self.state = State.PROSE
            return False
        name, brace, _ = text[len(begins) :].partition("{")
        if (name or brace) and not NAME.fullmatch(name):
            self.state = State.PROSE
        if not brace or self.state is State.PROSE:
            return False
        self._found = name
        self._start = self._at = self._text.index("{", self._text.index(begins))
        return True

    def _end(self) -> int | None:
        """The position behind the object, or None while it is open."""
        text, quote = self._text, self._syntax.quote
        while self._at < len(text):
            if text.startswith(quote, self._at):
                self._in_text = not self._in_text
                self._at += len(quote)
            elif quote.startswith(text[self._at :]):
                return None
            else:
                character = text[self._at]
                self._at += 1
                if not self._in_text:
                    self._depth += (character in "{[") - (character in "}]")
                    if self._depth > MAX_DEPTH:
                        self.state = State.BROKEN
                        return None
                    if self._depth == 0:
                        return self._at
        return None

    def _value(self, at: int, depth: int) -> tuple[Any, int]:
        """A value and the position behind it. Raises ValueError, IndexError."""
        text, quote = self._text, self._syntax.quote
        at = self._skip(at)
        if text.startswith(quote, at):
            end = text.index(quote, at + len(quote))
            return text[at + len(quote) : end], end + len(quote)
        if text[at] == "{":
            pairs: dict[str, Any] = {}
            at = self._skip(at + 1)
            while text[at] != "}":
                key, at = self._value(at, depth + 1)
                at = self._expect(at, ":")
                pairs[key if isinstance(key, str) else json.dumps(key)], at = self._value(at, depth + 1)
                at = self._skip(at) if text[self._skip(at)] == "}" else self._skip(self._expect(at, ","))
            return pairs, at + 1
        if text[at] == "[":
            items: list[Any] = []
            at = self._skip(at + 1)
            while text[at] != "]":
                item, at = self._value(at, depth + 1)
                items.append(item)
                at = self._skip(at) if text[self._skip(at)] == "]" else self._skip(self._expect(at, ","))
            return items, at + 1
        word = _WORD.match(text, at)
        if word is None:
            raise ValueError("no value")
        return _literal(word.group()), word.end()

    def _skip(self, at: int) -> int:
        while self._text[at] in _SPACE:
            at += 1
        return at

    def _expect(self, at: int, character: str) -> int:
        at = self._skip(at)
        if self._text[at] != character:
            raise ValueError(f"no {character}")
        return at + 1


def _literal(word: str) -> Any:
    """A number, true, false or null; any other word is itself, as keys are."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        return json.loads(word, parse_constant=refuse)
    except ValueError:
        return word
