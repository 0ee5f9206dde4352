"""Parameter types follow JSON Schema, and values written as text become JSON of those types."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ftc.errors import RequestError
from ftc.text.toolcall.schema import ANY, ToolSchemas, to_json


def tools(schema: Any) -> ToolSchemas:
    parameters = {"type": "object", "properties": {"p": schema}, "$defs": {"Level": {"type": "integer"}}}
    return ToolSchemas([{"type": "function", "function": {"name": "t", "parameters": parameters}}])


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"string", "null"}),
        ({"allOf": [{"type": ["string", "null"]}, {"type": "string"}]}, {"string"}),
        ({"$ref": "#/$defs/Level"}, {"integer"}),
        ({"$ref": "#/nowhere"}, ANY),
        ({"enum": ["a", "b"]}, {"string"}),
        ({"const": 1.5}, {"number"}),
        ({}, ANY),
        (True, ANY),
    ],
)
def test_types_that_a_schema_allows(schema: Any, types: set[str]) -> None:
    assert tools(schema).types("t", "p") == types
    assert tools(schema).types("t", "undeclared") == {"string"} == tools(schema).types("other", "p")


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("12", {"integer"}, 12),
        ("12", {"string"}, "12"),
        ('{"a": 1}', {"string"}, '{"a": 1}'),
        (' [1, "é"]\n', {"array"}, [1, "é"]),
        ("1.5", {"integer"}, "1.5"),
        ("2", {"number"}, 2),
        ("True", {"boolean"}, True),
        ("None", {"null", "integer"}, None),
        ("null", {"string", "null"}, None),
        ("two", {"integer"}, "two"),
        ("NaN", {"number"}, "NaN"),
        ('"quoted"', ANY, '"quoted"'),
        ("true", ANY, True),
        ("", {"object"}, ""),
    ],
)
def test_a_value_becomes_json_of_an_allowed_type_or_text(text: str, types: set[str], value: Any) -> None:
    assert json.loads(to_json(text, frozenset(types))) == value


def test_a_schema_that_refers_to_itself_ends() -> None:
    schema = {"anyOf": [*[{"$ref": "#/properties/p"}] * 50, {"type": "string"}]}
    assert "string" in tools(schema).types("t", "p")


@pytest.mark.parametrize("parameters", [None, 5, {}, {"properties": None}, {"properties": []}])
def test_tools_without_parameters(parameters: Any) -> None:
    schemas = ToolSchemas([{"function": {"name": "t", "parameters": parameters}}])
    assert "t" in schemas and not schemas.declares("t", "p")


@pytest.mark.parametrize("tool", [{}, {"function": None}, {"function": {"name": None}}, {"name": "t"}])
def test_a_tool_without_a_name_is_refused(tool: Any) -> None:
    with pytest.raises(RequestError, match=r"tools\[0\]"):
        ToolSchemas([tool])
