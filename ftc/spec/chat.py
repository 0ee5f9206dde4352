"""How a model speaks: turns, reasoning marks and the syntax of tool calls, all as data."""

from __future__ import annotations

import msgspec


class JsonInTags(msgspec.Struct, frozen=True, tag="json_in_tags"):
    """A call is one JSON object `{"name": ..., "arguments": {...}}` between `open` and `close`; several calls repeat the pair.

    `sign` is a text that occurs in the chat template of checkpoints that use this syntax.
    """

    open: str = "<tool_call>"
    close: str = "</tool_call>"
    name_key: str = "name"
    arguments_key: str = "arguments"
    sign: str = '{"name"'


class XmlFunctions(msgspec.Struct, frozen=True, tag="xml_functions"):
    """A call is `open <function=NAME> <parameter=KEY>VALUE</parameter> ... </function> close`.

    One newline after the opening and one before the closing mark of a value are framing; values follow the tool's
    schema (a string parameter is never parsed as JSON).
    """

    open: str = "<tool_call>"
    close: str = "</tool_call>"
    function_open: str = "<function="
    function_close: str = "</function>"
    parameter_open: str = "<parameter="
    parameter_close: str = "</parameter>"
    sign: str = "<function="


ToolSyntax = JsonInTags | XmlFunctions


class Reasoning(msgspec.Struct, frozen=True):
    """Marks around the thinking. Whether the prompt has already opened it is read from the rendered prompt.

    `switch` is the template variable that turns thinking on or off (true/false).
    """

    open: str = "<think>"
    close: str = "</think>"
    switch: str | None = "enable_thinking"


class Chat(msgspec.Struct, frozen=True):
    """The chat dialect of a family. `stop` are token texts that end a turn besides the checkpoint's own end tokens.

    `tools` lists the call syntaxes seen in the family; the first one whose `sign` occurs in the checkpoint's
    template is in force.
    """

    stop: tuple[str, ...] = ()
    reasoning: Reasoning | None = None
    tools: tuple[ToolSyntax, ...] = ()

    def tool_syntax(self, template: str) -> ToolSyntax | None:
        """The syntax whose sign occurs in `template` (the Jinja source), or None."""
        return next((t for t in self.tools if t.sign in template), None)
