"""What the items of the responses API are in a conversation as templates expect it.

Reasoning, message and calls of one turn of the model are separate items; they become one assistant message again.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from ftc.errors import RequestError
from ftc.serve.admit.functions import in_namespace

# Says that the sealed text is one of this server; others' cannot be read and are left out.
SEAL = b"ftc1:"
_TEXT_PARTS = ("input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text")


def seal(text: str) -> str:
    """Reasoning in a form that clients carry without looking into it."""
    return base64.b64encode(SEAL + text.encode()).decode()


def as_items(input: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A request's input as items."""
    return [{"type": "message", "role": "user", "content": input}] if isinstance(input, str) else input


def turns(items: list[dict[str, Any]], instructions: str | None) -> list[dict[str, Any]]:
    """The items as chat messages. Raises RequestError naming `input[i]...`."""
    found: list[dict[str, Any]] = []
    if instructions:
        found.append({"role": "system", "content": instructions})
    called: set[str] = set()
    for at, item in enumerate(items):
        where = f"input[{at}]"
        match item.get("type", "message"):
            case "message":
                _add_message(found, item, where)
            case "reasoning":
                if text := _reasoning(item, where):
                    _add_to(_assistant(found), "reasoning_content", text)
            case "function_call":
                call = _call(item, where)
                called.add(call["id"])
                _assistant(found).setdefault("tool_calls", []).append(call)
            case "function_call_output":
                id = _string(item.get("call_id"), f"{where}.call_id")
                if id not in called:
                    raise RequestError("no function_call before it has this id", where=f"{where}.call_id", value=id)
                found.append({"role": "tool", "tool_call_id": id, "content": _text(item.get("output"), f"{where}.output")})
            case kind:
                raise RequestError("this kind of item is not supported", where=f"{where}.type", value=kind)
    if not found or all(turn["role"] == "system" for turn in found):
        raise RequestError("needs at least one message", where="input")
    return found


def _add_message(found: list[dict[str, Any]], item: dict[str, Any], where: str) -> None:
    role = item.get("role")
    text = _text(item.get("content"), f"{where}.content")
    if role == "assistant":
        _add_to(_assistant(found), "content", text)
    elif role in ("system", "developer", "user"):
        found.append({"role": role, "content": text})
    else:
        raise RequestError("unknown role", where=f"{where}.role", value=role)


def _assistant(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The assistant message in the making, or a new one."""
    if not found or found[-1]["role"] != "assistant":
        found.append({"role": "assistant", "content": ""})
    return found[-1]


def _add_to(turn: dict[str, Any], key: str, text: str) -> None:
    before = turn.get(key)
    turn[key] = f"{before}\n{text}" if before else text


def _reasoning(item: dict[str, Any], where: str) -> str:
    """The reasoning's own text, else what was sealed by this server, else the summary."""
    for key in ("content", "encrypted_content", "summary"):
        value = item.get(key)
        text = _opened(value) if key == "encrypted_content" else _text(value or "", f"{where}.{key}")
        if text:
            return text
    return ""


def _opened(value: Any) -> str:
    try:
        data = base64.b64decode(value, validate=True) if isinstance(value, str) else b""
        return data.removeprefix(SEAL).decode() if data.startswith(SEAL) else ""
    except (binascii.Error, ValueError):
        return ""


def _call(item: dict[str, Any], where: str) -> dict[str, Any]:
    name = _string(item.get("name"), f"{where}.name")
    if item.get("namespace") is not None:
        name = in_namespace(_string(item["namespace"], f"{where}.namespace"), name)
    function = {
        "name": name,
        "arguments": _string(item.get("arguments"), f"{where}.arguments"),
    }
    return {"id": _string(item.get("call_id"), f"{where}.call_id"), "type": "function", "function": function}


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError("must be a text or a list of parts", where=where, value=type(content).__name__)
    texts = []
    for at, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind not in _TEXT_PARTS:
            raise RequestError(
                "this kind of content is not supported", where=f"{where}[{at}]", value=kind, hint="send text only"
            )
        texts.append(_string(part.get("refusal" if kind == "refusal" else "text"), f"{where}[{at}].text"))
    return "".join(texts)


def _string(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise RequestError("must be a text", where=where, value=None if value is None else type(value).__name__)
    return value
