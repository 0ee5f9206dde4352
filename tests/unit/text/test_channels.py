"""An answer written as messages on channels: what is thinking, what is content, what is a call, at any split."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from ftc.spec.chat import Channels, Chat, InvokeTags
from ftc.text.events import Answer, Assembler, ToolCallEnd
from ftc.text.parser import Parser

Calls = list[tuple[str, dict[str, Any]]]
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("list", "set", "write")
]


def parse(text: str, syntax: Channels, cuts: Any = (), end: str = "stop", **options: Any) -> tuple[Answer, str]:
    parser = Parser(Chat(), syntax, **{"tools": TOOLS, **options}, new_id=lambda: "call")
    whole = Assembler()
    for a, b in itertools.pairwise([0, *sorted(cuts), len(text)]):
        whole.push(parser.push(text[a:b]))
    events, reason = parser.finish(end)  # type: ignore[arg-type]
    whole.push(events)
    return whole.answer(), reason


def every_split(text: str) -> list[Any]:
    by_size = [range(size, len(text), size) for size in range(1, 6)]
    return [(), *by_size, *([at] for at in range(1, len(text)))]


HEAD = "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{HEAD}<|channel|>final<|message|>Hi.<|return|>", ("Think.", "Hi.", [])),
        (f"{HEAD}<|channel|>final<|message|>Hi.", ("Think.", "Hi.", [])),
        ("Just text.", ("", "Just text.", [])),
        ("<|channel|>final<|message|>A<|end|><|start|>assistant<|channel|>analysis<|message|>B<|end|>", ("B", "A", [])),
        (f"{HEAD} to=functions.list<|channel|>commentary json<|message|>{{}}<|call|>", ("Think.", "", [("list", {})])),
        (f"{HEAD}<|channel|>commentary<|message|>Now.<|end|><|start|>assistant<|channel|>commentary to=functions.write "
         '<|constrain|>json<|message|>{"path": "a"}<|call|>', ("Think.", "Now.", [("write", {"path": "a"})])),
        ('<|channel|>commentary to=functions.list<|message|>{}<|call|><|start|>assistant<|channel|>commentary '
         'to=functions.set<|message|>{"on": true}', ("", "", [("list", {}), ("set", {"on": True})])),
        ('<|channel|>commentary to=functions.list<|message|>{broken<|call|>', ("", "list {broken", [])),
    ],
)  # fmt: skip
def test_channels(text: str, expected: tuple[str, str, Calls]) -> None:
    for cuts in every_split(text):
        answer, reason = parse(text, Channels(), cuts)
        calls = [(call.name, json.loads(call.arguments)) for call in answer.calls]
        assert (answer.reasoning, answer.content.strip(), calls) == expected
        assert reason == ("tool_calls" if calls else "stop")
        assert not any(
            "<|" in field or "\ufdd0" <= mark <= "\ufdd4" for field in (answer.reasoning, answer.content) for mark in field
        )


def test_a_call_on_a_channel_without_tools_is_content() -> None:
    text = '<|channel|>commentary to=functions.list<|message|>{"a": 1}<|call|>'
    answer, reason = parse(text, Channels(), tools=None)
    assert (answer.content, answer.calls, reason) == ('{"a": 1}', (), "stop")


def test_channels_cut_by_the_token_limit() -> None:
    answer, reason = parse("<|channel|>analysis<|message|>Thinking of", Channels(), end="length")
    assert (answer.reasoning, answer.content, reason) == ("Thinking of", "", "length")
    text = '<|channel|>commentary to=functions.write<|message|>{"path": "a'
    answer, reason = parse(text, Channels(), end="length")
    assert reason == "length" and [call.complete for call in answer.calls] == [False]


def test_stop_strings_hold_on_channels() -> None:
    parser = Parser(Chat(), Channels(), TOOLS, stops=["STOP"])
    events = parser.push(
        "<|channel|>analysis<|message|>no STOP here<|end|><|start|>assistant<|channel|>final<|message|>a STOP b"
    )
    whole = Assembler()
    whole.push(events + parser.finish("stop")[0])
    assert (whole.answer().reasoning, whole.answer().content) == ("no STOP here", "a ")
    assert parser.stop_hit == "STOP" and not any(isinstance(event, ToolCallEnd) for event in events)


TAGS = InvokeTags(
    open="<x:function_calls>",
    close="</x:function_calls>",
    invoke_open='<x:invoke name="',
    invoke_close="</x:invoke>",
    parameter_open='<x:parameter name="',
    parameter_close="</x:parameter>",
)
BY_RECIPIENT = Channels(
    channel="", constrain="", ends=("<|eot|>",), reasoning=("self",), content=("user",), calls=TAGS, sign="<|eot|>"
)
CALL = (
    '<x:function_calls>\n<x:invoke name="write">\n<x:parameter name="path">a <b\n</x:parameter>\n</x:invoke>\n'
    '<x:invoke name="list">\n</x:invoke>\n</x:function_calls>'
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" to=self<|message|>Think.<|eot|><|start|>assistant to=user<|message|>Hi.<|eot|>", ("Think.", "Hi.", [])),
        (f" to=self<|message|>Think.<|eot|><|start|>assistant to=files<|message|>{CALL}<|eot|>",
         ("Think.", "", [("write", {"path": "a <b\n"}), ("list", {})])),
        (f" to=files<|message|>{CALL}", ("", "", [("write", {"path": "a <b\n"}), ("list", {})])),
        (f" to=user<|message|>{CALL}<|eot|>", ("", CALL, [])),
    ],
)  # fmt: skip
def test_calls_in_tags_count_only_where_a_tool_is_spoken_to(text: str, expected: tuple[str, str, Calls]) -> None:
    for cuts in every_split(text):
        answer, reason = parse(text, BY_RECIPIENT, cuts)
        calls = [(call.name, json.loads(call.arguments)) for call in answer.calls]
        assert (answer.reasoning, answer.content.strip(), calls) == expected
        assert reason == ("tool_calls" if calls else "stop")
