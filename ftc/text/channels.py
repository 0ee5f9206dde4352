"""How an answer written as messages on channels becomes text with marks, which the one parser then reads."""

from __future__ import annotations

import msgspec

from ftc.spec.chat import Channels, InvokeTags, Reasoning, SectionCalls
from ftc.text import scan

# Code points that Unicode keeps out of all text, so no model's text can hold them.
REASONING = Reasoning(open="\ufdd0", close="\ufdd1", switch=None)
CALLS = SectionCalls(open="\ufdd2", close="\ufdd4", call_open="", arguments_open="\ufdd3", call_close="", sign="")

_SHOWN = {ord(mark): None for mark in (*CALLS.marks, REASONING.open, REASONING.close) if mark} | {0xFDD3: " "}

# A header is a role, a channel and a recipient; what is longer than this is text behind a forgotten mark.
MAX_HEADER = 256
_SPACE = " \t\r\n"


def call_syntax(syntax: Channels) -> SectionCalls | InvokeTags:
    """What the parser finds calls in."""
    if syntax.calls is None:
        return CALLS
    return msgspec.structs.replace(syntax.calls, open=CALLS.open, close=CALLS.close)


def without_marks(text: str) -> str:
    """Text as it is shown: a call that went wrong is content, its name before its arguments."""
    return text.translate(_SHOWN)


class ChannelText:
    """Translates an answer piece by piece. `calls` False makes the text of a call content."""

    def __init__(self, syntax: Channels, calls: bool) -> None:
        self._syntax, self._calls = syntax, calls
        self._buffer = ""
        self._in_body = False
        self._first = True  # the prompt has begun the header of the first message
        self._close = ""
        self._is_call = False  # the text of this message is a call

    def push(self, text: str) -> str:
        """The text with marks that is certain now."""
        self._buffer += text
        return self._run(final=False)

    def finish(self) -> str:
        """The rest, now that no more is coming; a message that was not ended stays open."""
        return self._run(final=True)

    def _run(self, final: bool) -> str:
        shown = ""
        while self._buffer:
            before = self._buffer
            shown += self._read_body(final) if self._in_body else self._read_header(final)
            if self._buffer == before:
                break
        return shown

    def _read_body(self, final: bool) -> str:
        ends = [mark for mark in (*self._syntax.ends, self._syntax.start, self._syntax.channel) if mark]
        # The tags around calls say no more than the channel does.
        dropped = [self._syntax.calls.open, self._syntax.calls.close] if self._syntax.calls and self._is_call else []
        marks = ends + dropped
        if hit := scan.first(self._buffer, marks):
            i, mark = hit
            text, self._buffer = self._buffer[:i], self._buffer[i:]
            if mark in dropped:
                self._buffer = self._buffer[len(mark) :]
                return text
            if mark in self._syntax.ends:
                self._buffer = self._buffer[len(mark) :]
            closing, self._close = self._close, ""
            self._in_body = self._first = self._is_call = False
            return text + closing
        cut = len(self._buffer) - (0 if final else scan.held(self._buffer, marks))
        text, self._buffer = self._buffer[:cut], self._buffer[cut:]
        return text

    def _read_header(self, final: bool) -> str:
        syntax = self._syntax
        header, end, rest = self._buffer.partition(syntax.message)
        if self._first and not self._may_be_header(header):
            self._in_body = True
            return ""
        if not end:
            if final:
                self._buffer = ""
            elif len(header) > MAX_HEADER:
                self._in_body = True
            return ""
        self._buffer = rest
        self._in_body, self._first = True, False
        return self._open(header)

    def _may_be_header(self, header: str) -> bool:
        """Whether the first text of an answer goes on with the header that the prompt began."""
        text = header.lstrip(_SPACE)
        begins = (self._syntax.channel, self._syntax.start, self._syntax.recipient, *self._syntax.ends)
        return any(text.startswith(mark) or mark.startswith(text) for mark in begins if mark)

    def _open(self, header: str) -> str:
        syntax = self._syntax
        channel = ""
        recipient = header.partition(syntax.recipient)[2]
        if syntax.channel:
            words = header.partition(syntax.channel)[2].replace("<", " <").split()
            channel = words[0] if words else ""
        for mark in filter(None, (syntax.channel, syntax.constrain)):
            recipient = recipient.partition(mark)[0]
        name = (recipient.split() or [""])[0].removeprefix(syntax.prefix)
        if channel in syntax.reasoning or name in syntax.reasoning:
            if not name or name in syntax.reasoning or not self._calls:
                self._close = REASONING.close
                return REASONING.open
        if name and name not in syntax.content and self._calls:
            self._close, self._is_call = CALLS.close, True
            return CALLS.open + (name + CALLS.arguments_open if syntax.calls is None else "")
        return ""
