"""Recorded requests of kinds that broke other servers, and every field of the published schema."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsBase

from ftc.serve.app import BODY_LIMIT_BYTES
from ftc.serve.schema.chat import ChatRequest
from tests.unit.serve.server import DEMO, GET_WEATHER, Server, case, demo_model

# The rendered prompt, end tokens included, comes back as content when it does not end in an open reasoning block.
SHOW = {"chat_template_kwargs": {"enable_thinking": False}, "tool_choice": "none", "ignore_eos": True}


def refused(response: httpx.Response, field: str, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert field in (error["param"] or "") and field in error["message"]
    return error


def prompt_of(server: Server, messages: list[dict[str, Any]], **fields: Any) -> str:
    """The prompt that a conversation becomes; its last message must hold the word Echo."""
    response = server.post({"model": "demo", "messages": messages, "max_tokens": 2000} | SHOW | fields)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["message"]["content"]


def test_usage_chunk_rules_c038(server: Server) -> None:
    recorded = case("c038")["input"]
    whole = server.post({key: value for key, value in recorded["base"].items() if key != "stream"}).json()["usage"]
    for number, variant in enumerate(recorded["variants"]):
        *chunks, done = server.events(recorded["base"] | variant)
        assert done == "[DONE]"
        if number == 0:
            assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
            assert chunks[-1]["choices"] == []
            details = {"prompt_tokens_details"}
            assert {k: v for k, v in chunks[-1]["usage"].items() if k not in details} == {
                k: v for k, v in whole.items() if k not in details
            }
        else:
            assert all("usage" not in chunk for chunk in chunks)


def test_empty_and_wrong_messages_c039(server: Server) -> None:
    for request in case("c039")["input"]["requests"]:
        body = request["raw"].encode() if "raw" in request else request["json"]
        refused(server.post(body), "body" if "raw" in request else "messages")
    assert server.ask("fine").status_code == 200


def test_absent_content_c040(server: Server) -> None:
    for request in case("c040")["input"]["requests"]:
        assert server.post(request["json"]).status_code == 200
        body = json.loads(json.dumps(request["json"]).replace('"B"', '"Echo"'))
        if body["messages"][-1]["role"] == "tool":
            body["messages"][-1]["content"] = "Echo"
        prompt = prompt_of(server, body["messages"], **{key: body[key] for key in ("tools",) if key in body})
        assert not re.search(r"\b(None|null)\b", prompt)


def test_parts_equal_text_c042(server: Server) -> None:
    one, other = (server.post(body).json() for body in case("c042")["input"]["pair"])
    assert one["usage"]["prompt_tokens"] == other["usage"]["prompt_tokens"]
    assert one["choices"] == other["choices"]
    parts = [{"type": "text", "text": "One "}, {"type": "text", "text": "Echo"}]
    prompt = prompt_of(server, [{"role": "user", "content": parts}])
    assert "One Echo" in prompt and "type" not in prompt


def test_system_messages_c044(server: Server) -> None:
    for request in case("c044")["input"]["requests"]:
        assert server.post(request["json"]).status_code == 200
        messages = [*request["json"]["messages"], {"role": "user", "content": "Echo"}]
        prompt = prompt_of(server, messages)
        texts = [message["content"] for message in request["json"]["messages"] if message["role"] == "system"]
        places = [prompt.index(text) for text in texts]
        assert places == sorted(places)
        if "Hello Ada." in prompt:
            assert prompt.index("Hello Ada.") < places[0]


def test_developer_is_system_c045(server: Server) -> None:
    one, other = (server.post(body).json() for body in case("c045")["input"]["pair"])
    assert one["usage"]["prompt_tokens"] == other["usage"]["prompt_tokens"]


def test_broken_arguments_in_the_history_c048(server: Server) -> None:
    for request in case("c048")["input"]["requests"]:
        body = request["json"]
        assert server.post(body).status_code == 200
        body["messages"][-1]["content"] = "Echo"
        prompt = prompt_of(server, body["messages"], tools=body["tools"])
        assert "x = " in prompt or '"list_dir", "arguments": {}' in prompt


def test_token_limits_c049(server: Server) -> None:
    recorded = case("c049")["input"]
    for variant in recorded["variants"]:
        fields = {key: value for key, value in variant.items() if not key.startswith("expect")}
        response = server.post(recorded["base"] | fields)
        if variant["expect_status"] == 400:
            refused(response, "max_tokens")
            continue
        answer = response.json()
        assert answer["choices"][0]["finish_reason"] == "length"
        if "expect_completion_tokens" in variant:
            assert answer["usage"]["completion_tokens"] == variant["expect_completion_tokens"]


def test_what_is_not_said_is_cut_to_the_context(tmp_path: Path) -> None:
    script = {"rules": [{"text": "word", "endless": True}], "context_tokens": 100, "decode_rate": 0}
    with Server(tmp_path, script) as server:
        for fields in ({}, {"max_tokens": 90000}):
            usage = server.ask("go", **fields).json()["usage"]
            assert usage["total_tokens"] == 100


@pytest.mark.parametrize("stream", [False, True])
def test_prompt_over_the_context_c053(server: Server, stream: bool) -> None:
    begin = time.monotonic()
    response = server.ask("word " * 5200, max_tokens=8, stream=stream)
    error = refused(response, "messages")
    assert error["code"] == "context_length_exceeded"
    count = len(server.model.tokenizer.encode("word " * 5200))
    assert any(count <= int(number) < count + 20 for number in re.findall(r"\d+", error["message"]))
    assert "4096" in error["message"]
    assert server.ask("fine").status_code == 200
    assert time.monotonic() - begin < 10


def test_sampling_values_c055(server: Server) -> None:
    recorded, pid = case("c055")["input"], server.engine.pid
    for bad in recorded["reject"]:
        field, value = next(iter(bad.items()))
        if isinstance(value, str) and value.endswith(" literal"):
            text = json.dumps(recorded["base"] | {field: 0}).replace(f'"{field}": 0', f'"{field}": {value.split()[0]}')
            refused(server.post(text.encode()), field)
        else:
            refused(server.post(recorded["base"] | bad), field)
    for good in recorded["accept"]:
        response = server.post(recorded["base"] | good)
        assert response.status_code == 200, (good, response.text)
    assert server.ask("fine").status_code == 200
    assert server.engine.pid == pid


def test_large_bodies_c056(server: Server) -> None:
    _, fits, too_large = (request["bytes"] for request in case("c056")["input"]["requests"])
    begin = time.monotonic()
    assert server.ask("words and " * (fits // 10)).status_code == 400
    assert time.monotonic() - begin < 10
    begin = time.monotonic()
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {too_large}\r\n\r\n"
        raw.sendall(head.encode() + b"x" * 65536)
        answer = b"".join(iter(lambda: raw.recv(65536), b"")).decode()
    assert answer.startswith("HTTP/1.1 413") and '"error"' in answer
    assert time.monotonic() - begin < 1
    assert server.ask("fine").status_code == 200


def test_a_body_without_a_length_is_cut_at_the_limit(server: Server) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        while sent < 4 * BODY_LIMIT_BYTES:
            sent += 1 << 20
            yield b"x" * (1 << 20)

    with httpx.Client(trust_env=False, timeout=30) as http:
        try:
            assert http.post(f"{server.url}/v1/chat/completions", content=endless()).status_code == 413
        except httpx.WriteError:
            pass  # the answer was sent, and the connection closed on the rest of the body
    assert sent < 2 * BODY_LIMIT_BYTES
    assert server.ask("fine").status_code == 200


def test_health_answers_while_a_large_body_is_read(server: Server) -> None:
    import threading

    slowest, done = 0.0, threading.Event()

    def watch() -> None:
        nonlocal slowest
        with httpx.Client(trust_env=False, timeout=30) as http:
            while not done.is_set():
                begin = time.monotonic()
                assert http.get(f"{server.url}/health").status_code == 200
                slowest = max(slowest, time.monotonic() - begin)
                time.sleep(0.01)

    thread = threading.Thread(target=watch)
    thread.start()
    response = server.ask("words and " * 1_200_000)
    done.set()
    thread.join()
    assert response.status_code == 400
    assert slowest < 1.0


def test_the_same_seed_c058(server: Server) -> None:
    recorded = case("c058")["input"]

    def said(**fields: Any) -> str:
        response = server.post(recorded["base"] | fields)
        assert response.status_code == 200
        return json.dumps(response.json()["choices"])

    answers = [said(**{key: value for key, value in run.items() if key != "with"}) for run in recorded["runs"]]
    assert answers[0] == answers[1] == answers[2] != answers[3]
    assert said(seed=-1) == said(seed=-1)
    assert len({said() for _ in range(3)}) == 3


def test_logprobs_with_reasoning_and_tools_c060(server: Server) -> None:
    recorded = case("c060")["input"]
    answer = server.post(recorded["base"]).json()
    whole = answer["choices"][0]["logprobs"]["content"]
    streamed = [
        entry
        for chunk in server.events(recorded["base"])[:-1]
        for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == whole
    assert len(whole) == answer["usage"]["completion_tokens"]
    for entry in whole:
        assert entry["logprob"] <= 0 and len(entry["top_logprobs"]) == 2
        assert bytes(entry["bytes"]).decode("utf-8", "replace") == entry["token"]


def test_thinking_switches_c032(server: Server) -> None:
    requests = [request for request in case("c032")["input"]["requests"] if "completions" in request["path"]]
    counts = set()
    for request in requests:
        answer = server.post(request["json"]).json()
        assert "reasoning_content" not in answer["choices"][0]["message"]
        counts.add(answer["usage"]["prompt_tokens"])
    assert len(requests) == 2 and len(counts) == 1
    (messages,) = (request for request in case("c032")["input"]["requests"] if "messages" in request["path"])
    answer = server.post(messages["json"], messages["path"]).json()
    assert all(block["type"] != "thinking" for block in answer["content"])
    plain = {k: v for k, v in requests[0]["json"].items() if k != "chat_template_kwargs"}
    off: Any = {"thinking": False}
    for spelling in ({"enable_thinking": False}, {"thinking": {"type": "disabled"}}, {"chat_template_kwargs": off}):
        counts.add(server.post(plain | spelling).json()["usage"]["prompt_tokens"])
    assert len(counts) == 1
    thinking = server.post({k: v for k, v in requests[0]["json"].items() if k != "chat_template_kwargs"}).json()
    assert thinking["usage"]["prompt_tokens"] != counts.pop()


def test_the_tail_of_a_tool_result_c050(server: Server) -> None:
    recorded = case("c050")["input"]
    (request,) = (one["json"] for one in recorded["requests"])
    for fields in ({}, *recorded["also"]):
        usage = server.post(request | fields).json()["usage"]
        told = {key: value for key, value in (request | fields).items() if key not in ("max_tokens", "temperature")}
        tokenized = server.post(told, "/tokenize").json()
        assert usage["prompt_tokens"] == tokenized["count"]
        prompt = server.post({"tokens": tokenized["tokens"]}, "/detokenize").json()["prompt"]
        assert request["messages"][-1]["content"] in prompt


def test_tool_choice_c022_c023_c025(server: Server) -> None:
    call = server.ask("Think and call", tools=[GET_WEATHER], tool_choice="none").json()["choices"][0]
    assert "tool_calls" not in call["message"] and "get_weather" in call["message"]["content"]
    assert call["finish_reason"] == "stop"
    request = case("c023")["input"]["request"]["json"]
    for stream in (False, True):
        refused(server.post(request | {"stream": stream}), "tool_choice")
    for request in case("c025")["input"]["requests"]:
        response = server.post(request["json"])
        if request["expect_status"] == 400:
            refused(response, "tool_choice")
        else:
            assert len(response.json()["choices"][0]["message"].get("tool_calls", [])) <= 1


def test_stop_strings(server: Server) -> None:
    for stop in ("DEFGHIJ", ["nothing", "DEFGHIJ"]):
        choice = server.ask("Letters", stop=stop).json()["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("ABC ", "stop")
        chunks = server.events({"model": "demo", "messages": [{"role": "user", "content": "Letters"}], "stop": stop})
        contents = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1]]
        assert "".join(contents) == "ABC " and not any("D" in content for content in contents)
    assert server.ask("Letters", stop="DEFX").json()["choices"][0]["message"]["content"] == "ABC DEFGHIJ K"
    refused(server.ask("Letters", stop=["x"] * 17), "stop")


def test_cached_tokens_are_reported(server: Server) -> None:
    counts = [server.ask("long " * 300 + "Say hi").json()["usage"]["prompt_tokens_details"]["cached_tokens"] for _ in range(2)]
    assert counts[0] < 50 < 250 < counts[1]


def test_every_published_field_is_known() -> None:
    published = set(CompletionCreateParamsBase.__annotations__) | {"stream"}
    assert published <= set(ChatRequest.__struct_fields__)


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "u", "safety_identifier": "s", "metadata": {"a": "b"}, "prompt_cache_key": "k"},
        {"prompt_cache_retention": "24h", "prediction": {"type": "content", "content": "x"}},
        {"store": False, "modalities": ["text"], "response_format": {"type": "text"}, "verbosity": "medium"},
        {"reasoning_effort": "high"},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
        {"logit_bias": {"5": -100}, "presence_penalty": 1, "frequency_penalty": -2},
        {"min_tokens": 2, "ignore_eos": True, "max_tokens": 5, "top_k": 5, "repetition_penalty": 1.1},
        dict.fromkeys(set(ChatRequest.__struct_fields__) - {"model", "messages"}),
    ],
)
def test_fields_that_are_honoured_or_have_no_effect(server: Server, fields: dict[str, Any]) -> None:
    response = server.ask("x", **fields)
    assert response.status_code == 200, response.text


def test_the_service_tier_is_answered(server: Server) -> None:
    assert server.ask("x", service_tier="auto").json()["service_tier"] == "default"
    assert "service_tier" not in server.ask("x").json()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"store": True}, "store"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "a"}}, "audio"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"verbosity": "low"}, "verbosity"),
        ({"functions": []}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"moderation": {}}, "moderation"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream_options": {"other": True}, "stream": True}, "stream_options.other"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"tools": [{"type": "custom"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a", "strict": True}}]}, "tools[0].function.strict"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"min_tokens": 9, "max_tokens": 5}, "min_tokens"),
        ({"made_up": 1}, "made_up"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"messages": ["x"]}, "messages[0]"),
        ({"n": 500}, "n"),
        ({"temperature": None, "seed": 1.5}, "seed"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(server: Server, fields: dict[str, Any], named: str) -> None:
    refused(server.ask("x", **fields), named)


@pytest.mark.parametrize("body", [b"", b"[]", b'"x"', b"null", b"\xff\xfe", b'{"model": "demo"', b"[" * 100_000])
def test_bodies_that_are_no_request(server: Server, body: bytes) -> None:
    refused(server.post(body), "body")


def test_unknown_paths_and_methods_have_error_bodies(server: Server) -> None:
    with httpx.Client(base_url=server.url, trust_env=False) as http:
        for response, status in ((http.get("/v1/nothing"), 404), (http.get("/v1/chat/completions"), 405)):
            assert response.status_code == status
            assert response.json()["error"]["type"] == "invalid_request_error"


def test_no_chat_template_c119(tmp_path: Path) -> None:
    folder = tmp_path / "bare"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes((DEMO / "tokenizer.json").read_bytes())
    with Server(tmp_path, {"rules": []}, model=demo_model(folder)) as server:
        error = refused(server.ask("x"), "tokenizer_config.json")
        assert "no chat template" in error["message"] and "chat_template.jinja" in error["message"]
        assert server.ask("x", tools=[GET_WEATHER]).status_code == 400
