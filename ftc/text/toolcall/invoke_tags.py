"""How a call written with invoke and parameter tags is read: names are attributes, values are taken to the letter."""

from __future__ import annotations

import json
import re

from ftc.spec.chat import InvokeTags, XmlFunctions
from ftc.text.toolcall.json_value import JsonValue
from ftc.text.toolcall.schema import ANY, STRING, ToolSchemas
from ftc.text.toolcall.xml_functions import XmlFunctionsReader


class InvokeTagsReader(XmlFunctionsReader):
    """Reads `<invoke name="NAME"> <parameter name="KEY">VALUE</parameter> ... </invoke>`."""

    def __init__(self, syntax: InvokeTags, tools: ToolSchemas) -> None:
        tags = XmlFunctions(
            open=syntax.open,
            close=syntax.close,
            function_open=syntax.invoke_open,
            function_close=syntax.invoke_close,
            parameter_open=syntax.parameter_open,
            parameter_close=syntax.parameter_close,
        )
        super().__init__(tags, tools)
        self._raw = re.compile(rf'\b{re.escape(syntax.raw)}="(true|false)"')
        self._framed = False
        self._again = syntax.invoke_open
        self._is_json = False

    def _read_tag(self, inner: str) -> tuple[str, str]:
        name, _, attributes = inner.partition('"')
        return name.strip(), attributes

    def _types_of(self, key: str, attributes: str) -> frozenset[str]:
        flag = self._raw.search(attributes)
        self._is_json = flag is not None and flag.group(1) == "false"
        if self._is_json:
            return ANY
        return super()._types_of(key, attributes) if flag is None else STRING

    def _to_json(self, text: str) -> str:
        if not self._is_json:
            return super()._to_json(text)
        bare = text.strip()
        scan = JsonValue()
        end = scan.push(bare)
        scan.finish()
        return bare if scan.done and end == len(bare) else json.dumps(text, ensure_ascii=False)
