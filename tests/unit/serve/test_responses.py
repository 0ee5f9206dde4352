"""Responses as the published client and recorded agents use them: items, numbered events, stored answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import openai
import pytest
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from ftc.serve.admit.items import as_items, seal
from ftc.serve.admit.responses import admit
from ftc.serve.body import decode
from ftc.serve.errors import UnknownResponseError
from ftc.serve.generate import Counts, Step
from ftc.serve.reply.responses import ResponsesReply
from ftc.serve.schema.responses import CallItem, Response, ResponsesRequest
from ftc.serve.store import ResponseStore, Stored
from ftc.text.events import ToolCallDelta, ToolCallEnd, ToolCallStart
from tests.unit.serve.server import Server, case

PATH = "/v1/responses"
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
READ = {"type": "function", "name": "read", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def prompt_of(server: Server, request: dict[str, Any]) -> str:
    asked = decode(json.dumps(request).encode(), ResponsesRequest)
    (job,) = admit(asked, as_items(asked.input), server.model, 4096, "x")
    return server.model.tokenizer.decode(job.prompt.tokens)


def refused(server: Server, request: Any, named: str, status: int = 400) -> None:
    response = server.post(request, PATH)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert named in (error["param"] or "") and named in error["message"]


def test_a_whole_answer(client: openai.OpenAI) -> None:
    answer = client.responses.create(model="demo", input="Say hi")
    assert answer.output_text == "Hello there, 你好 😀!"
    reasoning, message = answer.output
    assert reasoning.type == "reasoning" and reasoning.content is not None
    assert reasoning.content[0].text == "A greeting."
    assert (answer.status, message.type, answer.object) == ("completed", "message", "response")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert answer.usage.output_tokens_details.reasoning_tokens > 0


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("stored", [False, True])
def test_an_agent_loop(client: openai.OpenAI, streamed: bool, stored: bool) -> None:
    def ask(**fields: Any) -> Any:
        if not streamed:
            return client.responses.create(model="demo", tools=[WEATHER], store=stored, **fields)
        with client.responses.stream(model="demo", tools=[WEATHER], store=stored, **fields) as stream:
            stream.until_done()
            return stream.get_final_response()

    first = ask(input="Think and call")
    call = first.output[-1]
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "get_weather", {"city": "Oslo"})
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "-3 C"}
    if stored:
        second = ask(input=[result], previous_response_id=first.id)
    else:
        items = [item.model_dump(exclude_none=True) for item in first.output]
        second = ask(input=[{"role": "user", "content": "Think and call"}, *items, result])
    assert second.output_text == "Minus three in Oslo."


def test_event_sequence_c071(server: Server) -> None:
    assert case("c071")["expect"]["all_of"]
    events = server.named_events({"model": "demo", "input": "Call and echo", "tools": [READ]}, PATH)
    names = [name for name, _ in events]
    assert names[:2] == ["response.created", "response.in_progress"] and names[-1] == "response.completed"
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert all(data["type"] == name for name, data in events)
    added = [data for name, data in events if name == "response.output_item.added"]
    done = [data for name, data in events if name == "response.output_item.done"]
    assert [data["output_index"] for data in added] == [data["output_index"] for data in done] == [0, 1, 2]
    assert [data["item"]["id"] for data in added] == [data["item"]["id"] for data in done]
    assert [data["item"]["type"] for data in added] == ["reasoning", "message", "function_call"]
    of_text = [(name, data) for name, data in events if data.get("output_index") == 1]
    parts = [name.removeprefix("response.") for name, _ in of_text]
    assert parts[:2] == ["output_item.added", "content_part.added"]
    assert parts[-3:] == ["output_text.done", "content_part.done", "output_item.done"]
    assert set(parts[2:-3]) == {"output_text.delta"}
    assert all(data["item_id"] == added[1]["item"]["id"] for _, data in of_text[1:-1])
    assert all(data["content_index"] == 0 for _, data in of_text[1:-1])
    text = "".join(data["delta"] for name, data in of_text if name == "response.output_text.delta")
    assert text == "Reading." and of_text[-3][1]["text"] == text
    arguments = [data for name, data in events if name == "response.function_call_arguments.delta"]
    (whole,) = [data for name, data in events if name == "response.function_call_arguments.done"]
    assert "".join(data["delta"] for data in arguments) == whole["arguments"]
    assert json.loads(whole["arguments"]) == {"path": "a.txt"}
    assert done[2]["item"]["call_id"] and done[2]["item"]["name"] == "read"
    answer = events[-1][1]["response"]
    assert (answer["object"], answer["model"], answer["status"]) == ("response", "demo", "completed")
    assert answer["output"] == [data["item"] for data in done] and answer["usage"]["output_tokens"] > 0


def test_items_c072(server: Server) -> None:
    first, cut, unknown = (request["json"] for request in case("c072")["input"]["requests"])
    assert server.post(first, PATH).status_code == 200
    prompt = prompt_of(server, first)
    places = [prompt.index(text) for text in ("Be brief.", "Use tools.", "Read a.txt", "AAA")]
    assert places == sorted(places)
    turns = prompt[places[2] :]
    assert turns.count('"name": "read"') + turns.count("<function=read>") == 1
    assert "Need file." in prompt
    answer = server.post(cut, PATH).json()
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert server.named_events(cut, PATH)[-1][0] == "response.incomplete"
    refused(server, unknown, "previous_response_id", status=404)


def test_functions_in_a_namespace(server: Server) -> None:
    group = {"type": "namespace", "name": "maps", "description": "Maps", "tools": [READ]}
    call = {"type": "function_call", "call_id": "c", "name": "read", "namespace": "maps", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "done"}
    prompt = prompt_of(server, {"model": "demo", "input": [{"role": "user", "content": "Hi"}, call, output], "tools": [group]})
    assert prompt.count("maps__read") == 2
    asked = ResponsesRequest(model="demo", input="x", tools=[group])
    reply = ResponsesReply(asked, server.model, lambda _: None)

    async def steps() -> AsyncGenerator[tuple[int, Step], None]:
        events = [ToolCallStart(0, "call_1", "maps__read"), ToolCallDelta(0, "{}"), ToolCallEnd(0)]
        yield 0, Step(events=list(events), logprobs=[], counts=Counts(prompt=3), finish="tool_calls")

    (item,) = asyncio.run(reply.whole(steps())).output
    assert isinstance(item, CallItem)
    assert (item.namespace, item.name, item.call_id, item.arguments) == ("maps", "read", "call_1", "{}")


def test_stored_answers(client: openai.OpenAI, server: Server) -> None:
    first = client.responses.create(model="demo", input="Say hi", instructions="Be kind.")
    assert client.responses.retrieve(first.id).output == first.output
    (item,) = client.responses.input_items.list(first.id).data
    assert item.type == "message"
    second = client.responses.create(model="demo", input="Count", previous_response_id=first.id, max_output_tokens=5)
    assert second.usage is not None and first.usage is not None
    # The history comes along, the instructions do not.
    assert second.usage.input_tokens > first.usage.input_tokens
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="demo", input="x", previous_response_id=first.id)
    assert client.responses.retrieve(second.id).previous_response_id == first.id
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(second.id)
    unkept = client.responses.create(model="demo", input="Say hi", store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unkept.id)


def stored(id: str, text: str) -> Stored:
    response = Response(id=id, created_at=0, model="m", status="completed", output=[], tools=[], tool_choice="auto",
                        parallel_tool_calls=True, store=True)  # fmt: skip
    return Stored(response, as_items(text), 1)


def test_the_store_is_bounded() -> None:
    store = ResponseStore(max_bytes=10_000, max_count=3)
    for id in ("a", "b", "c"):
        store.put(stored(id, "short"))
    store.get("a")
    store.put(stored("d", "short"))
    with pytest.raises(UnknownResponseError):
        store.get("b")
    store.put(stored("e", "x" * 9000))
    store.get("e")
    with pytest.raises(UnknownResponseError):
        store.get("a")
    store.put(stored("f", "x" * 20_000))
    for id in "abcdef":
        with pytest.raises(UnknownResponseError):
            store.get(id)
    store.put(stored("g", "short"))
    store.get("g")


def test_sealed_reasoning_comes_back(client: openai.OpenAI, server: Server) -> None:
    answer = client.responses.create(model="demo", input="Say hi", include=["reasoning.encrypted_content"], store=False)
    item = answer.output[0].model_dump()
    assert "A greeting." not in item["encrypted_content"]
    call = {"type": "function_call", "call_id": "c", "name": "read", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "done"}

    def prompt(sealed: str) -> str:
        reasoning = {"type": "reasoning", "id": item["id"], "summary": [], "encrypted_content": sealed}
        start = {"role": "user", "content": "Hi"}
        return prompt_of(server, {"model": "demo", "tools": [READ], "input": [start, reasoning, call, output]})

    assert "A greeting." in prompt(item["encrypted_content"])
    assert "other" in prompt(seal("other"))
    assert "gAAAA" not in prompt("gAAAAforeign") and "None" not in prompt("ZnRj")


def test_logprobs_stand_beside_their_text(client: openai.OpenAI) -> None:
    answer = client.responses.create(model="demo", input="Say hi", include=["message.output_text.logprobs"], top_logprobs=2)
    (part,) = answer.output[-1].content  # type: ignore[union-attr]
    assert part.type == "output_text" and part.logprobs
    assert b"".join(bytes(entry.bytes) for entry in part.logprobs).decode().strip().endswith("Hello there, 你好 😀!")
    assert all(len(entry.top_logprobs) == 2 for entry in part.logprobs)


def test_an_error_within_a_stream_fails_the_response(server: Server) -> None:
    name, data = server.named_events({"model": "demo", "input": "Fail later"}, PATH)[-1]
    assert name == "response.failed"
    assert data["response"]["status"] == "failed" and data["response"]["error"]["message"]
    assert server.post({"model": "demo", "input": "Fail now"}, PATH).status_code == 500


def test_silence_before_the_first_token_starts_the_response(server: Server) -> None:
    reply = ResponsesReply(ResponsesRequest(model="demo", input="x"), server.model, lambda _: None)
    assert reply.keep_alive().count(b"event: ") == 2
    assert reply.keep_alive().startswith(b":")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "message", "role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "function_call_output", "call_id": "q", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call", "call_id": "q", "name": "x"}]}, "input[0].arguments"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "x"}}, "prompt"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"reasoning": {"effort": "odd"}}, "reasoning.effort"),
        ({"reasoning": {"made": 1}}, "reasoning.made"),
        ({"tools": [{"type": "namespace", "name": "n"}]}, "tools[0].tools"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "custom"}]}]}, "tools[0].tools[0].type"),
        ({"tools": [{"type": "custom", "name": "x"}]}, "tools[0].type"),
        ({"tools": [{**WEATHER, "strict": True}]}, "tools[0].strict"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "x"}, "tools": [WEATHER]}, "tool_choice"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"include": ["x"]}, "include[0]"),
        ({"input": "word " * 5000}, "input"),
        ({"made_up": 1}, "made_up"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(server: Server, fields: dict[str, Any], named: str) -> None:
    refused(server, {"model": "demo", "input": "x"} | fields, named)


def test_fields_without_effect(server: Server) -> None:
    fields = {
        "metadata": {"a": "b"}, "prompt_cache_key": "k", "service_tier": "auto", "text": {"verbosity": "low"},
        "reasoning": {"effort": "low", "summary": "auto"}, "tools": [{"type": "web_search"}, WEATHER],
        "tool_choice": "auto", "parallel_tool_calls": True, "client_metadata": {}, "max_tool_calls": 3,
        "include": ["reasoning.encrypted_content"], "stream_options": {"include_obfuscation": False},
    }  # fmt: skip
    assert server.post({"model": "demo", "input": "x"} | fields, PATH).status_code == 200


def test_every_published_field_is_known() -> None:
    published = set(ResponseCreateParamsBase.__annotations__) | {"stream"}
    assert published <= set(ResponsesRequest.__struct_fields__)
