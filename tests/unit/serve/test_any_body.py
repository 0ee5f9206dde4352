"""Whatever JSON a body holds, it becomes jobs or one error for the client, never a failure of the server."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftc.errors import FtcError
from ftc.serve.admit import chat, completions, messages, responses
from ftc.serve.admit.items import as_items
from ftc.serve.body import decode
from ftc.serve.errors import describe, describe_for_messages
from ftc.serve.model import ServedModel
from ftc.serve.schema.chat import ChatRequest
from ftc.serve.schema.completions import CompletionRequest
from ftc.serve.schema.messages import MessagesRequest
from ftc.serve.schema.responses import ResponsesRequest
from tests.unit.serve.server import GET_WEATHER, case, demo_model

MODEL = demo_model()
FUNCTION = GET_WEATHER["function"]


def ask_chat(body: bytes, model: ServedModel) -> Any:
    return chat.admit(decode(body, ChatRequest), model, 4096, "x")


def ask_messages(body: bytes, model: ServedModel) -> Any:
    return messages.admit(decode(body, MessagesRequest), model, 4096, "x", False)


def ask_responses(body: bytes, model: ServedModel) -> Any:
    asked = decode(body, ResponsesRequest)
    return responses.admit(asked, as_items(asked.input), model, 4096, "x")


def ask_completions(body: bytes, model: ServedModel) -> Any:
    return completions.admit(decode(body, CompletionRequest), model, 4096, "x")


CHAT = case("c050")["input"]["requests"][0]["json"]
APIS: dict[str, tuple[Callable[[bytes, ServedModel], Any], dict[str, Any], type]] = {
    "chat": (ask_chat, CHAT | {"tool_choice": "auto", "stop": ["a"], "logit_bias": {"5": 1}}, ChatRequest),
    "messages": (
        ask_messages,
        case("c047")["input"]["requests"][0]["json"] | {"system": [{"type": "text", "text": "x"}], "thinking": None},
        MessagesRequest,
    ),
    "responses": (
        ask_responses,
        case("c072")["input"]["requests"][0]["json"] | {"reasoning": {"effort": "low"}, "include": ["a.b"]},
        ResponsesRequest,
    ),
    "completions": (ask_completions, {"model": "demo", "prompt": ["x", [1, 2]], "stop": "x"}, CompletionRequest),
}
WORDS = ["", "a", "demo", "user", "assistant", "tool", "system", "text", "function", "tool_use", "tool_result", "auto", "none"]
KEYS = ["type", "text", "role", "content", "name", "id", "function", "parameters"]
# The last is half a character, which JSON can write and UTF-8 cannot.
scalars = (
    st.none() | st.booleans() | st.integers(-3, 10) | st.floats(-2, 2) | st.sampled_from([*WORDS, "{}", "\0", "\ud800"])
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of everything in a JSON value but itself."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, one in inner for found in ((*path, key), *places(one, (*path, key)))]


def changed(body: Any, path: tuple[Any, ...], value: Any) -> Any:
    body = copy.deepcopy(body)
    node = body
    for key in path[:-1]:
        node = node[key]
    if value is ...:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return body


@pytest.mark.parametrize("name", APIS)
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_changed_request_is_served_or_refused(name: str, data: st.DataObject) -> None:
    ask, body, kind = APIS[name]
    if data.draw(st.booleans()):
        body = changed(body, data.draw(st.sampled_from(places(body))), data.draw(values | st.just(...)))
    if data.draw(st.booleans()):
        body = body | {data.draw(st.sampled_from(sorted(kind.__struct_fields__))): data.draw(values)}
    try:
        jobs = ask(json.dumps(body).encode(), MODEL)
    except FtcError as error:
        for told in (describe(error), describe_for_messages(error)):
            assert 400 <= told[0] < 500 and told[1]["error"]["message"]
        return
    assert jobs and all(0 < job.max_tokens and len(job.prompt.tokens) + job.max_tokens <= 4096 for job in jobs)


@pytest.mark.parametrize("name", APIS)
def test_the_unchanged_request_is_served(name: str) -> None:
    ask, body, _ = APIS[name]
    assert ask(json.dumps(body).encode(), MODEL)


def test_half_a_character_in_replayed_arguments_is_replaced() -> None:
    request = copy.deepcopy(CHAT)
    request["messages"][1]["tool_calls"][0]["function"]["arguments"] = '{"city": "a\\ud800b"}'
    (job,) = ask_chat(json.dumps(request).encode(), MODEL)
    assert "a" in MODEL.tokenizer.decode(job.prompt.tokens)
