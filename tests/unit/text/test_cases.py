"""The recorded cases hold for every split of their text (rules S1 to S4 of tests/data/cases/README.md)."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ftc.spec.chat import Channels, Chat, JsonInTags, Reasoning, XmlFunctions
from ftc.text.detokenize import Detokenizer
from ftc.text.events import Answer, Assembler, ContentDelta, Event, ReasoningDelta, ToolCallDelta, ToolCallStart
from ftc.text.parser import Parser

CASES = Path(__file__).parents[2] / "data" / "cases"
SYNTAX = {"hermes_json": JsonInTags(), "qwen_xml": XmlFunctions(), "harmony": Channels(), "plain": None}
MARKS = ("<|", "<tool_call>", "</tool_call>", "<think>", "</think>", "<function=", "<parameter=")


def load(id: str) -> dict[str, Any]:
    (path,) = CASES.glob(f"{id}-*.json")
    return json.loads(path.read_text(encoding="utf-8"))


PARSER_CASES = [
    case for path in sorted(CASES.glob("c*.json")) if (case := json.loads(path.read_text("utf-8")))["rig"] == "parser"
]  # fmt: skip


def splits(given: list[str]) -> Iterator[list[str]]:
    """Rule S1: as given, whole, 1 to 7 code points at a time, 20 random splits."""
    text = "".join(given)
    yield given
    yield [text]
    for size in range(1, 8):
        yield [text[i : i + size] for i in range(0, len(text), size)]
    for seed in range(1, 21):
        generator = random.Random(seed)
        cuts = sorted(generator.sample(range(len(text) + 1), min(len(text), generator.randint(1, 12))))
        yield [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]


def run(given: dict[str, Any], chunks: list[str]) -> tuple[list[Event], Answer, str, Parser]:
    ids = (f"call_{i}" for i in itertools.count())
    parser = Parser(
        Chat(reasoning=Reasoning()),
        SYNTAX[given["format"]],
        given.get("tools"),
        tools_allowed=given.get("tool_choice") != "none",
        in_reasoning=given.get("prompt_opens_think", False),
        stops=given.get("stop", ()),
        new_id=lambda: next(ids),
    )
    events = [event for chunk in chunks for event in parser.push(chunk)]
    last, reason = parser.finish(given["end"])
    events += last
    whole = Assembler()
    whole.push(events)
    return events, whole.answer(), reason, parser


@pytest.mark.parametrize("case", PARSER_CASES, ids=lambda case: case["id"])
def test_the_case_holds_for_every_split(case: dict[str, Any]) -> None:
    given, expect = case["input"], case["expect"]
    chunks = given.get("chunks") or [given["text"]]
    seen = set()
    for pieces in splits(chunks):
        events, answer, reason, _ = run(given, pieces)
        seen.add((answer, reason))
        check_order(events)
    assert len(seen) == 1
    ((answer, reason),) = seen
    trim = (lambda text: text) if expect.get("exact") else str.strip
    for field in ("content", "reasoning"):
        if field in expect:
            assert trim(getattr(answer, field)) == expect[field]
    if "reasoning_contains" in expect:
        assert expect["reasoning_contains"] in answer.reasoning
    if "finish_reason" in expect:
        assert reason == expect["finish_reason"]
    if "tool_calls" in expect:
        calls = [{"index": i, "name": c.name, "arguments": json.loads(c.arguments)} for i, c in enumerate(answer.calls)]
        assert calls == expect["tool_calls"]
    if "arguments_text" in expect:
        assert [call.arguments for call in answer.calls] == [expect["arguments_text"]]
    assert len({call.id for call in answer.calls}) == len(answer.calls)
    if given["end"] != "length":
        for call in answer.calls:
            assert call.complete and isinstance(json.loads(call.arguments), dict)
    if given.get("tool_choice") != "none":
        assert not any(mark in text for mark in MARKS for text in (answer.content, answer.reasoning))


def check_order(events: list[Event]) -> None:
    """Calls come one after another, indices count up, and no event is empty."""
    started = ended = 0
    for event in events:
        match event:
            case ReasoningDelta() | ContentDelta():
                assert event.text
            case ToolCallStart():
                assert event.index == started and event.id and event.name
                started += 1
            case ToolCallDelta():
                assert event.index == started - 1 and event.arguments_text
            case _:
                assert event.index == started - 1
                ended += 1
    assert ended <= started


def test_c010_cut_arguments_never_look_complete() -> None:
    text = "".join(load("c010")["input"]["chunks"]).removesuffix("Reyk") + 'Reykjavik"}}\n</tool_call>'
    given = load("c010")["input"]
    for end in range(len(text)):
        _, answer, reason, _ = run(given, [text[:end]])
        assert reason == "length"
        for call in answer.calls:
            if call.complete:
                continue
            with pytest.raises(ValueError):
                json.loads(call.arguments)


def test_c011_broken_json_reaches_the_content() -> None:
    case = load("c011")
    _, answer, reason, _ = run(case["input"], case["input"]["chunks"])
    assert answer.content == '{"name": "run", "arguments": {"cmd": "ls -l}}'
    assert answer.calls == () and reason == "stop"


def test_c022_markup_is_content_when_no_call_is_allowed() -> None:
    case = load("c022")
    _, answer, _, _ = run(case["input"], case["input"]["chunks"])
    assert answer.content == "".join(case["input"]["chunks"])


def test_c028_marks_never_show_in_parts() -> None:
    case = load("c028")
    _, answer, _, _ = run(case["input"], case["input"]["chunks"])
    assert "</" not in answer.reasoning and "nk>" not in answer.content


def test_c033_no_part_of_the_stop_string_is_shown() -> None:
    given = load("c033")["input"]
    for pieces in splits(given["chunks"]):
        events, _, _, parser = run(given, pieces)
        assert not any("D" in event.text for event in events if isinstance(event, ContentDelta))
        assert parser.stop_hit == "DEFGHIJ"


def test_c035_characters_over_several_tokens() -> None:
    case = load("c035")
    tokens = [bytes.fromhex(token) for token in case["input"]["output_token_bytes_hex"]]

    class Vocabulary:
        def token_bytes(self, id: int) -> bytes:
            return tokens[id]

        def is_special(self, id: int) -> bool:
            return False

    detokenizer = Detokenizer(Vocabulary())
    deltas = [detokenizer.push([id]) for id in range(len(tokens))]
    deltas.append(detokenizer.flush())
    assert "".join(deltas) == case["expect"]["text"]
    assert deltas[0] == "你" and deltas[1] == "" and not any("\ufffd" in delta for delta in deltas)
