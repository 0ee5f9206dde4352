"""docs/api.md is what the code says, and what it says of a field holds."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.unit.serve.server import Server

ROOT = Path(__file__).parents[3]
BASE: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "demo", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2},
    "/v1/responses": {"model": "demo", "input": "x", "max_output_tokens": 2},
    "/v1/messages": {"model": "demo", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2},
    "/v1/messages/count_tokens": {"model": "demo", "messages": [{"role": "user", "content": "x"}]},
    "/v1/completions": {"model": "demo", "prompt": "x", "max_tokens": 2},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [1]},
}
# A value of the right type for each kind of field: the first that a route takes says that the field is known.
VALUES: list[Any] = ["a", {"a": "b"}, 1, True, [], ["a"], [{"a": "b"}]]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docgen", ROOT / "tools" / "docgen.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


docgen = load()


def test_the_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "api.md").read_text(encoding="utf-8") == docgen.page(), "run tools/docgen.py"


@pytest.mark.parametrize("api", docgen.APIS, ids=lambda api: api[1])
def test_what_the_page_says_of_a_field_holds(server: Server, api: Any) -> None:
    _, route, kind, no_effect, refused = api
    path = route.split()[1].rstrip(",")
    base = BASE[path]
    assert not set(no_effect) & set(refused)
    assert set(refused) <= set(kind.__struct_fields__)
    assert server.post(base, path).status_code == 200
    for field in set(no_effect) & set(kind.__struct_fields__):
        codes = [server.post(base | {field: value}, path).status_code for value in VALUES]
        assert 200 in codes, f"{field} is said to have no effect, but is refused"
    for field, allowed in refused.items():
        answers = [server.post(base | {field: value}, path) for value in VALUES if value not in allowed]
        assert {answer.status_code for answer in answers} == {400}, field
        assert all(field in answer.json()["error"]["message"] for answer in answers)
        assert all(server.post(base | {field: value}, path).status_code == 200 for value in allowed)
