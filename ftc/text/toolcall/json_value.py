"""Where a JSON value ends in text that is still arriving, and whether it is valid so far."""

from __future__ import annotations

import re

MAX_DEPTH = 200

_SPACE = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'[^"\\\x00-\x1f]*')
_WORD = re.compile(r"[-+.0-9A-Za-z]*")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")


def is_text(value: str) -> bool:
    """Whether a string is whole characters: an escape in JSON or Python can name half of one."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


class JsonValue:
    """A strict scanner of one JSON value. `done` and `broken` say how it ended; nesting is at most MAX_DEPTH deep."""

    def __init__(self) -> None:
        self.done = False
        self.broken = False
        self._open = ""  # the brackets around this place
        self._expect = "value"  # value, item (value or ]), key, member (key or }), colon, next (comma or close)
        self._string: str | None = None  # inside a string: "" or the escape read so far
        self._is_key = False
        self._word: str | None = None  # inside a number or a literal

    def push(self, text: str, start: int = 0) -> int:
        """Reads from `start`; returns the position behind what belongs to the value. Less than the whole text
        is read only when `done` or `broken`."""
        i = start
        while not self.done and not self.broken:
            if self._string is not None:
                i = self._in_string(text, i)
            elif self._word is not None:
                i = self._in_word(text, i)
            else:
                i = _SPACE.match(text, i).end()  # type: ignore[union-attr]
                if i < len(text):
                    i = self._structure(text[i], i)
            if i >= len(text):
                break
        return i

    def finish(self) -> None:
        """No more text: a number or literal at the top ends here, anything else is broken."""
        if self._word is not None and not self._open:
            self._end_word()
        self.broken = not self.done

    def _in_string(self, text: str, i: int) -> int:
        while i < len(text):
            if self._string:  # an escape has begun
                self._string += text[i]
                if not _ESCAPE_BEGUN.fullmatch(self._string):
                    self.broken = True
                    return i
                if _ESCAPE.fullmatch(self._string):
                    self._string = ""
                i += 1
                continue
            i = _STRING.match(text, i).end()  # type: ignore[union-attr]
            if i == len(text):
                return i
            if text[i] == "\\":
                self._string = "\\"
            elif text[i] == '"':
                self._string = None
                if self._is_key:
                    self._expect = "colon"
                else:
                    self._after_value()
                return i + 1
            else:
                self.broken = True
                return i
            i += 1
        return i

    def _in_word(self, text: str, i: int) -> int:
        end = _WORD.match(text, i).end()  # type: ignore[union-attr]
        self._word = (self._word or "") + text[i:end]
        if end < len(text):
            self._end_word()
        return end

    def _end_word(self) -> None:
        word, self._word = self._word or "", None
        if word in ("true", "false", "null") or _NUMBER.fullmatch(word):
            self._after_value()
        else:
            self.broken = True

    def _structure(self, character: str, i: int) -> int:
        """One character outside strings and words."""
        expect = self._expect
        if character == '"' and expect != "colon" and expect != "next":
            self._string, self._is_key = "", expect in ("key", "member")
        elif character in "{[" and expect in ("value", "item") and len(self._open) < MAX_DEPTH:
            self._open += character
            self._expect = "member" if character == "{" else "item"
        elif character in "}]" and self._open[-1:] == ("{" if character == "}" else "["):
            if expect not in ("next", "member" if character == "}" else "item"):
                self.broken = True
                return i
            self._open = self._open[:-1]
            self._after_value()
        elif character == ":" and expect == "colon":
            self._expect = "value"
        elif character == "," and expect == "next":
            self._expect = "key" if self._open[-1] == "{" else "value"
        elif expect in ("value", "item") and _WORD.match(character).end():  # type: ignore[union-attr]
            self._word = ""
            return i
        else:
            self.broken = True
            return i
        return i + 1

    def _after_value(self) -> None:
        self._expect = "next"
        self.done = not self._open


_ESCAPE = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})')
_ESCAPE_BEGUN = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{0,4})')
