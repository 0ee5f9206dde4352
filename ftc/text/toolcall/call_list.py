"""How a call written as a function call with literal keyword arguments is read: as a whole, when its parenthesis closes."""

from __future__ import annotations

import ast
import json
import re
import warnings
from typing import Any

from ftc.spec.chat import CallList
from ftc.text.toolcall.base import CallReader, State
from ftc.text.toolcall.json_value import MAX_DEPTH, is_text
from ftc.text.toolcall.schema import ToolSchemas

_HEAD = re.compile(r"\s*\[?\s*([A-Za-z_][\w.-]*)\s*\(")
_HEAD_BEGUN = re.compile(r"\s*(\[\s*)?([A-Za-z_][\w.-]*\s*)?")
_WORDS = {"true": True, "false": False, "null": None}
# What is parsed at once; longer calls are no calls that a model wrote on purpose.
MAX_CHARACTERS = 1 << 18


class CallListReader(CallReader):
    """Reads `NAME(KEY=VALUE, ...)`, with or without the bracket of the list in front."""

    def __init__(self, syntax: CallList, tools: ToolSchemas) -> None:
        super().__init__()
        self._syntax, self._tools = syntax, tools
        self._text = ""
        self._at = 0  # how far the search for the end has come
        self._open = ""  # the brackets around this place
        self._quote = ""  # of the string around this place
        self._found = ""  # the name, before it is certain that this is a call

    def push(self, text: str) -> str:
        self._text += text
        if not self._found and not self._read_head():
            return self._text if self.state is not State.READING else ""
        end = self._end()
        if end is None:
            if self._at > MAX_CHARACTERS:
                self.state = State.PROSE
            return self._text if self.state is not State.READING else ""
        rest, call = self._text[end:], self._text[:end]
        arguments = _arguments(call.strip().removeprefix("[").strip())
        if arguments is None:
            self.state = State.PROSE
            return self._text
        self.name = self._found
        self._ready.append(arguments)
        self.state = State.COMPLETE
        return rest

    def finish(self) -> None:
        if self.state is State.READING:
            self.state = State.PROSE

    def cut(self) -> None:
        self._ready.append("{")

    def _read_head(self) -> bool:
        head = _HEAD.match(self._text)
        if head is None:
            if not _HEAD_BEGUN.fullmatch(self._text):
                self.state = State.PROSE
            return False
        if self._syntax.declared_only and head.group(1) not in self._tools:
            self.state = State.PROSE
            return False
        self._found = head.group(1)
        self._at, self._open = head.end(), "("
        return True

    def _end(self) -> int | None:
        """The position behind the call's parenthesis, or None while it is open."""
        text = self._text
        while self._at < len(text):
            character = text[self._at]
            self._at += 1
            if self._quote:
                if character == "\\":
                    if self._at == len(text):
                        self._at -= 1
                        return None
                    self._at += 1
                elif character == self._quote:
                    self._quote = ""
            elif character in "'\"":
                self._quote = character
            elif character in "([{":
                self._open += character
                if len(self._open) > MAX_DEPTH:
                    self.state = State.PROSE
                    return None
            elif character in ")]}":
                self._open = self._open[:-1]
                if not self._open:
                    return self._at
        return None


def _arguments(call: str) -> str | None:
    """The keyword arguments of a call as a JSON object; None for anything else."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape in a string is the model's affair
            body = ast.parse(call.replace("\n", "\\n") if _has_raw_lines(call) else call, mode="eval").body
        if not isinstance(body, ast.Call) or body.args:
            return None
        values = {word.arg: _value(word.value) for word in body.keywords}
        if None in values:
            return None
        text = json.dumps(values, ensure_ascii=False, allow_nan=False)
        return text if is_text(text) else json.dumps(values, allow_nan=False)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _has_raw_lines(call: str) -> bool:
    """Whether a string holds a line break as it is, which a model writes and a parser refuses."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(call, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "\n" in call
    return False


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=value) if isinstance(value, str | int | float | bool | None):
            return value
        case ast.Name(id=word) if word in _WORDS:
            return _WORDS[word]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)) if isinstance(value, int | float):
            return -value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            pairs = [(_value(key) if key is not None else None, _value(value)) for key, value in zip(keys, values, strict=True)]
            return {key if isinstance(key, str) else json.dumps(key): value for key, value in pairs}
    raise ValueError("not a literal")
