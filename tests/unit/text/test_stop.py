"""Stop strings end the text where a search of the whole text says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftc.errors import RequestError
from ftc.text.stop import StopStrings

letters = st.text(alphabet="ab\n", max_size=20)


@given(text=letters, stops=st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), max_size=3), data=st.data())
def test_the_first_complete_stop_string_wins_at_any_split(text: str, stops: list[str], data: st.DataObject) -> None:
    expected, hit = text, None
    for end in range(1, len(text) + 1):
        if met := [stop for stop in stops if text[:end].endswith(stop)]:
            hit = max(met, key=len)
            expected = text[:end].removesuffix(hit)
            break
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    stream = StopStrings(stops)
    shown = "".join(stream.push(text[a:b])[0] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True))
    assert shown + stream.flush() == expected
    assert stream.hit == hit


@given(text=letters, stop=st.text(alphabet="ab", min_size=1, max_size=5))
def test_only_what_may_become_a_stop_string_is_held(text: str, stop: str) -> None:
    stream = StopStrings([stop])
    seen = shown = ""
    for letter in text:
        seen += letter
        shown += stream.push(letter)[0]
        if stream.hit:
            break
        held = seen[len(shown) :]
        assert stop.startswith(held) and not any(stop.startswith(seen[i:]) for i in range(len(shown)))


def test_nothing_comes_after_a_hit() -> None:
    stream = StopStrings(["x"])
    assert stream.push("axb") == ("a", "x")
    assert stream.push("c") == ("", "x") and stream.flush() == ""


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(RequestError, match="stop"):
        StopStrings(["a", ""])
