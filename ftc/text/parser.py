"""What a model's text means: reasoning, visible content and tool calls, in one pass, however the text is split.

- A reasoning mark counts only where nothing but white space stands before it (at the start, or behind a reasoning block
  or a call); elsewhere it is prose. Newlines at the edges of a block are framing, as is one newline before a call.
- A call mark that no call follows is prose. A call that goes wrong becomes content, without its marks.
- A call is first shown when it is complete, has more than GATE characters of arguments, or is cut by the token limit: a
  wrong call of fewer characters never reaches a client as a call, and longer ones stream.
- In unclosed reasoning a complete call to a declared tool is a call and ends the reasoning; all else stays reasoning.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Literal

from ftc.spec.chat import CallSyntax, Channels, Chat, ToolSyntax
from ftc.text import channels, scan, toolcall
from ftc.text.events import ContentDelta, Event, ReasoningDelta, ToolCallDelta, ToolCallEnd, ToolCallStart
from ftc.text.stop import StopStrings
from ftc.text.toolcall.base import CallReader, State
from ftc.text.toolcall.schema import ToolSchemas

GATE = 256  # characters; about 2 s of decoding at 40 tokens a second, and most calls of agents are shorter

_SPACE = " \t\r\n"
_TOKENS = (re.compile("<[^<>]+>"), re.compile("｜[^｜<>]+｜"))  # how vocabularies write special tokens


class _Mode(Enum):
    CONTENT = 0
    REASONING = 1
    CALL = 2
    AFTER_CALL = 3
    BROKEN_CALL = 4
    STOPPED = 5


def call_id() -> str:
    """A new random id for a call: `call_` and 24 hex digits."""
    return f"call_{secrets.token_hex(12)}"


def starts_in_reasoning(chat: Chat, prompt_text: str) -> bool:
    """Whether the rendered prompt ends inside a reasoning block that it opened itself."""
    return chat.reasoning is not None and prompt_text.rstrip().endswith(chat.reasoning.open)


def mark_ids(chat: Chat, syntax: ToolSyntax | None, token_id: Callable[[str], int | None]) -> frozenset[int]:
    """Ids of the tokens that are marks of the dialect: the detokenizer must keep them even where they are special."""
    marks = [chat.reasoning.open, chat.reasoning.close] if chat.reasoning else []
    marks += syntax.marks if syntax else []
    # a mark may be written as several tokens, one of them special: <|token>word
    marks += [part for mark in marks for pattern in _TOKENS for part in pattern.findall(mark)]
    return frozenset(id for mark in marks if mark and (id := token_id(mark)) is not None)


class Parser:
    """Turns one answer's text into events. `stop_hit` is the stop string that ended the content, or None.

    `tools` are the request's tools (OpenAI-shaped); without them, or with `tools_allowed` False, call marks are text.
    `in_reasoning` says that the prompt already opened the reasoning. `stops` apply to content only.
    """

    def __init__(
        self,
        chat: Chat,
        syntax: ToolSyntax | None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tools_allowed: bool = True,
        in_reasoning: bool = False,
        stops: Sequence[str] = (),
        new_id: Callable[[], str] = call_id,
    ) -> None:
        self._reasoning = chat.reasoning
        allowed = bool(tools and tools_allowed)
        self._channels: channels.ChannelText | None = None
        call_syntax: CallSyntax | None
        if isinstance(syntax, Channels):
            self._channels = channels.ChannelText(syntax, allowed)
            self._reasoning, call_syntax = channels.REASONING, channels.call_syntax(syntax)
        else:
            call_syntax = syntax
        self._syntax = call_syntax if allowed else None
        self._tools = ToolSchemas(tools)
        self._stop = StopStrings(stops)
        self._new_id = new_id
        self._mode = _Mode.REASONING if in_reasoning and self._reasoning else _Mode.CONTENT
        self._events: list[Event] = []
        self._buffer = ""
        self._head = bool(self._syntax or self._reasoning)  # only white space so far in this block
        self._framed = False  # something stood before this block, so its leading newlines are framing
        self._lead = ""  # white space at the head
        self._tail = ""  # newlines that are framing if a mark follows
        self._started = 0
        self._ended = 0
        self._reader: CallReader | None = None
        self._mark = ""  # the opening mark of the call being read
        self._in_reasoning = False  # that call began inside reasoning
        self._raw = ""  # its text, while it may still become prose
        self._arguments = ""  # its arguments that were not shown yet
        self._shown = False

    @property
    def stop_hit(self) -> str | None:
        return self._stop.hit

    def push(self, text: str) -> list[Event]:
        """Takes more text; returns the events that are certain now."""
        self._buffer += text if self._channels is None else self._channels.push(text)
        self._run(final=False)
        return self._taken()

    def finish(self, reason: Literal["stop", "length"]) -> tuple[list[Event], Literal["stop", "length", "tool_calls"]]:
        """The model's text ends here, by itself or cut. Returns the last events and the client's finish reason."""
        if self._channels is not None:
            self._buffer += self._channels.finish()
        self._run(final=True)
        while self._mode is _Mode.CALL:
            self._finish_call(reason)
            self._run(final=True)
        if self._mode is _Mode.REASONING:
            self._emit(ReasoningDelta(self._tail))
        elif self._mode is not _Mode.STOPPED:
            if self._head and not self._framed:
                self._head = False
                self._content(self._lead)
            self._show(self._stop.flush())
            self._emit(ContentDelta(self._tail))
        self._tail = ""
        if reason == "length" and self._stop.hit is None:
            return self._taken(), "length"
        return self._taken(), "tool_calls" if self._ended else "stop"

    def _run(self, final: bool) -> None:
        steps = {
            _Mode.CONTENT: self._read_content,
            _Mode.REASONING: self._read_reasoning,
            _Mode.CALL: self._read_call,
            _Mode.AFTER_CALL: self._read_after_call,
            _Mode.BROKEN_CALL: self._read_broken_call,
            _Mode.STOPPED: self._read_nothing,
        }
        while self._buffer and steps[self._mode](final):
            pass

    # Each reader below takes from the buffer and returns whether the next one can go on at once.

    def _read_content(self, final: bool) -> bool:
        marks = [self._syntax.open] if self._syntax else []
        # Marks that stand for channels are no text that could be quoted, so they count anywhere.
        if self._reasoning and (self._head or self._channels is not None):
            marks += [self._reasoning.open, self._reasoning.close]
        text, mark = self._next(marks, final)
        if text:
            self._content(text)
            return True
        if mark is None:
            return False
        if self._syntax and mark == self._syntax.open:
            self._begin_call(mark, in_reasoning=False)
        else:
            assert self._reasoning is not None
            self._show(self._stop.flush())
            self._new_block(_Mode.REASONING if mark == self._reasoning.open else _Mode.CONTENT)
        return True

    def _read_reasoning(self, final: bool) -> bool:
        assert self._reasoning is not None
        marks = [self._reasoning.close] + ([self._syntax.open] if self._syntax else [])
        if self._head:
            marks.append(self._reasoning.open)
        text, mark = self._next(marks, final)
        if text:
            self._reason(text)
            return True
        if mark is None:
            return False
        if mark == self._reasoning.close:
            self._new_block(_Mode.CONTENT)
        elif self._syntax and mark == self._syntax.open:
            self._begin_call(mark, in_reasoning=True)
        return True

    def _read_call(self, final: bool) -> bool:
        assert self._reader is not None
        if not self._shown:
            self._raw += self._buffer
        self._buffer = self._reader.push(self._buffer)
        return self._follow_call()

    def _read_after_call(self, final: bool) -> bool:
        """Behind a complete call: its closing mark, another call in the same marks, or neither."""
        assert self._syntax is not None
        begins, close = self._syntax.begins, self._syntax.close
        text = self._buffer.lstrip(self._syntax.skips)
        self._buffer = text
        if close and text.startswith(close):
            self._buffer = text.removeprefix(close)
            self._mode = _Mode.CONTENT
        elif text.startswith(begins):
            self._begin_call("", in_reasoning=False)
        elif not final and any(mark.startswith(text) for mark in (close, *begins) if mark):
            return False
        else:
            self._mode = _Mode.CONTENT
        return True

    def _read_broken_call(self, final: bool) -> bool:
        assert self._syntax is not None
        text, mark = self._next([mark for mark in (self._syntax.close, self._syntax.open) if mark], final)
        if text:
            self._content(text)
            return True
        if mark is None:
            return False
        if mark == self._syntax.open:
            self._buffer = mark + self._buffer
        else:
            self._tail = ""
        self._mode = _Mode.CONTENT
        return True

    def _read_nothing(self, final: bool) -> bool:
        self._buffer = ""
        return False

    def _next(self, marks: list[str], final: bool) -> tuple[str, str | None]:
        """Takes the text before the next mark, or the mark if it stands first; ("", None): wait for more."""
        if hit := scan.first(self._buffer, marks):
            i, mark = hit
            text, self._buffer = self._buffer[:i], self._buffer[i + len(mark) * (i == 0) :]
            return text, mark if i == 0 else None
        cut = len(self._buffer) - (0 if final else scan.held(self._buffer, marks))
        text, self._buffer = self._buffer[:cut], self._buffer[cut:]
        return text, None

    def _new_block(self, mode: _Mode) -> None:
        self._mode = mode
        self._head = self._framed = True
        self._lead = self._tail = ""

    def _begin_call(self, mark: str, in_reasoning: bool) -> None:
        assert self._syntax is not None
        self._reader = toolcall.reader(self._syntax, self._tools)
        self._mark, self._in_reasoning = mark, in_reasoning
        self._raw = self._arguments = ""
        self._shown = False
        self._mode = _Mode.CALL

    def _follow_call(self) -> bool:
        """Acts on the state of the call's reader, which has just moved on."""
        assert self._reader is not None
        reader, state = self._reader, self._reader.state
        self._arguments += reader.take()
        if self._in_reasoning:
            undeclared = reader.name is not None and reader.name not in self._tools
            if state in (State.PROSE, State.BROKEN) or undeclared:
                self._call_is_text(_Mode.REASONING)
                return True
            if state is State.READING:
                return False
        if state is State.PROSE:
            self._call_is_text(_Mode.CONTENT)
            return True
        if self._shown or state is State.COMPLETE or len(self._arguments) > GATE:
            self._show_call()
        if state is State.READING:
            return False
        if state is State.COMPLETE:
            self._emit(ToolCallEnd(self._started - 1))
            self._ended += 1
            self._new_block(_Mode.AFTER_CALL)
        else:
            self._call_is_broken()
        return True

    def _finish_call(self, reason: str) -> None:
        """The text ends inside a call."""
        assert self._reader is not None
        if reason == "stop":
            self._reader.finish()
            self._follow_call()
        elif self._in_reasoning:
            self._call_is_text(_Mode.REASONING)
        elif self._reader.name is None:
            self._call_is_broken()
        else:
            self._reader.cut()
            self._arguments += self._reader.take()
            self._show_call()
            self._new_block(_Mode.CONTENT)

    def _show_call(self) -> None:
        """Gives out the call's start, once, and the arguments so far."""
        assert self._reader is not None and self._reader.name is not None
        if not self._shown:
            if not self._in_reasoning:
                self._show(self._stop.flush())
                self._emit(ContentDelta(self._tail[:-1]))
            self._tail = self._lead = self._raw = ""
            self._emit(ToolCallStart(self._started, self._new_id(), self._reader.name))
            self._started += 1
            self._shown = True
        self._emit(ToolCallDelta(self._started - 1, self._arguments))
        self._arguments = ""

    def _call_is_text(self, mode: _Mode) -> None:
        """The opening mark was no mark; what stood behind it is read again."""
        self._mode = mode
        (self._reason if mode is _Mode.REASONING else self._content)(self._mark)
        self._buffer = self._raw

    def _call_is_broken(self) -> None:
        """The text up to the closing mark becomes content. What was already shown of a long call stays cut."""
        assert self._reader is not None
        if self._shown:
            self._reader.cut()
            self._arguments = self._reader.take()
            self._emit(ToolCallDelta(self._started - 1, self._arguments))
            self._head = self._framed = True
        else:
            self._buffer = self._raw.lstrip("\n")
        self._mode = _Mode.BROKEN_CALL

    def _reason(self, text: str) -> None:
        if self._head:
            text = text.lstrip("\n")
            self._head = not text
        self._emit(ReasoningDelta(self._without_tail(text)))

    def _content(self, text: str) -> None:
        if self._head:
            self._lead += text
            if text.isspace():
                return
            text = self._lead.lstrip("\n") if self._framed else self._lead
            self._lead, self._head = "", False
        shown, hit = self._stop.push(text)
        self._show(shown)
        if hit is not None:
            self._emit(ContentDelta(self._tail))
            self._tail = ""
            self._mode = _Mode.STOPPED

    def _show(self, text: str) -> None:
        """Gives out content; newlines at its end wait where a call may follow."""
        self._emit(ContentDelta(self._without_tail(text) if self._syntax else text))

    def _without_tail(self, text: str) -> str:
        text = self._tail + text
        body = text.rstrip("\n")
        self._tail = text[len(body) :]
        return body

    def _emit(self, event: Event) -> None:
        """Adds an event: empty ones are left out, and a delta joins one of its kind before it."""
        if self._channels is not None and isinstance(event, ReasoningDelta | ContentDelta):
            event = type(event)(channels.without_marks(event.text))
        last = self._events[-1] if self._events else None
        match event, last:
            case ((ReasoningDelta(text="") | ContentDelta(text="") | ToolCallDelta(arguments_text="")), _):
                return
            case ReasoningDelta(), ReasoningDelta():
                self._events[-1] = ReasoningDelta(last.text + event.text)
            case ContentDelta(), ContentDelta():
                self._events[-1] = ContentDelta(last.text + event.text)
            case ToolCallDelta(), ToolCallDelta() if last.index == event.index:
                self._events[-1] = ToolCallDelta(event.index, last.arguments_text + event.arguments_text)
            case _:
                self._events.append(event)

    def _taken(self) -> list[Event]:
        events, self._events = self._events, []
        return events
