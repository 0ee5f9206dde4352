"""Which reader understands a call syntax."""

from __future__ import annotations

from ftc.spec.chat import CallList, CallObject, CallSyntax, InvokeTags, JsonInTags, NestedTags, SectionCalls, TaggedPairs
from ftc.text.toolcall.base import CallReader
from ftc.text.toolcall.call_list import CallListReader
from ftc.text.toolcall.call_object import CallObjectReader
from ftc.text.toolcall.invoke_tags import InvokeTagsReader
from ftc.text.toolcall.json_in_tags import JsonInTagsReader
from ftc.text.toolcall.nested_tags import NestedTagsReader
from ftc.text.toolcall.schema import ToolSchemas
from ftc.text.toolcall.section_calls import SectionCallsReader
from ftc.text.toolcall.tagged_pairs import TaggedPairsReader
from ftc.text.toolcall.xml_functions import XmlFunctionsReader


def reader(syntax: CallSyntax, tools: ToolSchemas) -> CallReader:
    """A fresh reader for one call, to be given the text behind the opening mark."""
    match syntax:
        case JsonInTags():
            return JsonInTagsReader(syntax)
        case InvokeTags():
            return InvokeTagsReader(syntax, tools)
        case TaggedPairs():
            return TaggedPairsReader(syntax, tools)
        case SectionCalls():
            return SectionCallsReader(syntax)
        case CallList():
            return CallListReader(syntax, tools)
        case CallObject():
            return CallObjectReader(syntax)
        case NestedTags():
            return NestedTagsReader(syntax, tools)
    return XmlFunctionsReader(syntax, tools)
