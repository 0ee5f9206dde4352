"""Text completion and tokens by themselves, as the published client asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.completion_create_params import CompletionCreateParamsBase

from ftc.serve.schema.completions import CompletionRequest
from tests.unit.serve.server import GET_WEATHER, Server

PATH = "/v1/completions"
STORY = " a time there was a fox."


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def refused(server: Server, request: Any, named: str, path: str = PATH) -> None:
    response = server.post(request, path)
    assert response.status_code == 400, response.text
    assert named in response.json()["error"]["param"]


def test_a_text_goes_on(client: openai.OpenAI, server: Server) -> None:
    ids = server.model.tokenizer.encode("Once upon")
    for prompt in ("Once upon", ids):
        answer = client.completions.create(model="demo", prompt=prompt, max_tokens=50)
        (choice,) = answer.choices
        assert (choice.text, choice.finish_reason) == (STORY, "stop")
        assert answer.usage is not None and answer.usage.prompt_tokens == len(ids)
        echoed = client.completions.create(model="demo", prompt=prompt, max_tokens=50, echo=True)
        assert echoed.choices[0].text == "Once upon" + STORY
        chunks = client.completions.create(model="demo", prompt=prompt, max_tokens=50, echo=True, stream=True)
        assert "".join(chunk.choices[0].text for chunk in chunks) == "Once upon" + STORY


def test_marks_of_the_dialect_are_text(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="demo", prompt="Think and call", max_tokens=100)
    assert "get_weather" in answer.choices[0].text
    assert answer.choices[0].finish_reason == "stop"


def test_several_prompts_and_answers_are_in_order(client: openai.OpenAI, server: Server) -> None:
    prompts = ["Once upon", "Letters", server.model.tokenizer.encode("Once upon")]
    request: dict[str, Any] = {"prompt": prompts, "n": 2, "max_tokens": 50}
    answer = client.completions.create(model="demo", **request)
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert [STORY in choice.text for choice in answer.choices] == [True, True, False, False, True, True]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 2 * len(prompts[2]) + len(server.model.tokenizer.encode("Letters"))
    texts = dict.fromkeys(range(6), "")
    for chunk in client.completions.create(model="demo", stream=True, stream_options={"include_usage": True}, **request):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
        last = chunk
    assert list(texts.values()) == [choice.text for choice in answer.choices]
    assert last.usage is not None and last.usage.total_tokens == answer.usage.total_tokens


def test_logprobs_and_offsets(client: openai.OpenAI) -> None:
    request: dict[str, Any] = {"prompt": "Once upon", "logprobs": 3, "max_tokens": 50}
    (choice,) = client.completions.create(model="demo", **request).choices
    found = choice.logprobs
    assert found is not None and found.tokens and found.text_offset and found.top_logprobs and found.token_logprobs
    assert "".join(found.tokens) == choice.text
    for token, offset, top in zip(found.tokens, found.text_offset, found.top_logprobs, strict=True):
        assert choice.text[offset:].startswith(token)
        assert len(top) == 3
    streamed = [
        token
        for chunk in client.completions.create(model="demo", stream=True, **request)
        for token in (chunk.choices[0].logprobs.tokens or [] if chunk.choices[0].logprobs else [])
    ]
    assert streamed == found.tokens


def test_the_standards_own_limit(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="demo", prompt="Count")
    assert answer.usage is not None and answer.usage.completion_tokens == 16
    assert answer.choices[0].finish_reason == "length"
    stopped = client.completions.create(model="demo", prompt="Once upon", max_tokens=50, stop="there")
    assert stopped.choices[0].text == " a time "


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, 10**9]}, "prompt"),
        ({"prompt": [[1, -1]]}, "prompt[0][1]"),
        ({"prompt": [1.5]}, "prompt[0]"),
        ({"prompt": ["x", {}]}, "prompt[1]"),
        ({"prompt": ["x"] * 200}, "prompt"),
        ({"prompt": "word " * 5000}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"echo": True, "logprobs": 1}, "logprobs"),
        ({"logprobs": 50}, "logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"made_up": 1}, "made_up"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(server: Server, fields: dict[str, Any], named: str) -> None:
    refused(server, {"model": "demo", "prompt": "x"} | fields, named)


def test_every_published_field_is_known() -> None:
    published = set(CompletionCreateParamsBase.__annotations__) | {"stream"}
    assert published <= set(CompletionRequest.__struct_fields__)


def test_tokenize_and_back(server: Server) -> None:
    text = "Hello <|im_start|> 你好 😀"
    told = server.post({"prompt": text, "return_token_strs": True}, "/tokenize").json()
    assert told["tokens"] == server.model.tokenizer.encode(text, special=True)
    assert (told["count"], told["max_model_len"]) == (len(told["tokens"]), 4096)
    assert len(told["token_strs"]) == told["count"]
    assert server.post({"tokens": told["tokens"]}, "/v1/detokenize").json() == {"prompt": text}


def test_a_conversation_has_the_tokens_that_it_costs(server: Server) -> None:
    messages = [{"role": "user", "content": "Say hi"}]
    told = server.post({"model": "demo", "messages": messages, "tools": [GET_WEATHER]}, "/v1/tokenize").json()
    usage = server.post({"model": "demo", "messages": messages, "tools": [GET_WEATHER]}).json()["usage"]
    assert told["count"] == usage["prompt_tokens"]


def test_what_is_no_token_request(server: Server) -> None:
    refused(server, {}, "prompt", "/tokenize")
    refused(server, {"prompt": "x", "messages": []}, "prompt", "/tokenize")
    refused(server, {"messages": []}, "messages", "/tokenize")
    refused(server, {"tokens": [10**9]}, "tokens[0]", "/detokenize")
    refused(server, {"tokens": ["x"]}, "tokens", "/detokenize")
