"""How a model speaks: turns, reasoning marks and the syntax of tool calls, all as data."""

from __future__ import annotations

import msgspec

SPACE = " \t\r\n"


class JsonInTags(msgspec.Struct, frozen=True, tag="json_in_tags"):
    """A call is one JSON object `{"name": ..., "arguments": {...}}` between `open` and `close`; several calls repeat the pair.

    `sign` is a text that occurs in the chat template of checkpoints that use this syntax. `close` may be empty where
    calls end with the turn. `between` are characters that may stand around the objects, such as those of a list.
    """

    open: str = "<tool_call>"
    close: str = "</tool_call>"
    name_key: str = "name"
    arguments_key: str = "arguments"
    between: str = ""
    sign: str = '{"name"'

    @property
    def begins(self) -> tuple[str, ...]:
        return ("{",)

    @property
    def skips(self) -> str:
        return SPACE + "}" + self.between  # one brace too many is a common slip

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.open, self.close)


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

    @property
    def begins(self) -> tuple[str, ...]:
        return (self.function_open,)

    @property
    def skips(self) -> str:
        return SPACE

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.open, self.close)


class InvokeTags(msgspec.Struct, frozen=True, tag="invoke_tags"):
    """A call is `<invoke name="NAME"> <parameter name="KEY">VALUE</parameter> ... </invoke>`; several share `open`, `close`.

    Values are taken to the letter and follow the tool's schema, except where the tag has the attribute `raw`: "true" says
    that the value is a text, "false" that it is JSON. The opening marks end where the name begins.
    """

    open: str = "<function_calls>"
    close: str = "</function_calls>"
    invoke_open: str = '<invoke name="'
    invoke_close: str = "</invoke>"
    parameter_open: str = '<parameter name="'
    parameter_close: str = "</parameter>"
    raw: str = "string"
    sign: str = "<invoke name="

    @property
    def begins(self) -> tuple[str, ...]:
        return (self.invoke_open,)

    @property
    def skips(self) -> str:
        return SPACE

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.open, self.close)


class TaggedPairs(msgspec.Struct, frozen=True, tag="tagged_pairs"):
    """A call is `open NAME <arg_key>KEY</arg_key> <arg_value>VALUE</arg_value> ... close`, one to a pair of marks.

    Values are taken to the letter and follow the tool's schema; those that it does not declare are JSON where they can be.
    """

    open: str = "<tool_call>"
    close: str = "</tool_call>"
    key_open: str = "<arg_key>"
    key_close: str = "</arg_key>"
    value_open: str = "<arg_value>"
    value_close: str = "</arg_value>"
    sign: str = "<arg_key>"

    @property
    def begins(self) -> tuple[str, ...]:
        return ()

    @property
    def skips(self) -> str:
        return SPACE

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.open, self.close, self.key_open, self.key_close, self.value_open, self.value_close)


class SectionCalls(msgspec.Struct, frozen=True, tag="section_calls"):
    """A call is `call_open NAME arguments_open {...} call_close`; several stand between `open` and `close`.

    Of a name, `prefix` in front and a colon with a number behind are left out. `close`, `call_open` and `call_close` may
    be empty where the model writes no such mark.
    """

    open: str
    close: str
    call_open: str
    arguments_open: str
    call_close: str
    sign: str
    prefix: str = "functions."

    @property
    def begins(self) -> tuple[str, ...]:
        return (self.call_open,) if self.call_open else ()

    @property
    def skips(self) -> str:
        return SPACE

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.open, self.close, self.call_open, self.arguments_open, self.call_close)


class CallList(msgspec.Struct, frozen=True, tag="call_list"):
    """Calls are a list of `NAME(KEY=VALUE, ...)` with literal values, as in Python, between `open` and `close`.

    `declared_only`: what looks like a call to no declared tool is text, for marks that occur in prose.
    """

    open: str
    close: str
    sign: str
    declared_only: bool = False

    @property
    def begins(self) -> tuple[str, ...]:
        return tuple("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")

    @property
    def skips(self) -> str:
        return SPACE + ",]" if self.close != "]" else SPACE + ","

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.open, self.close)


class CallObject(msgspec.Struct, frozen=True, tag="call_object"):
    """A call is `open call NAME{KEY:VALUE,...} close`; texts stand between two `quote` marks, keys may stand bare."""

    open: str = "<|tool_call>"
    close: str = "<tool_call|>"
    call: str = "call:"
    quote: str = '<|"|>'
    sign: str = "<|tool_call>"

    @property
    def begins(self) -> tuple[str, ...]:
        return (self.call,)

    @property
    def skips(self) -> str:
        return SPACE + ","

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.open, self.close, self.quote)


class NestedTags(msgspec.Struct, frozen=True, tag="nested_tags"):
    """A call is `invoke_open NAME"> <KEY>VALUE</KEY> ... invoke_close` with `prefix` before each tag.

    A value is text, elements that make an object, or elements called `item` that make a list.
    """

    open: str
    close: str
    invoke_open: str
    invoke_close: str
    prefix: str
    sign: str
    item: str = "item"

    @property
    def begins(self) -> tuple[str, ...]:
        return (self.invoke_open,)

    @property
    def skips(self) -> str:
        return SPACE

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.open, self.close, self.prefix)


class Channels(msgspec.Struct, frozen=True, tag="channels"):
    """The whole answer is messages `start ROLE channel NAME message TEXT end`; the channel says what the text is.

    Texts on the channels or to the recipients in `reasoning` are thinking, texts to those in `content` are content. Any other
    recipient is a tool: the text is the arguments of the call, or where there are `calls`, calls written in these tags.
    `prefix` is left out of a recipient's name. All else is content. `channel` and `constrain` may be empty.
    """

    start: str = "<|start|>"
    channel: str = "<|channel|>"
    constrain: str = "<|constrain|>"
    message: str = "<|message|>"
    ends: tuple[str, ...] = ("<|end|>", "<|call|>", "<|return|>")
    reasoning: tuple[str, ...] = ("analysis",)
    content: tuple[str, ...] = ()
    recipient: str = "to="
    prefix: str = "functions."
    calls: InvokeTags | None = None
    sign: str = "<|channel|>"

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.start, self.channel, self.constrain, self.message, *self.ends)


# What the parser reads itself: an opening mark, calls, a closing mark. `begins` are the texts that another call in the
# same marks may begin with, `skips` the characters that mean nothing there, `marks` what a vocabulary may call special.
CallSyntax = JsonInTags | XmlFunctions | InvokeTags | TaggedPairs | SectionCalls | CallList | CallObject | NestedTags
ToolSyntax = CallSyntax | Channels


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
