"""How a call written as one JSON object is read while it arrives: the arguments keep the model's own text."""

from __future__ import annotations

import json

from ftc.spec.chat import JsonInTags
from ftc.text.toolcall.base import CallReader, State
from ftc.text.toolcall.json_value import JsonValue, is_text


class JsonInTagsReader(CallReader):
    """Reads `{"name": ..., "arguments": {...}}`, keys in any order, other keys ignored.

    Arguments given as a JSON text that holds an object are unpacked; null or absent means `{}`.
    """

    def __init__(self, syntax: JsonInTags) -> None:
        super().__init__()
        self._syntax = syntax
        self._place = "open"  # open, key (or the end), another (key), colon, value, comma (or the end)
        self._key = ""
        self._value: JsonValue | None = None
        self._text: list[str] = []  # of the key or value being read
        self._streams = False  # the value being read is the arguments object
        self._has_arguments = False
        self._last_brace = False

    def push(self, text: str) -> str:
        i = 0
        while i < len(text) and self.state is State.READING:
            if self._value is not None:
                i = self._read_value(text, i)
            elif text[i] in " \t\r\n" or (self._place == "open" and text[i] in self._syntax.between):
                i += 1
            else:
                i = self._read_structure(text, i)
        return text[i:]

    def finish(self) -> None:
        if self.state is State.READING:
            self.state = State.BROKEN

    def _read_structure(self, text: str, i: int) -> int:
        character, place = text[i], self._place
        if place == "open":
            if character != "{":
                self.state = State.PROSE
                return i
            self._place = "key"
        elif place in ("key", "another") and character == '"':
            self._begin(JsonValue())
            return i
        elif place == "colon" and character == ":":
            self._place = "value"
        elif place == "value":
            self._begin(JsonValue())
            self._streams = self._key == self._syntax.arguments_key and character == "{" and not self._has_arguments
            return i
        elif place == "comma" and character == ",":
            self._place = "another"
        elif place in ("key", "comma") and character == "}":
            self._end_call()
            return i + (self.state is State.COMPLETE)
        else:
            self.state = State.BROKEN
            return i
        return i + 1

    def _begin(self, value: JsonValue) -> None:
        self._value = value
        self._text.clear()

    def _read_value(self, text: str, i: int) -> int:
        assert self._value is not None
        end = self._value.push(text, i)
        done = self._value.done
        if self._value.broken:
            self.state = State.BROKEN
        if self._streams:
            # The last brace waits for the end of the call: cut arguments must not look complete.
            self._ready.append(text[i : end - done])
            self._last_brace = done
        else:
            self._text.append(text[i:end])
        if done:
            self._value = None
            self._end_value()
        return end

    def _end_value(self) -> None:
        if self._place in ("key", "another"):
            self._key = json.loads("".join(self._text))
            self._place = "colon"
            return
        self._place = "comma"
        if self._streams:
            self._streams = False
            self._has_arguments = True
        elif self._key == self._syntax.name_key and self.name is None:
            name = json.loads("".join(self._text))
            if isinstance(name, str) and name and name.isprintable():
                self.name = name
            else:
                self.state = State.BROKEN
        elif self._key == self._syntax.arguments_key:
            self._unpack("".join(self._text))

    def _unpack(self, text: str) -> None:
        """Arguments that are no object: null, or an object written as text."""
        value = None if text.strip() == "null" else self._text_of_object(text)
        if value is None and text.strip() != "null" or self._has_arguments:
            self.state = State.BROKEN
        elif value is not None:
            self._has_arguments = self._last_brace = True
            self._ready.append(value[:-1])

    def _text_of_object(self, text: str) -> str | None:
        inner = json.loads(text) if text.startswith('"') else None
        if not isinstance(inner, str):
            return None
        inner = inner.strip() or "{}"
        if not is_text(inner):
            return None
        scan = JsonValue()
        end = scan.push(inner)
        return inner if inner[0] == "{" and scan.done and end == len(inner) else None

    def _end_call(self) -> None:
        if self.name is None:
            self.state = State.BROKEN
            return
        self._ready.append("}" if self._last_brace else "{}")
        self.state = State.COMPLETE
