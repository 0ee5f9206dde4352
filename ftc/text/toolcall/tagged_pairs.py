"""How a call written as a name and pairs of tagged keys and values is read while it arrives."""

from __future__ import annotations

from ftc.spec.chat import TaggedPairs, XmlFunctions
from ftc.text import scan
from ftc.text.toolcall.base import NAME, State
from ftc.text.toolcall.schema import ANY, ToolSchemas
from ftc.text.toolcall.xml_functions import XmlFunctionsReader

_SPACE = " \t\r\n"


class TaggedPairsReader(XmlFunctionsReader):
    """Reads `NAME <arg_key>KEY</arg_key> <arg_value>VALUE</arg_value> ...`, up to the closing mark."""

    def __init__(self, syntax: TaggedPairs, tools: ToolSchemas) -> None:
        tags = XmlFunctions(
            open=syntax.open,
            close=syntax.close,
            function_open="",
            function_close="",
            parameter_open=syntax.key_open,
            parameter_close=syntax.value_close,
        )
        super().__init__(tags, tools)
        self._pairs = syntax
        self._framed = False

    def _read_function(self, final: bool) -> bool:
        marks = (self._pairs.key_open, self._pairs.close)
        hit = scan.first(self._buffer, marks)
        end = len(self._buffer) - (0 if final else scan.held(self._buffer, marks)) if hit is None else hit[0]
        name = self._buffer[:end].strip(_SPACE)
        if (name or hit) and not NAME.fullmatch(name):
            self.state = State.PROSE
        elif hit is not None or (final and name in self._tools):
            self.name = name
            self._buffer = self._buffer[end:]
            self._place = "between"
            return True
        return False

    def _split(self, behind: str, opening: str) -> tuple[str, bool, str]:
        key, end, rest = behind.partition(self._pairs.key_close)
        if not end:
            # A part of the closing tag is no part of the key.
            return key[: len(key) - scan.held(key, (self._pairs.key_close,))], False, ""
        rest = rest.lstrip(_SPACE)
        if rest.startswith(self._pairs.value_open):
            return key, True, rest[len(self._pairs.value_open) :]
        # Anything but a value behind a key is no pair: the line break makes the key one that cannot be.
        return (key, False, "") if self._pairs.value_open.startswith(rest) else ("\n", False, "")

    def _types_of(self, key: str, attributes: str) -> frozenset[str]:
        assert self.name is not None
        return super()._types_of(key, attributes) if self._tools.declares(self.name, key) else ANY
