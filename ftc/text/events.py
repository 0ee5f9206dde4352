"""What a model's text means to a client, piece by piece, and how the pieces fold into a whole answer."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class ReasoningDelta(msgspec.Struct, frozen=True):
    """More of the thinking."""

    text: str


class ContentDelta(msgspec.Struct, frozen=True):
    """More of the visible answer."""

    text: str


class ToolCallStart(msgspec.Struct, frozen=True):
    """A call begins; `index` counts the calls of one answer from 0."""

    index: int
    id: str
    name: str


class ToolCallDelta(msgspec.Struct, frozen=True):
    """More of a call's arguments, as JSON text."""

    index: int
    arguments_text: str


class ToolCallEnd(msgspec.Struct, frozen=True):
    """The call's arguments are complete: one valid JSON object. A call without an end was cut."""

    index: int


Event = ReasoningDelta | ContentDelta | ToolCallStart | ToolCallDelta | ToolCallEnd


def joined(events: Iterable[Event]) -> list[Event]:
    """The events with neighbours of one kind as one."""
    found: list[Event] = []
    for one in events:
        match found[-1] if found else None, one:
            case ContentDelta(before), ContentDelta(text):
                found[-1] = ContentDelta(before + text)
            case ReasoningDelta(before), ReasoningDelta(text):
                found[-1] = ReasoningDelta(before + text)
            case ToolCallDelta(index, before), ToolCallDelta(same, text) if index == same:
                found[-1] = ToolCallDelta(index, before + text)
            case _:
                found.append(one)
    return found


class Call(msgspec.Struct, frozen=True):
    """One call of a whole answer; `arguments` is JSON text, `complete` is False for a call that was cut."""

    id: str
    name: str
    arguments: str
    complete: bool


class Answer(msgspec.Struct, frozen=True):
    """A whole answer; fields that had no text are empty."""

    content: str
    reasoning: str
    calls: tuple[Call, ...]


class Assembler:
    """Folds events, in the order the parser gave them, into one Answer."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._starts: list[ToolCallStart] = []
        self._arguments: list[list[str]] = []
        self._ended: set[int] = set()

    def push(self, events: Iterable[Event]) -> None:
        """Takes the next events."""
        for event in events:
            match event:
                case ContentDelta():
                    self._content.append(event.text)
                case ReasoningDelta():
                    self._reasoning.append(event.text)
                case ToolCallStart():
                    self._starts.append(event)
                    self._arguments.append([])
                case ToolCallDelta():
                    self._arguments[event.index].append(event.arguments_text)
                case ToolCallEnd():
                    self._ended.add(event.index)

    def answer(self) -> Answer:
        """The answer so far."""
        calls = tuple(
            Call(start.id, start.name, "".join(self._arguments[start.index]), start.index in self._ended)
            for start in self._starts
        )
        return Answer("".join(self._content), "".join(self._reasoning), calls)
