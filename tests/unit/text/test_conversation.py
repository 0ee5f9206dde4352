"""Client messages of every shape become one conversation or one clear refusal."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from ftc.errors import RequestError
from ftc.text.conversation import normalize
from ftc.text.template import Template

ROOT = Path(__file__).parents[3]


def bodies(id: str) -> list[dict[str, Any]]:
    """The request bodies of a recorded case."""
    (path,) = (ROOT / "tests" / "data" / "cases").glob(f"{id}-*.json")
    given = json.loads(path.read_text(encoding="utf-8"))["input"]
    return given["pair"] if "pair" in given else [request["json"] for request in given["requests"]]


def prompt(body: dict[str, Any]) -> str:
    template = Template.load(ROOT / "models" / "demo")
    assert template is not None
    return template.render(normalize(body["messages"]), body.get("tools"))


def test_c040_no_content_is_empty_text() -> None:
    prompts = [prompt(body) for body in bodies("c040")]
    assert len(prompts) == 4
    assert not any(word in text for text in prompts for word in ("None", "null", "[]"))
    assert "-3 C" in prompts[1] and '{"city": "Oslo"}' in prompts[2]


@pytest.mark.parametrize("id", ["c042", "c045"])
def test_two_ways_to_say_the_same_give_one_prompt(id: str) -> None:
    first, second = map(prompt, bodies(id))
    assert first == second and "{'type'" not in first


def test_c044_system_messages_keep_their_order_and_place() -> None:
    late, two, only = map(prompt, bodies("c044"))
    places = [late.index(text) for text in ("Ada.", "Hello Ada.", "single word BLUE.", "Who am I?")]
    assert places == sorted(places)
    assert two.index("Rule one.") < two.index("Rule two.") and two.count("<|im_start|>system") == 1
    assert only.startswith("<|im_start|>system\nSay hi.")
    longer = copy.deepcopy(bodies("c044")[0])
    longer["messages"] += [{"role": "assistant", "content": "BLUE"}, {"role": "user", "content": "And now?"}]
    head = late[: late.index("<|im_start|>assistant\n<think>")]
    assert prompt(longer).startswith(head)


def test_c044_a_late_system_message_is_a_turn_of_its_own() -> None:
    turns = normalize([{"role": "user", "content": "a"}, {"role": "system", "content": "b"}, {"role": "user", "content": "c"}])
    assert [turn["role"] for turn in turns] == ["user", "user", "user"]
    assert turns[1]["content"] == "<system>\nb\n</system>"


def test_c048_broken_arguments_are_text_and_empty_ones_an_object() -> None:
    broken, empty = (normalize(body["messages"])[1]["tool_calls"][0]["function"] for body in bodies("c048"))
    assert broken["arguments"] == '{"path": "a.py", "content": "x = ' and empty["arguments"] == {}
    assert '{"path": "a.py", "content": "x = ' in prompt(bodies("c048")[0])
    assert '"arguments": {}' in prompt(bodies("c048")[1])


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ('{"a": [1, "é"]}', {"a": [1, "é"]}),
        ({"a": 1}, {"a": 1}),
        (None, {}),
        (" ", {}),
        *[(text, text) for text in ("[1]", "null", '{"a": NaN}', "[" * 100_000, '{"a": ' + "9" * 5000 + "}")],
    ],
    ids=lambda value: str(value)[:12],
)
def test_arguments_of_calls(arguments: Any, value: Any) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    (turn,) = normalize([{"role": "assistant", "tool_calls": [call]}])
    assert turn["tool_calls"][0]["function"]["arguments"] == value


def test_tool_results_keep_their_order_and_ids() -> None:
    results = [{"role": "tool", "tool_call_id": f"c{i}", "content": [{"type": "text", "text": f"r{i}"}]} for i in range(3)]
    turns = normalize([{"role": "user", "content": "go"}, *results])[1:]
    assert [(turn["tool_call_id"], turn["content"]) for turn in turns] == [("c0", "r0"), ("c1", "r1"), ("c2", "r2")]


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_under_its_usual_names(key: str) -> None:
    (turn,) = normalize([{"role": "assistant", "content": "b", key: "a"}])
    assert turn["reasoning_content"] == turn["thinking"] == "a"


def test_the_input_is_not_changed() -> None:
    messages = [body["messages"] for id in ("c040", "c044", "c048") for body in bodies(id)]
    before = copy.deepcopy(messages)
    for conversation in messages:
        normalize(conversation)
    assert messages == before


IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


@pytest.mark.parametrize(
    ("message", "where"),
    [
        ({"role": "wizard", "content": "x"}, "messages[1].role"),
        ({"role": ["user"], "content": "x"}, "messages[1].role"),
        ({"content": "x"}, "messages[1].role"),
        ("hello", "messages[1]"),
        ({"role": "user", "content": 5}, "messages[1].content"),
        ({"role": "user", "content": {"type": "text"}}, "messages[1].content"),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE]}, "messages[1].content[1]"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0].text"),
        ({"role": "user", "content": [3]}, "messages[1].content[0]"),
        ({"role": "user", "name": 3}, "messages[1].name"),
        ({"role": "user", "tool_calls": [{}]}, "messages[1].tool_calls"),
        ({"role": "assistant", "tool_calls": {}}, "messages[1].tool_calls"),
        ({"role": "assistant", "tool_calls": [3]}, "messages[1].tool_calls[0]"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "messages[1].tool_calls[0].function.name"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": ""}}]}, "messages[1].tool_calls[0].function.name"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 5}}]},
            "messages[1].tool_calls[0].function.arguments",
        ),
        ({"role": "assistant", "reasoning_content": 5}, "messages[1].reasoning_content"),
        ({"role": "assistant", "function_call": {"name": "f"}}, "messages[1].function_call"),
    ],
)
def test_what_is_wrong_is_named(message: Any, where: str) -> None:
    with pytest.raises(RequestError) as caught:
        normalize([{"role": "user", "content": "hi"}, message])
    assert caught.value.where == where


@pytest.mark.parametrize("messages", [None, "hi", {}, []])
def test_something_that_is_no_conversation(messages: Any) -> None:
    with pytest.raises(RequestError) as caught:
        normalize(messages)
    assert caught.value.where == "messages"
