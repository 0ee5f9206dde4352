"""The published client library understands every answer: whole, streamed, with tools, and in error."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.unit.serve.server import GET_WEATHER, Server


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def test_a_whole_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="demo", messages=user("Say hi"))
    (choice,) = answer.choices
    assert choice.message.content == "Hello there, 你好 😀!"
    assert choice.message.model_dump()["reasoning_content"] == "A greeting."
    assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)
    usage = answer.usage
    assert usage is not None and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.completion_tokens_details is not None
    assert 0 < (usage.completion_tokens_details.reasoning_tokens or 0) < usage.completion_tokens


def test_a_stream_adds_up_to_the_whole_answer(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(model="demo", messages=user("Say hi"), stream=True))
    deltas = [chunk.choices[0].delta.model_dump() for chunk in chunks]
    assert deltas[0]["role"] == "assistant"
    assert "".join(delta["content"] or "" for delta in deltas) == "Hello there, 你好 😀!"
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "A greeting."
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_tool_call_makes_the_round_trip(client: openai.OpenAI) -> None:
    messages = user("Think and call")
    first = client.chat.completions.create(model="demo", messages=messages, tools=[GET_WEATHER])  # type: ignore[list-item]
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls"
    assert message.content is None and message.tool_calls
    call = message.tool_calls[0]
    assert (call.type, call.function.name, json.loads(call.function.arguments)) == (
        "function",
        "get_weather",
        {"city": "Oslo"},
    )
    messages += [message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "-3 C"}]
    second = client.chat.completions.create(model="demo", messages=messages, tools=[GET_WEATHER])  # type: ignore[list-item]
    assert second.choices[0].message.content == "Minus three in Oslo."


def test_streamed_tool_calls_are_whole_and_placed(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="demo",
        messages=user("Call two"),
        tools=[GET_WEATHER],  # type: ignore[list-item]
        stream=True,
    )
    ids: dict[int, str] = {}
    arguments: dict[int, str] = {}
    finishes = []
    for chunk in stream:
        finishes.append(chunk.choices[0].finish_reason)
        for call in chunk.choices[0].delta.tool_calls or []:
            assert call.function is not None
            if call.index not in ids:
                assert call.id and call.type == "function" and call.function.name == "get_weather"
                ids[call.index], arguments[call.index] = call.id, ""
            else:
                assert call.id is None and call.type is None and call.function.name is None
            arguments[call.index] += call.function.arguments or ""
    assert [json.loads(text) for text in arguments.values()] == [{"city": "Oslo"}, {"city": "Lima"}]
    assert len(set(ids.values())) == 2
    assert finishes[-1] == "tool_calls"


def test_one_call_at_most_when_parallel_calls_are_off(client: openai.OpenAI, server: Server) -> None:
    fields: dict[str, Any] = {"messages": user("Call two"), "tools": [GET_WEATHER], "parallel_tool_calls": False}
    answer = client.chat.completions.create(model="demo", **fields)
    assert len(answer.choices[0].message.tool_calls or []) == 1
    assert answer.choices[0].finish_reason == "tool_calls"
    server.settled()


def test_several_choices_are_several_answers(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="demo", messages=user("Draw"), n=3, seed=5)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.model_dump_json() for choice in answer.choices}) == 3
    seen: dict[int, list[str | None]] = {}
    for chunk in client.chat.completions.create(model="demo", messages=user("Draw"), n=3, seed=5, stream=True):
        seen.setdefault(chunk.choices[0].index, []).append(chunk.choices[0].finish_reason)
    assert sorted(seen) == [0, 1, 2]
    assert all(finishes[-1] == "stop" and set(finishes[:-1]) == {None} for finishes in seen.values())
    assert answer.usage is not None and answer.usage.completion_tokens == 72


@pytest.mark.parametrize("text", ["Say hi", "Think and call"])
def test_logprobs_are_the_same_whole_and_streamed(client: openai.OpenAI, text: str) -> None:
    fields: dict[str, Any] = {"messages": user(text), "tools": [GET_WEATHER], "logprobs": True, "top_logprobs": 2}
    whole = client.chat.completions.create(model="demo", **fields)
    assert whole.choices[0].logprobs is not None and whole.usage is not None
    entries = whole.choices[0].logprobs.content or []
    streamed = [
        entry
        for chunk in client.chat.completions.create(model="demo", stream=True, **fields)
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content or []
    ]
    assert streamed == entries
    assert len(entries) == whole.usage.completion_tokens
    assert all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in entries)
    said = b"".join(bytes(entry.bytes or []) for entry in entries).decode()
    assert said.endswith("你好 😀!" if text == "Say hi" else "</tool_call>")


def test_errors_are_the_librarys_own_classes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="demo", messages=user("x"), temperature=3)
    assert (bad.value.param, bad.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="other", messages=user("x"))
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model="demo", messages=user("Fail now"))


def test_an_error_before_the_first_token_of_a_stream_is_an_http_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model="demo", messages=user("Fail now"), stream=True)


def test_an_error_within_a_stream_is_an_event(client: openai.OpenAI) -> None:
    said = ""
    with pytest.raises(openai.APIError, match="fails"):
        for chunk in client.chat.completions.create(model="demo", messages=user("Fail later"), stream=True):
            said += chunk.choices[0].delta.content or ""
    assert said.startswith("1")


def test_models_are_listed(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.model_dump()["context_length"]) == ("demo", 4096)
    assert client.models.retrieve("demo") == model
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("org/other")


def test_the_asynchronous_client(server: Server) -> None:
    async def scenario() -> None:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            stream = await client.chat.completions.create(model="demo", messages=user("Say hi"), stream=True)
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            assert text == "Hello there, 你好 😀!"
            answers = await asyncio.gather(
                *(client.chat.completions.create(model="demo", messages=user("Say hi")) for _ in range(8))
            )
            assert {answer.choices[0].message.content for answer in answers} == {"Hello there, 你好 😀!"}

    asyncio.run(scenario())
