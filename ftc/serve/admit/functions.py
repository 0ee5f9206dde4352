"""Which tools a request declares and whether the model may call them, for every API."""

from __future__ import annotations

from typing import Any

from ftc.errors import RequestError
from ftc.serve.model import ServedModel


def function(name: Any, description: Any, parameters: Any, strict: Any, where: str, schema: str) -> dict[str, Any]:
    """One declared function as templates expect it. `where` names the tool, `schema` the field of its JSON schema.

    Raises RequestError naming the field.
    """
    if not isinstance(name, str) or not name:
        raise RequestError("expected a name", where=f"{where}.name", value=name)
    if description is not None and not isinstance(description, str):
        raise RequestError("expected a text", where=f"{where}.description")
    if not isinstance(parameters, dict | None):
        raise RequestError("expected a JSON schema", where=f"{where}.{schema}")
    if strict:
        raise RequestError("not supported by this server", where=f"{where}.strict", value=True)
    told: dict[str, Any] = {"name": name}
    if description is not None:
        told["description"] = description
    told["parameters"] = parameters if parameters is not None else {"type": "object", "properties": {}}
    return {"type": "function", "function": told}


def in_namespace(namespace: str, name: str) -> str:
    """The name that the model knows a function of a namespace by."""
    return f"{namespace.removesuffix('__')}__{name}"


def check_syntax(tools: list[dict[str, Any]], model: ServedModel) -> list[dict[str, Any]] | None:
    """The tools, or None where there are none. Raises RequestError where the model's dialect has no calls."""
    if tools and model.template is not None and model.syntax is None:
        raise RequestError("this model's chat template has no tools", where="tools")
    return tools or None


def check_choice(kind: str, named: str | None, tools: list[dict[str, Any]] | None, asked: Any) -> bool:
    """Whether the model may call; forcing it to is not possible yet.

    `kind` is the choice's own word, `named` the tool it names and `asked` the whole value. Raises RequestError naming
    `tool_choice`.
    """
    if kind in ("auto", "none"):
        return kind == "auto"
    if not tools:
        raise RequestError("there are no tools to choose from", where="tool_choice", value=asked)
    if named is not None and named not in [tool["function"]["name"] for tool in tools]:
        raise RequestError("names no declared tool", where="tool_choice", value=asked)
    raise RequestError("only 'auto' and 'none' are supported", where="tool_choice", value=asked)
