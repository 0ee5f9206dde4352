"""How a call whose arguments are nested elements is read: as a whole, when its invoke tag closes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ftc.spec.chat import NestedTags
from ftc.text.toolcall.base import NAME, CallReader, State
from ftc.text.toolcall.json_value import MAX_DEPTH
from ftc.text.toolcall.schema import ANY, ToolSchemas, to_json

_SPACE = " \t\r\n"


class NestedTagsReader(CallReader):
    """Reads `<invoke name="NAME"> <KEY>VALUE</KEY> ... </invoke>` with a prefix before each tag.

    A value is text, other elements (an object), or elements called like `item` (a list).
    """

    def __init__(self, syntax: NestedTags, tools: ToolSchemas) -> None:
        super().__init__()
        self._syntax, self._tools = syntax, tools
        self._text = ""
        self._searched = 0  # how far the end of the call was looked for
        prefix = re.escape(syntax.prefix)
        self._tag = re.compile(rf"{prefix}<(/?)([^<>\s/]+)>")

    def push(self, text: str) -> str:
        self._text += text
        opening = self._syntax.invoke_open
        if self._searched:
            return self._read_to_end()
        head = self._text.lstrip(_SPACE)
        if not head.startswith(opening):
            if not opening.startswith(head):
                self.state = State.PROSE
            return self._text if self.state is not State.READING else ""
        name, quote, body = head[len(opening) :].partition('"')
        if (name or quote) and not NAME.fullmatch(name):
            self.state = State.BROKEN
            return ""
        if not quote or not body.startswith(">"):
            if body and not body.startswith(">"):
                self.state = State.BROKEN
            return ""
        self.name = name
        self._text, self._searched = body, 1
        return self._read_to_end()

    def _read_to_end(self) -> str:
        closing = self._syntax.invoke_close
        end = self._text.find(closing, self._searched)
        if end < 0:
            self._searched = max(1, len(self._text) - len(closing))
            return ""
        return self._read(self._text[1:end], self._text[end + len(closing) :])

    def finish(self) -> None:
        if self.state is State.READING:
            self.state = State.BROKEN

    def cut(self) -> None:
        self._ready.append("{")

    def _read(self, body: str, rest: str) -> str:
        assert self.name is not None
        try:
            arguments = self._element(body, self._tools.schema(self.name), 0)
        except ValueError:
            self.state = State.BROKEN
            return ""
        self._ready.append(arguments if arguments.startswith("{") else "{}")
        self.state = State.COMPLETE
        return rest

    def _element(self, body: str, schema: Mapping[str, Any], depth: int) -> str:
        """JSON text of what stands in an element. Raises ValueError where tags do not match."""
        children = self._children(body)
        if depth > MAX_DEPTH:
            raise ValueError("nested too deeply")
        if not children:
            if depth == 0:
                return "{}"
            return to_json(body, self._tools.types_of(schema) if schema else ANY)
        if depth and all(key == self._syntax.item for key, _ in children):
            inner = schema.get("items")
            return "[" + ", ".join(self._element(one, _schema(inner), depth + 1) for _, one in children) + "]"
        properties = _schema(schema.get("properties"))
        pairs = {key: self._element(one, _schema(properties.get(key)), depth + 1) for key, one in children}
        return "{" + ", ".join(f"{json.dumps(key, ensure_ascii=False)}: {one}" for key, one in pairs.items()) + "}"

    def _children(self, body: str) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        at = 0
        while tag := self._tag.search(body, at):
            if tag.group(1):
                raise ValueError("a closing tag that nothing opened")
            end = self._matching(body, tag.end(), tag.group(2))
            found.append((tag.group(2), body[tag.end() : end]))
            at = body.index(">", end + len(self._syntax.prefix)) + 1
        return found

    def _matching(self, body: str, at: int, name: str) -> int:
        """The position of the tag that closes the element `name` opened before `at`."""
        open_tags = 1
        while tag := self._tag.search(body, at):
            if tag.group(2) == name:
                open_tags += -1 if tag.group(1) else 1
                if open_tags == 0:
                    return tag.start()
            at = tag.end()
        raise ValueError(f"{name} is not closed")


def _schema(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


