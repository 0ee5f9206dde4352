"""The same model text is the same answer through every API, whole and streamed (rule S5 of tests/data/cases)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.serve.server import GET_WEATHER, Server

FUNCTION: dict[str, Any] = GET_WEATHER["function"]
Answer = tuple[str, str, list[tuple[str, Any]]]


def chat(server: Server, text: str, streamed: bool) -> Answer:
    request = {"model": "demo", "messages": [{"role": "user", "content": text}], "tools": [GET_WEATHER], "seed": 1}
    if not streamed:
        message = server.post(request).json()["choices"][0]["message"]
        calls = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message.get("tool_calls", [])]
        return message.get("reasoning_content", ""), message["content"] or "", calls
    reasoning = content = ""
    names, arguments = [], dict[int, str]()
    for chunk in server.events(request)[:-1]:
        delta = chunk["choices"][0]["delta"]
        reasoning += delta.get("reasoning_content", "")
        content += delta.get("content", "")
        for call in delta.get("tool_calls", []):
            names += [call["function"]["name"]] if "name" in call["function"] else []
            arguments[call["index"]] = arguments.get(call["index"], "") + call["function"].get("arguments", "")
    return reasoning, content, list(zip(names, map(json.loads, arguments.values()), strict=True))


def messages(server: Server, text: str, streamed: bool) -> Answer:
    tool = {"name": FUNCTION["name"], "description": FUNCTION["description"], "input_schema": FUNCTION["parameters"]}
    request = {"model": "demo", "max_tokens": 512, "messages": [{"role": "user", "content": text}], "tools": [tool], "seed": 1}
    blocks: list[dict[str, Any]] = []
    if not streamed:
        blocks = server.post(request, "/v1/messages").json()["content"]
    else:
        for name, data in server.named_events(request, "/v1/messages"):
            if name == "content_block_start":
                blocks.append(data["content_block"] | {"partial": ""})
            elif name == "content_block_delta":
                delta = data["delta"]
                field = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial"}[delta["type"]]
                blocks[data["index"]][field] += delta["partial_json" if field == "partial" else field]
        for block in blocks:
            if block["type"] == "tool_use":
                block["input"] = json.loads(block["partial"])
    return (
        "".join(block.get("thinking", "") for block in blocks),
        "".join(block.get("text", "") for block in blocks),
        [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"],
    )


def responses(server: Server, text: str, streamed: bool) -> Answer:
    request = {"model": "demo", "input": text, "tools": [{"type": "function", **FUNCTION}], "seed": 1}
    reasoning = content = ""
    calls: list[tuple[str, Any]] = []
    if not streamed:
        for item in server.post(request, "/v1/responses").json()["output"]:
            if item["type"] == "reasoning":
                reasoning += item["content"][0]["text"]
            elif item["type"] == "message":
                content += item["content"][0]["text"]
            else:
                calls.append((item["name"], json.loads(item["arguments"])))
        return reasoning, content, calls
    arguments: dict[str, str] = {}
    names: dict[str, str] = {}
    for name, data in server.named_events(request, "/v1/responses"):
        if name == "response.reasoning_text.delta":
            reasoning += data["delta"]
        elif name == "response.output_text.delta":
            content += data["delta"]
        elif name == "response.output_item.added" and data["item"]["type"] == "function_call":
            names[data["item"]["id"]], arguments[data["item"]["id"]] = data["item"]["name"], ""
        elif name == "response.function_call_arguments.delta":
            arguments[data["item_id"]] += data["delta"]
    return reasoning, content, [(names[id], json.loads(text)) for id, text in arguments.items()]


@pytest.mark.parametrize("text", ["Say hi", "Think, then call", "Call two", "Letters", "Draw", "Call and echo"])
def test_all_apis_give_the_same(server: Server, text: str) -> None:
    seen = [api(server, text, streamed) for api in (chat, messages, responses) for streamed in (False, True)]
    assert all(one == seen[0] for one in seen), seen
    assert any(seen[0])
