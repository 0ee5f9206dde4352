"""The messages API as its published client and recorded agents use it: blocks, turns, counts, stops and errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_create_params as beta_params

from ftc.engine.client import EngineClient
from ftc.serve.admit.messages import admit
from ftc.serve.body import decode
from ftc.serve.schema.messages import CountRequest, MessagesRequest
from tests.unit.serve.server import Server, case

PATH = "/v1/messages"
WEATHER = {
    "name": "get_weather",
    "description": "Weather for a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
READ = {"name": "read", "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}}}


@pytest.fixture
def client(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def body(*messages: Any, **fields: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": one} if isinstance(one, str) else one for one in messages]
    return {"model": "demo", "max_tokens": 200, "messages": turns} | fields


def prompt_of(server: Server, request: dict[str, Any]) -> str:
    """The prompt that a request becomes."""
    asked = decode(json.dumps(request).encode(), MessagesRequest)
    (job,) = admit(asked, server.model, 4096, "x", keep_nonce=False)
    return server.model.tokenizer.decode(job.prompt.tokens)


def refused(server: Server, request: Any, named: str, path: str = PATH, status: int = 400) -> dict[str, Any]:
    response = server.post(request, path)
    assert response.status_code == status, response.text
    told = response.json()
    assert set(told) == {"type", "error"} and told["type"] == "error"
    assert set(told["error"]) == {"type", "message"}
    assert named in told["error"]["message"]
    return told["error"]


def test_a_whole_answer(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(**body("Say hi"))
    thinking, text = answer.content
    assert (thinking.type, text.type) == ("thinking", "text")
    assert thinking.thinking == "A greeting." and text.text == "Hello there, 你好 😀!"
    assert (answer.stop_reason, answer.stop_sequence, answer.role) == ("end_turn", None, "assistant")
    assert answer.usage.input_tokens > 0 and answer.usage.output_tokens > 5


def test_a_stream_accumulates_to_the_whole_answer(client: anthropic.Anthropic) -> None:
    for fields in ({}, {"tools": [WEATHER]}):
        request = body("Think and call" if fields else "Say hi", **fields)
        whole = client.messages.create(**request)
        with client.messages.stream(**request) as stream:
            final = stream.get_final_message()
        assert [block.type for block in final.content] == [block.type for block in whole.content]
        for one, other in zip(final.content, whole.content, strict=True):
            for field in ("text", "thinking", "name", "input"):
                assert getattr(one, field, None) == getattr(other, field, None)
        assert final.stop_reason == whole.stop_reason
        assert final.usage.output_tokens == whole.usage.output_tokens


@pytest.mark.parametrize("streamed", [False, True])
def test_an_agent_loop(client: anthropic.Anthropic, streamed: bool) -> None:
    def ask(messages: list[Any]) -> Any:
        request: dict[str, Any] = {"model": "demo", "max_tokens": 200, "messages": messages, "tools": [WEATHER]}
        if not streamed:
            return client.messages.create(**request)
        with client.messages.stream(**request) as stream:
            return stream.get_final_message()

    messages: list[Any] = [{"role": "user", "content": "Think and call"}]
    first = ask(messages)
    assert first.stop_reason == "tool_use"
    call = first.content[-1]
    assert (call.type, call.name, call.input) == ("tool_use", "get_weather", {"city": "Oslo"})
    assert call.id.startswith("toolu_")
    messages.append({"role": "assistant", "content": [block.model_dump() for block in first.content]})
    messages.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "-3 C"}]})
    second = ask(messages)
    assert second.content[-1].text == "Minus three in Oslo."
    assert second.stop_reason == "end_turn"


def test_two_calls_are_two_blocks_and_one_where_parallel_calls_are_off(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(**body("Call two", tools=[WEATHER]))
    assert [block.input for block in answer.content if block.type == "tool_use"] == [{"city": "Oslo"}, {"city": "Lima"}]
    one: Any = {"type": "auto", "disable_parallel_tool_use": True}
    answer = client.messages.create(**body("Call two", tools=[WEATHER], tool_choice=one))
    assert [block.type for block in answer.content].count("tool_use") == 1


def test_event_order_c066(server: Server) -> None:
    events = server.named_events(body("Call and echo", tools=[READ]), PATH)
    assert all(data["type"] == name for name, data in events)
    told: list[str] = []
    for name, data in events:
        line = [name]
        if "index" in data:
            line.append(str(data["index"]))
        if "content_block" in data:
            line.append(data["content_block"]["type"])
        if name == "content_block_delta":
            line.append(data["delta"]["type"])
        if told[-1:] != [" ".join(line)]:
            told.append(" ".join(line))
    expected = [line.removesuffix(" +").removesuffix(" *") for line in case("c066")["expect"]["events"]]
    assert told == expected
    by_name = dict(events)
    start = by_name["message_start"]["message"]
    assert (start["type"], start["role"], start["content"]) == ("message", "assistant", [])
    assert (start["stop_reason"], start["stop_sequence"]) == (None, None)
    assert start["usage"]["input_tokens"] > 0
    opened = [data["content_block"] for name, data in events if name == "content_block_start"]
    assert opened[0] == {"type": "thinking", "thinking": "", "signature": ""}
    assert opened[2]["id"] and (opened[2]["name"], opened[2]["input"]) == ("read", {})
    partial = [data["delta"]["partial_json"] for _, data in events if data.get("delta", {}).get("type") == "input_json_delta"]
    assert json.loads("".join(partial)) == {"path": "a.txt"}
    assert by_name["message_delta"]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert by_name["message_delta"]["usage"]["output_tokens"] > 0


def test_stop_reasons_c067(server: Server) -> None:
    stopped, cut, natural = (request["json"] for request in case("c067")["input"]["requests"])
    natural = natural | {"messages": [{"role": "user", "content": "Letters"}]}
    for request, reason, sequence in (
        (stopped, "stop_sequence", "GAMMA"), (cut, "max_tokens", None), (natural, "end_turn", None)
    ):  # fmt: skip
        answer = server.post(request, PATH).json()
        assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, sequence)
        delta = next(data for name, data in server.named_events(request, PATH) if name == "message_delta")
        assert delta["delta"] == {"stop_reason": reason, "stop_sequence": sequence}
        assert delta["usage"]["output_tokens"] == answer["usage"]["output_tokens"]
        if sequence:
            text = "".join(block.get("text", "") for block in answer["content"])
            assert "BETA" in text and "GAMMA" not in text and "DELTA" not in text


def test_a_system_role_among_the_messages_c046(server: Server) -> None:
    (request,) = (one["json"] for one in case("c046")["input"]["requests"])
    assert server.post(request, PATH).status_code == 200
    prompt = prompt_of(server, request)
    assert prompt.index("Main rules.") < prompt.index("Reminder: be short.") < prompt.index("Go")


def test_tool_results_c047(server: Server) -> None:
    (request,) = (one["json"] for one in case("c047")["input"]["requests"])
    assert server.post(request, PATH).status_code == 200
    prompt = prompt_of(server, request)
    places = [prompt.index(text) for text in ("AAA", "A2", "no such file", "Go on.")]
    assert places == sorted(places)
    assert prompt.index("Reading.") < places[0]
    text = json.dumps(request).replace('"tool_use_id": "toolu_02"', '"tool_use_id": "toolu_99"')
    refused(server, json.loads(text), "toolu_99")


def test_count_tokens_c068(server: Server, client: anthropic.Anthropic) -> None:
    (request,) = (one["json"] for one in case("c047")["input"]["requests"])
    fields = {key: value for key, value in request.items() if key not in ("max_tokens", "temperature")}
    steps = server.settled().steps
    counted = server.post(fields, f"{PATH}/count_tokens").json()
    assert server.settled().steps == steps
    usage = server.post(request, PATH).json()["usage"]
    parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    assert counted == {"input_tokens": sum(usage[part] for part in parts)}
    refused(server, {"model": "demo"}, "messages", f"{PATH}/count_tokens")
    assert client.messages.count_tokens(model="demo", messages=[{"role": "user", "content": "Hi"}]).input_tokens > 3
    # A conversation that is too long is counted all the same: that is how clients find out.
    assert server.post(body("word " * 5000) | {"max_tokens": None}, f"{PATH}/count_tokens").status_code == 400
    long = {"model": "demo", "messages": [{"role": "user", "content": "word " * 5000}]}
    assert server.post(long, f"{PATH}/count_tokens").json()["input_tokens"] > 5000


def test_a_block_that_changes_with_every_request_c070(server: Server) -> None:
    recorded = case("c070", TEXT_3000_TOKENS="rules and more rules " * 150)["input"]
    cached = []
    for turn in recorded["turns"]:
        system = [{**block, "text": block["text"].replace("$NONCE", turn["nonce"])} for block in recorded["system"]]
        usage = server.post(body(turn["messages"][0], system=system, max_tokens=4), PATH).json()["usage"]
        cached.append(usage["cache_read_input_tokens"])
    assert cached[1] > 0.9 * len(server.model.tokenizer.encode(recorded["system"][1]["text"]))
    line = recorded["system"][0]["text"]
    assert line in prompt_of(server, body(line))
    assert line not in prompt_of(server, body("x", system=[{"type": "text", "text": line}]))


@pytest.mark.parametrize(
    ("system", "texts"),
    [
        ("One rule.", ["One rule."]),
        ([{"type": "text", "text": "One."}, {"type": "text", "text": "Two.", "cache_control": {"type": "ephemeral"}}],
         ["One.", "Two."]),
        ([], []),
        (None, []),
    ],
)  # fmt: skip
def test_system_in_every_shape(server: Server, system: Any, texts: list[str]) -> None:
    prompt = prompt_of(server, body("x", system=system))
    places = [prompt.index(text) for text in texts]
    assert places == sorted(places)
    assert ("<|im_start|>system" in prompt) == bool(texts)


def test_thinking_is_sent_back_and_switched(server: Server) -> None:
    answer = server.post(body("Say hi", thinking={"type": "disabled"}), PATH).json()
    assert all(block["type"] != "thinking" for block in answer["content"])
    enabled = server.post(body("Say hi", thinking={"type": "enabled", "budget_tokens": 2000}), PATH).json()
    assert enabled["content"][0]["type"] == "thinking"
    blocks = [
        {"type": "thinking", "thinking": "Deep thought.", "signature": "x"},
        {"type": "redacted_thinking", "data": "zzz"},
        {"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "a"}},
    ]
    request = body(
        "Go",
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "Echo"}]},
        tools=[READ],
    )
    prompt = prompt_of(server, request)
    assert prompt.index("Deep thought.") < prompt.index("<tool_response>") and "zzz" not in prompt


def test_silence_before_the_first_token_starts_the_message() -> None:
    from ftc.serve.reply.messages import MessagesReply

    reply = MessagesReply(MessagesRequest(model="demo", messages=[{}], max_tokens=5))
    names = re.findall(rb"event: (\w+)", reply.keep_alive() + reply.keep_alive())
    assert names == [b"message_start", b"ping", b"ping"]


def test_an_error_within_a_stream_is_an_event(client: anthropic.Anthropic, server: Server) -> None:
    with pytest.raises(anthropic.APIStatusError) as caught:
        with client.messages.stream(**body("Fail later")) as stream:
            stream.until_done()
    assert caught.value.body["error"]["type"] == "api_error"  # type: ignore[index]
    assert server.post(body("Fail now", stream=True), PATH).status_code == 500


def test_errors_are_the_librarys_own_classes(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**body("x", model="other"))
    with pytest.raises(anthropic.BadRequestError) as bad:
        client.messages.create(**body("word " * 5000))
    assert re.search(r"prompt is too long: \d+ tokens > 4096 maximum", str(bad.value))


def test_a_full_queue_is_overloaded(tmp_path: Path) -> None:
    import concurrent.futures

    rules = [{"text": "</think>\n\n1 2 3", "endless": True}]
    script = {"rules": rules, "max_running": 1, "max_queued": 1, "context_tokens": 4096}
    with Server(tmp_path, script) as server, concurrent.futures.ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(lambda _: server.post(body("x", max_tokens=300), PATH), range(5)))
    codes = sorted(answer.status_code for answer in answers)
    assert codes == [200, 200, 529, 529, 529]
    assert {a.json()["error"]["type"] for a in answers if a.status_code == 529} == {"overloaded_error"}
    assert all(a.headers["retry-after"] for a in answers if a.status_code == 529)


def test_models_in_the_shape_of_this_api(client: anthropic.Anthropic) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.type, model.max_input_tokens) == ("demo", "model", 4096)
    assert client.models.retrieve("demo").id == "demo"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "So"}]}, "end with a user"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": 1}]}]},
         "messages[0].content[0].input"),
        ({"system": [{"type": "image"}]}, "system[0]"),
        ({"system": 5}, "system"),
        ({"tools": [{"name": "a", "type": "bash_20250124"}]}, "tools[0].type"),
        ({"tools": [{"name": "", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "a", "input_schema": 1}]}, "tools[0].input_schema"),
        ({"tools": [{"name": "a", "input_schema": {}, "strict": True}]}, "tools[0].strict"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "x"}, "tools": [WEATHER]}, "tool_choice"),
        ({"tool_choice": {"type": "odd"}}, "tool_choice.type"),
        ({"thinking": {"type": "odd"}}, "thinking.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
        ({"container": "x"}, "container"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"made_up": 1}, "made_up"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused_by_name(server: Server, fields: dict[str, Any], named: str) -> None:
    request = body("x") | fields
    if fields.get("max_tokens", 1) is None:
        del request["max_tokens"]
    assert refused(server, request, named)["type"] == "invalid_request_error"


def test_fields_without_effect(server: Server) -> None:
    cache = {"type": "ephemeral", "ttl": "5m"}
    block = {"type": "text", "text": "Say hi", "cache_control": cache}
    request = body(
        {"role": "user", "content": [block]},
        metadata={"user_id": "u"}, service_tier="auto", cache_control=cache, output_config={"effort": "low"},
        context_management={"edits": []}, tools=[{**WEATHER, "cache_control": cache}], mcp_servers=[],
    )  # fmt: skip
    answer = server.post(request, f"{PATH}?beta=true", headers={"anthropic-beta": "a,b", "anthropic-version": "2023-06-01"})
    assert answer.status_code == 200, answer.text


def test_every_published_field_is_known() -> None:
    published = set(message_create_params.MessageCreateParamsBase.__annotations__) | {"stream"}
    published |= set(beta_params.MessageCreateParamsBase.__annotations__)
    assert published <= set(MessagesRequest.__struct_fields__)
    assert set(message_count_tokens_params.MessageCountTokensParams.__annotations__) <= set(CountRequest.__struct_fields__)


def test_counting_needs_no_engine(tmp_path: Path) -> None:
    script = {"rules": [], "load": {"seconds": 5.0}}
    with Server(tmp_path, script, wait=False) as server:
        assert isinstance(server.engine, EngineClient) and server.engine.state == "starting"
        fields = {"model": "demo", "messages": [{"role": "user", "content": "x"}]}
        assert server.post(fields, f"{PATH}/count_tokens").status_code == 200
        error = refused(server, body("x"), "not ready", status=503)
        assert error["type"] == "overloaded_error"
