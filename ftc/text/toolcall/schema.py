"""Which JSON types a tool's schema allows for a parameter, and how a value written as plain text becomes JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ftc.errors import RequestError
from ftc.text.toolcall.json_value import JsonValue

ANY = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
STRING = frozenset({"string"})


class ToolSchemas:
    """The declared tools of a request (OpenAI-shaped), by name. Raises RequestError for one without a name."""

    def __init__(self, tools: Sequence[Mapping[str, Any]] | None) -> None:
        self._parameters: dict[str, Mapping[str, Any]] = {}
        for i, tool in enumerate(tools or ()):
            function = tool.get("function")
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                raise RequestError("a tool needs a function with a name", where=f"tools[{i}].function.name")
            parameters = function.get("parameters")
            self._parameters[function["name"]] = parameters if isinstance(parameters, dict) else {}

    def __contains__(self, name: str) -> bool:
        return name in self._parameters

    def declares(self, tool: str, parameter: str) -> bool:
        """Whether the tool's schema lists the parameter."""
        return parameter in self._properties(tool)

    def types(self, tool: str, parameter: str) -> frozenset[str]:
        """JSON types the parameter may have; only `string` where nothing is declared."""
        if not self.declares(tool, parameter):
            return STRING
        return _types(self._properties(tool)[parameter], self._parameters[tool], {})

    def schema(self, tool: str) -> Mapping[str, Any]:
        """The JSON schema of a tool's arguments; empty where nothing is declared."""
        return self._parameters.get(tool, {})

    def types_of(self, schema: Mapping[str, Any]) -> frozenset[str]:
        """JSON types that a schema without references allows."""
        return _types(schema, {}, {})

    def _properties(self, tool: str) -> Mapping[str, Any]:
        properties = self._parameters.get(tool, {}).get("properties")
        return properties if isinstance(properties, dict) else {}


def to_json(text: str, types: frozenset[str]) -> str:
    """JSON text of a value written as plain `text` for a parameter of these types.

    The text itself where it is JSON of an allowed type, else a JSON string: a value is never lost.
    """
    bare = text.strip()
    if types == STRING:
        return json.dumps(text, ensure_ascii=False)
    if "boolean" in types and bare in ("True", "False"):
        return bare.lower()
    if "null" in types and bare == "None":
        return "null"
    scan = JsonValue()
    end = scan.push(bare)
    scan.finish()
    if scan.done and end == len(bare) and _kind(bare) & types:
        return bare
    return json.dumps(text, ensure_ascii=False)


def _kind(text: str) -> frozenset[str]:
    """The types that a valid JSON text satisfies. Quoted text counts as none for a string: its quotes are data."""
    match text[0]:
        case "{":
            return frozenset({"object"})
        case "[":
            return frozenset({"array"})
        case "t" | "f":
            return frozenset({"boolean"})
        case "n":
            return frozenset({"null"})
        case '"':
            return frozenset()
    return frozenset({"number", "integer"}) if text.lstrip("-").isdigit() else frozenset({"number"})


def _types(schema: Any, root: Mapping[str, Any], known: dict[str, frozenset[str]]) -> frozenset[str]:
    """`known` holds the references met so far, so each is followed once and a circle ends."""
    if not isinstance(schema, dict):
        return ANY
    if isinstance(reference := schema.get("$ref"), str):
        if reference not in known:
            known[reference] = ANY
            known[reference] = _types(_resolve(reference, root), root, known)
        return known[reference]
    if isinstance(kind := schema.get("type"), str):
        return frozenset({kind})
    if isinstance(kind, list):
        return frozenset(k for k in kind if isinstance(k, str))
    for key in ("anyOf", "oneOf"):
        if isinstance(branches := schema.get(key), list):
            return frozenset().union(*(_types(branch, root, known) for branch in branches))
    if isinstance(branches := schema.get("allOf"), list) and branches:
        return frozenset.intersection(*(_types(branch, root, known) for branch in branches))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return frozenset().union(*(STRING if isinstance(v, str) else _kind(json.dumps(v)) for v in values))
    return ANY


def _resolve(reference: str, root: Mapping[str, Any]) -> Any:
    node: Any = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        node = node.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(node, dict) else None
    return node
