"""The dialects that spec files name: each is told by its template, and reads what its family writes."""

from __future__ import annotations

import itertools
import json
from functools import cache

import msgspec
import pytest

from ftc.spec.chat import Channels, Chat, ToolSyntax
from ftc.spec.load import build_model
from ftc.text.events import Answer, Assembler
from ftc.text.parser import Parser, mark_ids
from tests import tiny
from tests.zoo import FAMILIES

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
        },
    }
]
EXPECTED = [("weather", {"city": "Oslo", "days": 2})]
JSON = '{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}'
XML = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
    "</function>\n</tool_call>"
)
PAIRS = (
    "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>"
)
HERMES = f"<tool_call>\n{JSON}\n</tool_call>"
THINK = ("<think>", "</think>")


def dsml(outer: str) -> str:
    return (
        f"<｜DSML｜{outer}>\n"
        '<｜DSML｜invoke name="weather">\n'
        '<｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        f"</｜DSML｜{outer}>"
    )


class Example(msgspec.Struct, frozen=True):
    """A text that the family's template holds, a call as the family writes it, and its marks of thinking."""

    family: str
    template: str
    call: str
    thinking: tuple[str, str] | None = None


SECTIONS = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
    '{"city": "Oslo", "days": 2}<|tool_call_end|><|tool_calls_section_end|>'
)
M3 = "]<]minimax[>["
EXAMPLES = {
    "json": Example("qwen3_moe", '{"name": <function-name>, "arguments": <args-json-object>}', HERMES, THINK),
    "xml": Example("qwen3_5_moe_text", "<tool_call>\n<function=example_function_name>", XML, THINK),
    "xml alone": Example("nemotron_h", "<tool_call>\n<function=example_function_name>", XML, THINK),
    "json alone": Example("smollm3", '{"name": <function-name>, "arguments": <args-json-object>}', HERMES, THINK),
    "pairs": Example("glm4_moe", "<arg_key>{arg-key-1}</arg_key>", PAIRS, THINK),
    "pairs, lite": Example("glm4_moe_lite", "<arg_key>{arg-key-1}</arg_key>", PAIRS, THINK),
    "pairs, indexed": Example("glm_moe_dsa", "<arg_key>{arg-key-1}</arg_key>", PAIRS, THINK),
    "pairs, hybrid": Example("bailing_hybrid", "<arg_key>{arg-key-1}</arg_key>", PAIRS, THINK),
    "fenced": Example(
        "deepseek_v3",
        "'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + name + '\\n' + '```json'",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{"city": "Oslo", "days": 2}\n```'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        THINK,
    ),
    "not fenced": Example(
        "deepseek_v3",
        "'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + name + '<｜tool▁sep｜>' + arguments + '<｜tool▁call▁end｜>'",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Oslo", "days": 2}<｜tool▁call▁end｜>'
        "<｜tool▁calls▁end｜>",
        THINK,
    ),
    "sections, kin": Example("deepseek_v3", "<|tool_calls_section_begin|>", SECTIONS, THINK),
    "marked": Example("deepseek_v32", "<｜DSML｜function_calls>", dsml("function_calls"), THINK),
    "marked, newer": Example("deepseek_v4", "<｜DSML｜tool_calls>", dsml("tool_calls"), THINK),
    "sections": Example("kimi_linear", "<|tool_calls_section_begin|>", SECTIONS),
    "invokes": Example(
        "minimax_m2",
        "{%- set toolcall_begin_token = '<minimax:tool_call>' -%}",
        '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Oslo</parameter>\n'
        '<parameter name="days">2</parameter>\n</invoke>\n</minimax:tool_call>',
        THINK,
    ),
    "nested": Example(
        "minimax_m3_vl",
        f"{{%- set ns_token = '{M3}' -%}}",
        f'{M3}<tool_call>\n{M3}<invoke name="weather">{M3}<city>Oslo{M3}</city>{M3}<days>2{M3}</days>{M3}</invoke>\n'
        f"{M3}</tool_call>",
        ("<mm:think>", "</mm:think>"),
    ),
    "channels": Example(
        "gpt_oss",
        "<|start|>assistant<|channel|>commentary to=",
        '<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.weather '
        '<|constrain|>json<|message|>{"city": "Oslo", "days": 2}<|call|>',
    ),
    "recipients": Example(
        "muse_spark",
        "<|start|>assistant to=user<|message|>",
        ' to=self<|message|>Hm.<|eom|><|start|>assistant to=weather<|message|><atem:function_calls>\n'
        '<atem:invoke name="weather">\n<atem:parameter name="city">Oslo</atem:parameter>\n'
        '<atem:parameter name="days">2</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eot|>',
    ),
    "objects": Example(
        "gemma4",
        "<|tool_call>call:",
        '<|tool_call>call:weather{city:<|"|>Oslo<|"|>,days:2}<tool_call|>',
        ("<|channel>thought\n", "<channel|>"),
    ),
    "list": Example(
        "lfm2_moe",
        '"List of tools: <|tool_list_start|>["',
        '<|tool_call_start|>[weather(city="Oslo", days=2)]<|tool_call_end|>',
    ),
    "bare list": Example("llama4_text", "[func_name1(params_name1=params_value1)]", "[weather(city='Oslo', days=2)]"),
    "python tag, newer": Example(
        "llama4_text", "<|python_tag|>", '<|python_tag|>{"name": "weather", "parameters": {"city": "Oslo", "days": 2}}'
    ),
    "python tag": Example(
        "llama", "<|python_tag|>", '<|python_tag|>{"name": "weather", "parameters": {"city": "Oslo", "days": 2}}'
    ),
    "json, kin": Example("llama", "<tool_call>", HERMES),
    "json list": Example("hunyuan_v1_moe", "<tool_calls>", f"<tool_calls>[{JSON}]</tool_calls>", THINK),
    "json list alone": Example("jamba", "<tool_calls>", f"<tool_calls>[\n  {JSON}\n]</tool_calls>"),
    "list behind a mark": Example("granitemoe", "<|tool_call|>", f"<|tool_call|>[{JSON}]"),
    "list behind a mark, hybrid": Example("granitemoehybrid", "<|tool_call|>", f"<|tool_call|>[{JSON}]"),
    "json, hybrid": Example("granitemoehybrid", '{"name": <function-name>', HERMES),
    "calls behind a mark": Example("mixtral", "[TOOL_CALLS]", f"[TOOL_CALLS] [{JSON}]"),
}


@cache
def chat(family: str) -> Chat:
    return build_model(tiny.config(family)).chat


def read(family: str, syntax: ToolSyntax, text: str, step: int) -> Answer:
    ids = (f"call_{i}" for i in itertools.count())
    parser, whole = Parser(chat(family), syntax, TOOLS, new_id=lambda: next(ids)), Assembler()
    for at in range(0, len(text), step):
        whole.push(parser.push(text[at : at + step]))
    events, reason = parser.finish("stop")
    assert reason == "tool_calls"
    whole.push(events)
    return whole.answer()


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_call_as_the_family_writes_it(name: str) -> None:
    example = EXAMPLES[name]
    syntax = chat(example.family).tool_syntax(example.template)
    assert syntax is not None
    before = "" if example.thinking is None else f"{example.thinking[0]}Hm.{example.thinking[1]}"
    for step in (1, 3, 1000):
        answer = read(example.family, syntax, before + example.call, step)
        assert [(call.name, json.loads(call.arguments)) for call in answer.calls] == EXPECTED
        assert answer.content.strip() == ""
        assert answer.reasoning.strip() == ("Hm." if before or isinstance(syntax, Channels) else "")


def test_every_named_dialect_has_an_example() -> None:
    shown: dict[str, set[ToolSyntax]] = {}
    for example in EXAMPLES.values():
        found = build_model(tiny.config(example.family))
        syntax = found.chat.tool_syntax(example.template)
        assert syntax is not None
        shown.setdefault(found.name, set()).add(syntax)
    everywhere = set().union(*shown.values())
    models = [build_model(tiny.config(family)) for family in FAMILIES]
    without = [(m.name, t) for m in models for t in m.chat.tools if t not in everywhere]
    assert not without


def test_tokens_inside_a_mark_are_kept() -> None:
    """The vocabulary holds parts of these marks as special tokens, and would drop them from the text."""
    vocabulary = {"<|channel>": 1, "<channel|>": 2, "<|tool_call>": 3, "<tool_call|>": 4, '<|"|>': 5, "<|turn>": 6}
    found = chat("gemma4")
    assert mark_ids(found, found.tools[0], vocabulary.get) == {1, 2, 3, 4, 5}
    vocabulary = {"｜DSML｜": 1, "<think>": 2, "</think>": 3, "<｜User｜>": 4}
    found = chat("deepseek_v4")
    assert mark_ids(found, found.tools[0], vocabulary.get) == {1, 2, 3}
