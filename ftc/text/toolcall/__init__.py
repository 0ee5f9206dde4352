"""Which reader understands a call syntax."""

from __future__ import annotations

from ftc.spec.chat import JsonInTags, ToolSyntax
from ftc.text.toolcall.base import CallReader
from ftc.text.toolcall.json_in_tags import JsonInTagsReader
from ftc.text.toolcall.schema import ToolSchemas
from ftc.text.toolcall.xml_functions import XmlFunctionsReader


def reader(syntax: ToolSyntax, tools: ToolSchemas) -> CallReader:
    """A fresh reader for one call, to be given the text behind the opening mark."""
    return JsonInTagsReader(syntax) if isinstance(syntax, JsonInTags) else XmlFunctionsReader(syntax, tools)
