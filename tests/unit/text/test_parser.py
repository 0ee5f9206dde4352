"""What was written comes back as events at any split, and noise never breaks the parser."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ftc.spec.chat import Chat, JsonInTags, Reasoning, ToolSyntax, XmlFunctions
from ftc.text.events import Answer, Assembler, ContentDelta, ReasoningDelta, ToolCallDelta, ToolCallEnd, ToolCallStart
from ftc.text.parser import GATE, Parser, call_id, starts_in_reasoning

CHAT = Chat(reasoning=Reasoning())
SYNTAXES = [JsonInTags(), XmlFunctions()]
BY_NAME = pytest.mark.parametrize("syntax", SYNTAXES, ids=["json", "xml"])
MARKS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
TAGS = ("<function=", "</function>", "<parameter=", "</parameter>")
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}
    for name, properties in {
        "write": {"path": {"type": "string"}, "text": {"type": "string"}, "mode": {"type": "integer"}},
        "list": {},
        "set": {"value": {}, "items": {"type": ["array", "null"]}, "on": {"type": "boolean"}},
    }.items()
]


def parse(text: str, syntax: ToolSyntax | None, cuts: Any = (), end: str = "stop", **options: Any) -> tuple[Answer, str]:
    """The answer and finish reason for `text` cut at the positions `cuts`."""
    ids = (f"call_{i}" for i in itertools.count())
    parser = Parser(CHAT, syntax, **{"tools": TOOLS, **options}, new_id=lambda: next(ids))
    whole = Assembler()
    for a, b in itertools.pairwise([0, *sorted(cuts), len(text)]):
        whole.push(parser.push(text[a:b]))
    events, reason = parser.finish(end)  # type: ignore[arg-type]
    whole.push(events)
    return whole.answer(), reason


def xml(name: str, arguments: dict[str, Any]) -> str:
    values = {key: value if isinstance(value, str) else json.dumps(value) for key, value in arguments.items()}
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def in_json(name: str, arguments: dict[str, Any], ascii: bool = False) -> str:
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=ascii)
    return f"<tool_call>\n{call}\n</tool_call>"


FRAGMENTS = [
    "<", "</", ">", "tool", "_call", "think", "function=", "param", "eter", "{", "}", '"', "\\", ":", ",", "\n",
    " ", "a", "b1", "é", "😀", "\t"]  # fmt: skip
loose_text = st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join)
prose = loose_text.filter(lambda text: text.strip() and not any(mark in text for mark in MARKS + TAGS))
any_json = st.recursive(st.none() | st.booleans() | st.integers() | loose_text, lambda x: st.lists(x, max_size=3), max_leaves=5)
json_calls = st.tuples(
    st.sampled_from(["write", "list", "other"]),
    st.dictionaries(loose_text, any_json | st.sampled_from(MARKS) | st.just("x" * 2 * GATE), max_size=3),
)
xml_calls = st.one_of(
    st.tuples(st.just("write"), st.fixed_dictionaries({"path": loose_text, "text": loose_text, "mode": st.integers()})),
    st.tuples(st.just("list"), st.just({})),
    st.tuples(st.just("set"), st.fixed_dictionaries({"items": st.none() | st.lists(st.integers()), "on": st.booleans()})),
    st.tuples(st.just("other"), st.fixed_dictionaries({"k": loose_text | st.just("y" * 2 * GATE)})),
)


@BY_NAME
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_split_gives_what_was_written(syntax: ToolSyntax, data: st.DataObject) -> None:
    reasoning, content = data.draw(st.none() | prose), data.draw(st.none() | prose)
    calls = data.draw(st.lists(json_calls if isinstance(syntax, JsonInTags) else xml_calls, max_size=3))
    opened = reasoning is not None and data.draw(st.booleans())
    text = ""
    if reasoning is not None:
        text += ("" if opened else "<think>\n") + f"{reasoning}\n</think>\n\n"
    if content is not None:
        text += content
    for name, arguments in calls:
        text += "\n" if text else ""
        text += xml(name, arguments) if isinstance(syntax, XmlFunctions) else in_json(name, arguments, data.draw(st.booleans()))
    if not isinstance(syntax, JsonInTags):
        assume(sum(text.count(mark) for mark in MARKS[:2]) == 2 * len(calls))
        assume(text.count("</parameter>") == sum(len(arguments) for _, arguments in calls))
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8))

    answer, reason = parse(text, syntax, cuts, in_reasoning=opened)
    assert answer.reasoning == (reasoning or "").strip("\n")
    expected = content or ""
    if reasoning is not None:
        expected = expected.lstrip("\n")
    assert answer.content == (expected.rstrip("\n") + "\n" * (len(expected) - len(expected.rstrip("\n"))))
    assert [(call.name, json.loads(call.arguments), call.complete) for call in answer.calls] == [
        (name, arguments, True) for name, arguments in calls
    ]
    assert reason == ("tool_calls" if calls else "stop")
    assert (answer, reason) == parse(text, syntax, range(len(text)), in_reasoning=opened)


NOISE = [
    *MARKS, *TAGS, *FRAGMENTS, "<parameter=path>", "<function=write>", '{"name": "write", "arguments": {', '"text": "',
    "STOP", "x" * (GATE - 3), '{"name": "list", "arguments": {}}', "<function=list>\n</function>", "</parameter>\n",
    '"arguments": "{}"', '"path"', "true", "1.5",
]  # fmt: skip


@BY_NAME
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    text=st.lists(st.sampled_from(NOISE), max_size=14).map("".join),
    end=st.sampled_from(["stop", "length"]),
    opened=st.booleans(),
    data=st.data(),
)
def test_noise_never_depends_on_the_split(syntax: ToolSyntax, text: str, end: str, opened: bool, data: st.DataObject) -> None:
    options: dict[str, Any] = {
        "in_reasoning": opened,
        "stops": data.draw(st.sampled_from([(), ("STOP",), ("\n", "a{")])),
    }
    whole = parse(text, syntax, (), end, **options)
    assert whole == parse(text, syntax, range(len(text)), end, **options)
    assert whole == parse(text, syntax, data.draw(st.lists(st.integers(0, len(text)), max_size=6)), end, **options)
    for call in whole[0].calls:
        if call.complete:
            assert isinstance(json.loads(call.arguments), dict)
        else:
            with pytest.raises(ValueError):
                json.loads(call.arguments)


@settings(max_examples=100, deadline=None)
@given(text=st.lists(st.sampled_from(NOISE), max_size=14).map("".join), opened=st.booleans())
def test_without_calls_and_at_any_split_no_letter_is_lost(text: str, opened: bool) -> None:
    answer, _ = parse(text, JsonInTags(), (), tools=None, in_reasoning=opened)
    shown = answer.reasoning + answer.content
    for mark in ("<think>", "</think>"):
        shown, text = shown.replace(mark, ""), text.replace(mark, "")
    assert "".join(shown.split()) == "".join(text.split())


def test_arguments_stream_as_the_models_own_text() -> None:
    parser = Parser(CHAT, JsonInTags(), TOOLS)
    parser.push('<tool_call>\n{"name": "write", "arguments": {"text":   "' + "a" * GATE)
    assert parser.push("bcd") == [ToolCallDelta(0, "bcd")]
    assert parser.push("\\") == [ToolCallDelta(0, "\\")]
    assert parser.push('n"}') == [ToolCallDelta(0, 'n"')]
    (last, *_) = parser.push("}")
    assert last == ToolCallDelta(0, "}")


def test_string_values_stream_and_others_wait() -> None:
    parser = Parser(CHAT, XmlFunctions(), TOOLS)
    events = parser.push("<tool_call>\n<function=write>\n<parameter=text>\n" + "a" * GATE)
    assert isinstance(events[0], ToolCallStart) and events[1:] == [ToolCallDelta(0, '{"text": "' + "a" * GATE)]
    assert parser.push('"\n') == [ToolCallDelta(0, '\\"')]
    assert parser.push("</para") == []
    assert parser.push("graph>\n") == [ToolCallDelta(0, "\\n</paragraph>")]
    assert parser.push("</parameter>\n<parameter=mode>\n1") == [ToolCallDelta(0, '", "mode": ')]
    assert parser.push("2\n</parameter>\n<") == []
    assert parser.push("/function>") == [ToolCallDelta(0, "12}"), ToolCallEnd(0)]


def test_a_short_call_is_shown_whole_and_a_broken_one_never() -> None:
    parser = Parser(CHAT, JsonInTags(), TOOLS)
    assert parser.push('<tool_call>{"name": "write", "arguments": {"text": "abc"') == []
    assert len(parser.push("}}")) == 3


def test_what_was_shown_of_a_long_broken_call_stays_cut() -> None:
    text = '<tool_call>\n{"name": "write", "arguments": {"text": "' + "a" * (GATE + 1) + '" oops}}\n</tool_call>\nBye'
    answer, reason = parse(text, JsonInTags())
    assert not answer.calls[0].complete and reason == "stop"
    assert answer.content == "oops}}\nBye"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a</parameter>b", "a</parameter>b"),
        ("see </tool_call> there", "see </tool_call> there"),
        ("<parameter=x>\ny", "<parameter=x>\ny"),
        ("x <parameter=mode>", "x <parameter=mode>"),
        ("</function>\nmore", "</function>\nmore"),
        ("\n\nkept\n", "\n\nkept\n"),
        ("", ""),
        ("123", "123"),
    ],
)
def test_a_string_value_may_hold_tags(value: str, expected: str) -> None:
    text = xml("write", {"text": value, "path": "p"})
    for cuts in ((), range(len(text))):
        answer, _ = parse(text, XmlFunctions(), cuts)
        assert json.loads(answer.calls[0].arguments) == {"text": expected, "path": "p"}


def test_an_unclosed_value_ends_before_the_next_declared_parameter() -> None:
    text = "<tool_call>\n<function=write>\n<parameter=path>\na.txt\n<parameter=text>\nhi\n</tool_call>"
    answer, reason = parse(text, XmlFunctions())
    assert json.loads(answer.calls[0].arguments) == {"path": "a.txt", "text": "hi"} and reason == "tool_calls"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [('"{\\"path\\": 1}"', '{"path": 1}'), ("null", "{}"), ('""', "{}"), ("{}", "{}"), ('{ "a":1 }', '{ "a":1 }')],
)
def test_arguments_in_other_shapes(arguments: str, expected: str) -> None:
    for call in (
        f'{{"name": "write", "arguments": {arguments}}}',
        f'{{"arguments": {arguments}, "id": 1, "name": "write"}}',
    ):
        answer, _ = parse(f"<tool_call>{call}</tool_call>", JsonInTags())
        assert [(c.name, c.arguments) for c in answer.calls] == [("write", expected)]


@pytest.mark.parametrize("arguments", ["[1]", "5", '"text"', "{'a': 1}", '{"a": 01}', '{"a": NaN}', '{"a": "\n"}', '{"a" 1}'])
def test_arguments_that_are_no_object_become_content(arguments: str) -> None:
    call = f'{{"name": "write", "arguments": {arguments}}}'
    answer, reason = parse(f"<tool_call>\n{call}\n</tool_call>", JsonInTags())
    assert answer == Answer(call, "", ()) and reason == "stop"


def test_slips_around_a_complete_call_are_forgiven() -> None:
    call = '{"name": "list", "arguments": {}}'
    for text in (f"<tool_call>{call}}}</tool_call>", f"<tool_call>{call}", f"<tool_call>{call}\n{call}</tool_call>",
                 f"<tool_call>{call}<tool_call>{call}</tool_call>"):  # fmt: skip
        answer, reason = parse(text, JsonInTags())
        assert len(answer.calls) == text.count("name") and answer.content == "" and reason == "tool_calls"


def test_a_mark_in_prose_is_prose() -> None:
    text = "Write <tool_call> before a call and <think> before thoughts."
    assert parse(text, JsonInTags())[0].content == text


def test_only_a_whole_call_to_a_declared_tool_ends_the_reasoning() -> None:
    for inner in ("<tool_call> is a tag.", in_json("other", {}), '<tool_call>\n{"name": "write", '):
        answer, _ = parse(f"Hm, {inner} ok\n</think>\n\nDone", JsonInTags(), in_reasoning=True)
        assert answer == Answer("Done", f"Hm, {inner} ok", ())


def test_stop_strings_are_for_content_only() -> None:
    text = "STOP\n</think>\n\nab" + in_json("write", {"text": "STOP"}) + "\nc STOP d"
    answer, reason = parse(text, JsonInTags(), in_reasoning=True, stops=["STOP"])
    assert answer.reasoning == "STOP" and answer.content == "abc " and len(answer.calls) == 1
    assert reason == "tool_calls"


def test_held_text_is_given_out_at_once_when_it_is_no_mark() -> None:
    parser = Parser(CHAT, JsonInTags(), TOOLS)
    assert parser.push("abc <thi") == [ContentDelta("abc <thi")]
    assert parser.push("<tool") == []
    assert parser.push("s") == [ContentDelta("<tools")]
    assert parser.push("\n") == []
    assert parser.finish("stop") == ([ContentDelta("\n")], "stop")


def test_reasoning_opened_by_the_model_and_again() -> None:
    assert parse("<think>\n\na\n</think>\n\nb", None)[0] == Answer("b", "a", ())
    assert parse("<think>a</think>b", None, in_reasoning=True)[0] == Answer("b", "a", ())
    assert parse("</think>\n\nb", JsonInTags())[0] == Answer("b", "", ())


def test_reasoning_is_shown_while_it_arrives() -> None:
    parser = Parser(CHAT, None, in_reasoning=True)
    assert parser.push("one") == [ReasoningDelta("one")]
    assert parser.push(" <") == [ReasoningDelta(" ")]
    assert parser.finish("length") == ([ReasoningDelta("<")], "length")


def test_whether_the_prompt_opened_the_reasoning() -> None:
    assert starts_in_reasoning(CHAT, "user: <think>\nassistant:\n<think>\n")
    assert not starts_in_reasoning(CHAT, "assistant\n<think>\n\n</think>\n\n")
    assert not starts_in_reasoning(Chat(), "<think>\n")


def test_call_ids_are_random() -> None:
    ids = {call_id() for _ in range(100)}
    assert len(ids) == 100 and all(id.startswith("call_") and len(bytes.fromhex(id[5:])) == 12 for id in ids)
