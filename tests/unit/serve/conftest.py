"""One server for all tests that only ask it things."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.serve.server import Server

CALL = '</think>\n\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
READ = '<tool_call>\n{"name": "read", "arguments": {"path": "a.txt"}}\n</tool_call>'
RULES = [
    {"tail": "Echo", "echo": True},
    {"tail": "Call and echo", "text": "Plan.\n</think>\n\nReading.\n" + READ},
    {"tail": "DELTA", "text": "</think>\n\nALPHA BETA GAMMA DELTA"},
    {"tail": "Once upon", "text": " a time there was a fox.<|im_end|>"},
    {"tail": "-3 C", "text": "It is cold.\n</think>\n\nMinus three in Oslo."},
    {"tail": "Think, then call", "text": "I need the weather.\n" + CALL},
    {"tail": "Think and call", "text": "I need the weather.\n" + CALL},
    {"tail": "Call two", "text": CALL + "\n<tool_call>" + CALL.split("<tool_call>")[1].replace("Oslo", "Lima")},
    {"tail": "Count", "text": "</think>\n\n1 2 3 4 5 6 7 8 9", "endless": True},
    {"tail": "Draw", "draw": 24},
    {"tail": "odd sentence", "draw": 48},
    {"tail": "Letters", "text": "</think>\n\nABC DEFGHIJ K"},
    {"tail": "Fail now", "text": "</think>\n\n1 2 3 4 5 6", "fault": {"error_after": 0}},
    {"tail": "Fail later", "text": "</think>\n\n1 2 3 4 5 6", "fault": {"error_after": 6}},
    {"tail": "Say hi", "text": "A greeting.\n</think>\n\nHello there, 你好 😀!"},
    {"text": "</think>\n\nSomething."},
]


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server"), {"rules": RULES}) as server:
        yield server
