"""What the content blocks of the messages API are in a conversation as templates expect it.

A user message may hold results of several calls and text: each run of text is a user turn, each result a tool turn, in
the order in which they stand.
"""

from __future__ import annotations

from typing import Any

from ftc.errors import RequestError

# A first system block of this form changes with every request, which would keep the cache from ever being used.
NONCE = "x-anthropic-billing-header:"
_TEXT_ONLY = "this server reads text only"


def system_texts(system: str | list[dict[str, Any]] | None, keep_nonce: bool) -> str:
    """The system prompt as one text; without blocks that differ from request to request, unless they are kept."""
    if system is None:
        return ""
    blocks = [{"type": "text", "text": system}] if isinstance(system, str) else system
    texts = [_text(block, f"system[{at}]") for at, block in enumerate(blocks)]
    return "\n\n".join(text for text in texts if text and (keep_nonce or not text.startswith(NONCE)))


def turns(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages as chat messages. Raises RequestError naming `messages[i]...`."""
    found: list[dict[str, Any]] = []
    called: set[str] = set()
    for at, message in enumerate(messages):
        where = f"messages[{at}]"
        role = message.get("role")
        content = message.get("content")
        if role not in ("user", "assistant", "system"):
            raise RequestError("unknown role", where=f"{where}.role", value=role, hint="roles are user and assistant")
        if isinstance(content, str):
            blocks: list[Any] = [{"type": "text", "text": content}]
        elif isinstance(content, list):
            blocks = content
        else:
            raise RequestError("must be a text or a list of blocks", where=f"{where}.content", value=content)
        if role == "assistant":
            found.append(_assistant(blocks, f"{where}.content", called))
        elif role == "system":
            text = "\n\n".join(_text(block, f"{where}.content[{i}]") for i, block in enumerate(blocks))
            found.append({"role": "system", "content": text})
        else:
            found += _user(blocks, f"{where}.content", called)
    return found


def _assistant(blocks: list[Any], where: str, called: set[str]) -> dict[str, Any]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for at, block in enumerate(blocks):
        place = f"{where}[{at}]"
        match _kind(block, place):
            case "text":
                texts.append(_text(block, place))
            case "thinking":
                thoughts.append(_string(block.get("thinking"), f"{place}.thinking"))
            case "redacted_thinking":
                pass
            case "tool_use":
                calls.append(_call(block, place))
                called.add(calls[-1]["id"])
            case kind:
                raise RequestError("this kind of block is not supported here", where=place, value=kind, hint=_TEXT_ONLY)
    turn: dict[str, Any] = {"role": "assistant", "content": "\n".join(text for text in texts if text)}
    if thoughts:
        turn["reasoning_content"] = "\n".join(thoughts)
    if calls:
        turn["tool_calls"] = calls
    return turn


def _user(blocks: list[Any], where: str, called: set[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for at, block in enumerate(blocks):
        place = f"{where}[{at}]"
        match _kind(block, place):
            case "text":
                text = _text(block, place)
                if found and found[-1]["role"] == "user":
                    found[-1]["content"] += f"\n{text}"
                else:
                    found.append({"role": "user", "content": text})
            case "tool_result":
                found.append(_result(block, place, called))
            case kind:
                raise RequestError("this kind of block is not supported here", where=place, value=kind, hint=_TEXT_ONLY)
    return found or [{"role": "user", "content": ""}]


def _call(block: dict[str, Any], where: str) -> dict[str, Any]:
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        raise RequestError("expected an object", where=f"{where}.input", value=arguments)
    id = _string(block.get("id"), f"{where}.id")
    function = {"name": _string(block.get("name"), f"{where}.name"), "arguments": arguments}
    return {"id": id, "type": "function", "function": function}


def _result(block: dict[str, Any], where: str, called: set[str]) -> dict[str, Any]:
    id = _string(block.get("tool_use_id"), f"{where}.tool_use_id")
    if id not in called:
        raise RequestError("no tool_use block before it has this id", where=f"{where}.tool_use_id", value=id)
    content = block.get("content")
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    text = "\n".join(_text(one, f"{where}.content[{at}]") for at, one in enumerate(blocks))
    if block.get("is_error") is True and "error" not in text[:40].lower():
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": id, "content": text}


def _kind(block: Any, where: str) -> str:
    if not isinstance(block, dict):
        raise RequestError("must be a block with a type", where=where, value=type(block).__name__)
    return str(block.get("type"))


def _text(block: Any, where: str) -> str:
    if (kind := _kind(block, where)) != "text":
        raise RequestError("this kind of block is not supported here", where=where, value=kind, hint=_TEXT_ONLY)
    return _string(block.get("text"), f"{where}.text")


def _string(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise RequestError("must be a text", where=where, value=None if value is None else type(value).__name__)
    return value
