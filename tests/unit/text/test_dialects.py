"""Every dialect of calls: what was written comes back at any split, and what is no call stays text."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftc.spec.chat import (
    CallList,
    CallObject,
    Channels,
    Chat,
    InvokeTags,
    JsonInTags,
    NestedTags,
    Reasoning,
    SectionCalls,
    TaggedPairs,
    ToolSyntax,
)
from ftc.text.events import Answer, Assembler
from ftc.text.parser import Parser

PREFIXED = InvokeTags(
    open="<｜DSML｜function_calls>",
    close="</｜DSML｜function_calls>",
    invoke_open='<｜DSML｜invoke name="',
    invoke_close="</｜DSML｜invoke>",
    parameter_open='<｜DSML｜parameter name="',
    parameter_close="</｜DSML｜parameter>",
    sign="<｜DSML｜invoke",
)
NAMESPACED = InvokeTags(open="<space:tool_call>", close="</space:tool_call>")
SECTIONS = SectionCalls(
    open="<|calls_begin|>",
    close="<|calls_end|>",
    call_open="<|call_begin|>",
    arguments_open="<|call_argument_begin|>",
    call_close="<|call_end|>",
    sign="<|call_begin|>",
)
FENCED = SectionCalls(
    open="<｜calls▁begin｜>",
    close="<｜calls▁end｜>",
    call_open="<｜call▁begin｜>function<｜sep｜>",
    arguments_open="\n```json\n",
    call_close="\n```<｜call▁end｜>",
    sign="<｜sep｜>",
)
ARGS = SectionCalls(open="[CALLS]", close="", call_open="", arguments_open="[ARGS]", call_close="", sign="[ARGS]")
PYTHONIC = CallList(open="<|call_start|>", close="<|call_end|>", sign="<|call_start|>")
BARE = CallList(open="[", close="]", sign="[func_name1(", declared_only=True)
JSON_LIST = JsonInTags(open="[CALLS]", close="", between="[,]", sign="[CALLS]")
PIPED = JsonInTags(open="<|python_tag|>", close="", arguments_key="parameters", between=";", sign="<|python_tag|>")

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}
    for name, properties in {
        "write": {"path": {"type": "string"}, "text": {"type": "string"}, "mode": {"type": "integer"}},
        "list": {},
        "set": {"value": {}, "items": {"type": ["array", "null"]}, "on": {"type": "boolean"}},
    }.items()
]
Calls = list[tuple[str, dict[str, Any]]]


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def write_invokes(syntax: InvokeTags, calls: Calls, flagged: bool) -> str:
    def parameter(key: str, value: Any) -> str:
        flag = f' string="{str(isinstance(value, str)).lower()}"' if flagged else ""
        return f'{syntax.parameter_open}{key}"{flag}>{text_of(value)}{syntax.parameter_close}\n'

    body = "".join(
        f'{syntax.invoke_open}{name}">\n{"".join(parameter(*pair) for pair in values.items())}{syntax.invoke_close}\n'
        for name, values in calls
    )
    return f"{syntax.open}\n{body}{syntax.close}"


def write_pairs(calls: Calls) -> str:
    def pair(key: str, value: Any) -> str:
        return f"\n<arg_key>{key}</arg_key>\n<arg_value>{text_of(value)}</arg_value>"

    return "\n".join(
        f"<tool_call>{name}{''.join(pair(*one) for one in values.items())}\n</tool_call>" for name, values in calls
    )


def write_sections(syntax: SectionCalls, calls: Calls, prefix: str, numbered: bool) -> str:
    body = "".join(
        f"{syntax.call_open}{prefix}{name}{f':{at}' if numbered else ''}{syntax.arguments_open}"
        f"{json.dumps(values, ensure_ascii=False)}{syntax.call_close}"
        for at, (name, values) in enumerate(calls)
    )
    return syntax.open + body + syntax.close


def write_args(calls: Calls) -> str:
    return "".join(f"[CALLS]{name}[ARGS]{json.dumps(values)}" for name, values in calls)


def write_list(syntax: CallList, calls: Calls) -> str:
    inner = ", ".join(f"{name}({', '.join(f'{k}={v!r}' for k, v in values.items())})" for name, values in calls)
    return f"{syntax.open}{inner}{syntax.close}" if syntax is BARE else f"{syntax.open}[{inner}]{syntax.close}"


def write_json_list(calls: Calls) -> str:
    return "[CALLS] " + json.dumps([{"name": name, "arguments": values} for name, values in calls])


def write_piped(calls: Calls) -> str:
    return "<|python_tag|>" + "; ".join(json.dumps({"name": name, "parameters": values}) for name, values in calls)


def write_objects(calls: Calls) -> str:
    def value(one: Any) -> str:
        if isinstance(one, str):
            return f'<|"|>{one}<|"|>'
        if isinstance(one, list):
            return "[" + ",".join(map(value, one)) + "]"
        return json.dumps(one)

    def call(name: str, values: dict[str, Any]) -> str:
        return f"<|tool_call>call:{name}{{{','.join(f'{k}:{value(v)}' for k, v in values.items())}}}<tool_call|>"

    return "".join(call(*one) for one in calls)


NESTED = NestedTags(
    open="]~[<tool_call>",
    close="]~[</tool_call>",
    invoke_open=']~[<invoke name="',
    invoke_close="]~[</invoke>",
    prefix="]~[",
    sign="]~[<invoke",
)


def write_nested(calls: Calls) -> str:
    def element(key: str, value: Any) -> str:
        if isinstance(value, list) and value:
            value = "".join(element("item", one) for one in value)
        elif isinstance(value, dict) and value:
            value = "".join(element(*one) for one in value.items())
        return f"]~[<{key}>{text_of(value)}]~[</{key}>"

    body = "".join(
        f'\n]~[<invoke name="{name}">{"".join(element(*one) for one in values.items())}]~[</invoke>'
        for name, values in calls
    )
    return f"]~[<tool_call>{body}\n]~[</tool_call>"


DIALECTS: dict[str, tuple[ToolSyntax, Callable[[Calls], str]]] = {
    "invoke tags, flagged": (PREFIXED, lambda calls: write_invokes(PREFIXED, calls, True)),
    "invoke tags": (NAMESPACED, lambda calls: write_invokes(NAMESPACED, calls, False)),
    "tagged pairs": (TaggedPairs(), write_pairs),
    "sections": (SECTIONS, lambda calls: write_sections(SECTIONS, calls, "functions.", True)),
    "fenced sections": (FENCED, lambda calls: write_sections(FENCED, calls, "", False)),
    "name and arguments": (ARGS, write_args),
    "call list": (PYTHONIC, lambda calls: write_list(PYTHONIC, calls)),
    "bare call list": (BARE, lambda calls: write_list(BARE, calls)),
    "objects with marked texts": (CallObject(), write_objects),
    "nested tags": (NESTED, write_nested),
    "list of objects": (JSON_LIST, write_json_list),
    "objects behind a mark": (PIPED, write_piped),
}
BY_NAME = pytest.mark.parametrize("name", DIALECTS)


def parse(text: str, syntax: ToolSyntax, cuts: Any = (), end: str = "stop", **options: Any) -> tuple[Answer, str]:
    ids = (f"call_{i}" for i in itertools.count())
    chat = Chat(reasoning=None if isinstance(syntax, Channels) else Reasoning())
    parser = Parser(chat, syntax, **{"tools": TOOLS, **options}, new_id=lambda: next(ids))
    whole = Assembler()
    for a, b in itertools.pairwise([0, *sorted(cuts), len(text)]):
        whole.push(parser.push(text[a:b]))
    events, reason = parser.finish(end)  # type: ignore[arg-type]
    whole.push(events)
    return whole.answer(), reason


def every_split(text: str) -> list[Any]:
    by_size = [range(size, len(text), size) for size in range(1, 6)]
    return [(), *by_size, *([at] for at in range(1, len(text)))]


PIECES = [
    "<", "</", ">", "call", "arg", "_value", "{", "}", '"', "\\", ":", ",", "\n", " ", "a", "1", "é", "😀", "\t", "'", "(",
    ")", "[", "]"]  # fmt: skip
words = st.lists(st.sampled_from(PIECES), max_size=10).map("".join)
plain_prose = st.lists(st.sampled_from(["So", " then", "\n", ", ", "a < b", "é"]), min_size=1, max_size=6).map("".join)
calls_of_any_kind = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.fixed_dictionaries({"path": words, "text": words, "mode": st.integers()})),
        st.tuples(st.just("list"), st.just({})),
        st.tuples(st.just("set"), st.fixed_dictionaries({"items": st.none() | st.lists(st.integers()), "on": st.booleans()})),
    ),
    min_size=1,
    max_size=3,
)


@BY_NAME
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_split_gives_what_was_written(name: str, data: st.DataObject) -> None:
    syntax, write = DIALECTS[name]
    calls = data.draw(calls_of_any_kind)
    reasoning = data.draw(st.none() | plain_prose.filter(str.strip))
    prose = data.draw(st.just("") | plain_prose.filter(str.strip))
    text = (f"<think>\n{reasoning}\n</think>\n\n" if reasoning else "") + prose + ("\n" if prose else "") + write(calls)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    answer, reason = parse(text, syntax, cuts)
    assert [(call.name, json.loads(call.arguments)) for call in answer.calls] == calls
    assert answer.content.strip("\n") == prose.strip("\n")
    assert answer.reasoning.strip("\n") == (reasoning or "").strip("\n")
    assert reason == "tool_calls" and all(call.complete for call in answer.calls)


@BY_NAME
def test_every_single_split_and_a_tail(name: str) -> None:
    syntax, write = DIALECTS[name]
    calls: Calls = [("write", {"path": "a b", "text": "x\ny", "mode": 3}), ("list", {})]
    text = "Look.\n" + write(calls)
    seen = {parse(text, syntax, cuts)[0] for cuts in every_split(text)}
    assert len(seen) == 1
    (answer,) = seen
    assert [(call.name, json.loads(call.arguments)) for call in answer.calls] == calls
    assert answer.content == "Look."


@BY_NAME
def test_a_cut_anywhere_is_no_complete_call(name: str) -> None:
    syntax, write = DIALECTS[name]
    text = write([("write", {"path": "a", "text": "b" * 20, "mode": 31})])
    for end in range(len(text)):
        answer, reason = parse(text[:end], syntax, end="length")
        assert reason == "length"
        for call in answer.calls:
            if not call.complete:
                with pytest.raises(ValueError):
                    json.loads(call.arguments)


@BY_NAME
def test_an_undeclared_name_is_passed_on_unless_the_marks_are_prose(name: str) -> None:
    syntax, write = DIALECTS[name]
    answer, _ = parse(write([("other", {"k": "v"})]), syntax)
    expected = [] if syntax is BARE else [("other", {"k": "v"})]
    assert [(call.name, json.loads(call.arguments)) for call in answer.calls] == expected
    if syntax is BARE:
        assert answer.content == "[other(k='v')]"


@BY_NAME
def test_without_tools_or_where_calls_are_forbidden_all_is_text(name: str) -> None:
    syntax, write = DIALECTS[name]
    text = write([("list", {})])
    for options in ({"tools": None}, {"tools_allowed": False}):
        answer, reason = parse(text, syntax, **options)
        assert (answer.content, answer.calls, reason) == (text, (), "stop")


@BY_NAME
def test_a_mark_in_prose_is_prose(name: str) -> None:
    syntax, _ = DIALECTS[name]
    assert not isinstance(syntax, Channels)
    for text in (f"the mark {syntax.open} is written so", f"see {syntax.open}", f"{syntax.open[:-1]} only"):
        for cuts in every_split(text):
            answer, reason = parse(text, syntax, cuts)
            assert answer.calls == () and reason == "stop"
            shown = answer.content.replace(syntax.open, "").split()
            assert shown == text.replace(syntax.open, "").split()


@BY_NAME
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_noise_never_depends_on_the_split(name: str, data: st.DataObject) -> None:
    syntax, write = DIALECTS[name]
    assert not isinstance(syntax, Channels)
    whole = write([("write", {"text": "a", "mode": 1})])
    bits = [*PIECES, *filter(None, syntax.marks), *syntax.begins[:1], "write", "<think>", "</think>", whole]
    bits += [whole[at : at + 9] for at in range(0, len(whole), 9)]
    text = "".join(data.draw(st.lists(st.sampled_from(bits), max_size=12)))
    end = data.draw(st.sampled_from(["stop", "length"]))
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    assert parse(text, syntax, (), end) == parse(text, syntax, cuts, end)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('string="true">5<', "5"),
        ('string="false">5<', 5),
        ('string="false">{"a": [1, "x"]}<', {"a": [1, "x"]}),
        ('string="false">"text"<', "text"),
        ('string="false">no json<', "no json"),
        ("string=\"true\">\nline\n<", "\nline\n"),
        (">5<", "5"),
    ],
)  # fmt: skip
def test_the_flag_of_a_value_decides_its_type(written: str, expected: Any) -> None:
    value = written.rstrip("<")
    gap = "" if written.startswith(">") else " "
    text = f'{PREFIXED.open}{PREFIXED.invoke_open}odd">{PREFIXED.parameter_open}k"{gap}{value}'
    text += f"{PREFIXED.parameter_close}{PREFIXED.invoke_close}{PREFIXED.close}"
    answer, _ = parse(text, PREFIXED)
    assert json.loads(answer.calls[0].arguments) == {"k": expected}


def test_values_of_pairs_that_no_schema_declares_are_loose() -> None:
    answer, _ = parse(write_pairs([("odd", {"n": 5, "t": "text", "o": {"a": 1}})]), TaggedPairs())
    assert json.loads(answer.calls[0].arguments) == {"n": 5, "t": "text", "o": {"a": 1}}
    answer, _ = parse(write_pairs([("write", {"text": "5"})]), TaggedPairs())
    assert json.loads(answer.calls[0].arguments) == {"text": "5"}


def test_a_string_value_may_hold_tags() -> None:
    value = "see <arg_value>x</arg_value> and </tool_call> so"
    answer, _ = parse(write_pairs([("write", {"text": value})]), TaggedPairs())
    assert json.loads(answer.calls[0].arguments) == {"text": value}


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("f(a=1, b=-2.5, c='x', d=\"it's\", e=True, g=None)", {"a": 1, "b": -2.5, "c": "x", "d": "it's", "e": True, "g": None}),
        ("f(a=[1, (2, 3)], b={'k': {'n': []}})", {"a": [1, [2, 3]], "b": {"k": {"n": []}}}),
        ("f(a=true, b=null, c='a)b]c')", {"a": True, "b": None, "c": "a)b]c"}),
        ("f(a='two\nlines', b='\\n\\\\')", {"a": "two\nlines", "b": "\n\\"}),
        ("f()", {}),
    ],
)  # fmt: skip
def test_literals_of_a_call_list(call: str, expected: dict[str, Any]) -> None:
    answer, _ = parse(f"<|call_start|>[{call}]<|call_end|>", PYTHONIC)
    assert json.loads(answer.calls[0].arguments) == expected


@pytest.mark.parametrize(
    "text", ["[1] and [2]", "[a link](http://x)", "[list(1)]", "[f(x=g(1))]", "[list(x=__import__('os'))]", "[[list]"]
)
def test_brackets_that_are_no_call(text: str) -> None:
    answer, _ = parse(text, BARE)
    assert (answer.content, answer.calls) == (text, ())


@pytest.mark.parametrize(
    ("text", "syntax"),
    [
        ('<|call_start|>[f(a="x\\ud800")]<|call_end|>', PYTHONIC),
        ('<tool_call>{"name": "f", "arguments": {"a": "x\\ud800"}}</tool_call>', JsonInTags()),
        ('<tool_call>{"name": "f\\ud800", "arguments": {}}</tool_call>', JsonInTags()),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"\\ud800\\"}"}</tool_call>', JsonInTags()),
    ],
)
def test_half_a_character_never_leaves_its_escape(text: str, syntax: ToolSyntax) -> None:
    answer, _ = parse(text, syntax)
    "".join([answer.content, *(call.name + call.arguments for call in answer.calls)]).encode()
    assert answer.content or json.loads(answer.calls[0].arguments) == {"a": "x\ud800"}


def test_nested_values() -> None:
    values = {"o": {"a": 1, "t": "x", "deep": {"l": [1, 2]}}, "l": [{"k": "v"}, {"k": "w"}], "n": 5}
    answer, _ = parse(write_nested([("odd", values)]), NESTED)
    assert json.loads(answer.calls[0].arguments) == values
    text = '<|tool_call>call:odd{o:{<|"|>a b<|"|>:[true,{x:null}]},t:<|"|>}<|"|>}<tool_call|>'
    answer, _ = parse(text, CallObject())
    assert json.loads(answer.calls[0].arguments) == {"o": {"a b": [True, {"x": None}]}, "t": "}"}


@pytest.mark.parametrize("text", ["call:odd{a:}", "call:odd{a 1}", "call:odd{:1}", "call:odd{a:[1}}"])
def test_a_broken_object_is_content(text: str) -> None:
    answer, reason = parse(f"<|tool_call>{text}<tool_call|>", CallObject())
    assert (answer.content, answer.calls, reason) == (text, (), "stop")
