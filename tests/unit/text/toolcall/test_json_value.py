"""The scanner accepts what the json library accepts, at any split."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from ftc.text.toolcall.json_value import MAX_DEPTH, JsonValue

PIECES = ["{", "}", "[", "]", '"', '"a"', ":", ",", " ", "\n", "1", "-", "0", ".5", "e9", "true", "null", "NaN", "\\",
          "\\n", "\\u00", "é", "\t", '{"a":', "01", "\x01"]  # fmt: skip
json_like = st.lists(st.sampled_from(PIECES), min_size=1, max_size=9).map("".join)
values = st.recursive(st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(), st.lists)


def is_json(text: str) -> bool:
    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True


@settings(max_examples=500)
@given(json_like)
def test_it_accepts_exactly_what_the_library_does(text: str) -> None:
    text = text.rstrip()
    scan = JsonValue()
    end = scan.push(text)
    scan.finish()
    assert (scan.done and end == len(text)) == is_json(text)
    assert scan.done != scan.broken


@given(text=values.map(json.dumps), rest=st.sampled_from([" ", ",", "}", "]x", "\n1"]), data=st.data())
def test_it_ends_where_the_value_ends_at_any_split(text: str, rest: str, data: st.DataObject) -> None:
    whole = text + rest
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)))))
    scan, read = JsonValue(), 0
    for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        if not scan.done:
            read = a + scan.push(whole[a:b])
    assert scan.done and read == len(text)


def test_nesting_is_bounded() -> None:
    deep = JsonValue()
    deep.push("[" * MAX_DEPTH)
    assert not deep.broken
    deep.push("[")
    assert deep.broken
