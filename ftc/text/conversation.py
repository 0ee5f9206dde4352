"""How client messages are brought into the one shape that chat templates expect.

A late system message becomes a user turn `<system>\\n...\\n</system>` where it stands: many templates refuse a system
turn that is not the first, and moving its text to the front would change the whole prompt behind it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ftc.errors import RequestError

ROLES = ("system", "developer", "user", "assistant", "tool")
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")


def normalize(messages: Any) -> list[dict[str, Any]]:
    """OpenAI-shaped messages as templates expect them; the input is not changed.

    Content is text (parts joined, absent is ""), roles are system (first only), user, assistant and tool, and the
    arguments of calls are objects where their text is a JSON object. Raises RequestError naming `messages[i]...`.
    """
    if not isinstance(messages, list):
        raise RequestError("must be a list of messages", where="messages", value=type(messages).__name__)
    if not messages:
        raise RequestError("needs at least one message", where="messages", value=[])
    turns = [_turn(message, f"messages[{i}]") for i, message in enumerate(messages)]
    first = next((i for i, turn in enumerate(turns) if turn["role"] != "system"), len(turns))
    for turn in turns[first:]:
        if turn["role"] == "system":
            turn["role"], turn["content"] = "user", f"<system>\n{turn['content']}\n</system>"
    if first < 2:
        return turns
    merged = "\n\n".join(turn["content"] for turn in turns[:first] if turn["content"])
    return [{"role": "system", "content": merged}, *turns[first:]]


def text_arguments_as_objects(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages with every arguments text `t` that is no object replaced by `{"arguments": t}`."""
    return [
        {**message, "tool_calls": [_with_object(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else dict(message)
        for message in messages
    ]


def _with_object(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    if isinstance(function["arguments"], str):
        function["arguments"] = {"arguments": function["arguments"]}
    return {**call, "function": function}


def _turn(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise RequestError("must be an object with a role", where=where, value=type(message).__name__)
    role = message.get("role")
    if role not in ROLES:
        raise RequestError("unknown role", where=f"{where}.role", value=role, hint=f"roles are {', '.join(ROLES)}")
    turn: dict[str, Any] = {
        "role": "system" if role == "developer" else role,
        "content": _content(message.get("content"), f"{where}.content"),
    }
    for key in ("name", "tool_call_id"):
        if message.get(key) is not None:
            turn[key] = _string(message[key], f"{where}.{key}")
    if role == "assistant":
        _add_assistant_fields(turn, message, where)
    elif message.get("tool_calls"):
        raise RequestError("only assistant messages have tool calls", where=f"{where}.tool_calls", value=role)
    return turn


def _add_assistant_fields(turn: dict[str, Any], message: dict[str, Any], where: str) -> None:
    if message.get("function_call") is not None:
        raise RequestError("function_call is not supported", where=f"{where}.function_call", hint="use tool_calls")
    for key in REASONING_KEYS:
        if message.get(key) is not None:
            turn["reasoning_content"] = turn["thinking"] = _string(message[key], f"{where}.{key}")
            break
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise RequestError("must be a list", where=f"{where}.tool_calls", value=type(calls).__name__)
    if calls:
        turn["tool_calls"] = [_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)]


def _content(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError("must be a text or a list of parts", where=where, value=type(content).__name__)
    return "".join(_part(part, f"{where}[{i}]") for i, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    if kind not in ("text", "refusal"):
        raise RequestError("this kind of content is not supported", where=where, value=kind, hint="send text only")
    return _string(part.get(kind), f"{where}.{kind}")


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise RequestError("must be an object with a function", where=where)
    name = _string(function.get("name"), f"{where}.function.name")
    if not name:
        raise RequestError("a call needs the name of its function", where=f"{where}.function.name", value=name)
    arguments = _arguments(function.get("arguments"), f"{where}.function.arguments")
    identity = {"id": _string(call["id"], f"{where}.id")} if call.get("id") is not None else {}
    return {**identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def _arguments(arguments: Any, where: str) -> dict[str, Any] | str:
    if arguments is None:
        return {}
    if isinstance(arguments, dict):
        return arguments
    text = _string(arguments, where)
    if not text.strip():
        return {}
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _string(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise RequestError("must be a text", where=where, value=None if value is None else type(value).__name__)
    return value
