"""Text from tokens equals the whole decode, whatever the borders of tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ftc.text.detokenize import Detokenizer


class Vocabulary:
    """Token i is `tokens[i]`; the last one is special."""

    def __init__(self, tokens: list[bytes]) -> None:
        self.tokens = tokens

    def token_bytes(self, id: int) -> bytes:
        return self.tokens[id]

    def is_special(self, id: int) -> bool:
        return id == len(self.tokens) - 1


@given(text=st.text(), data=st.data())
def test_text_cut_at_any_byte_comes_back_without_replacements(text: str, data: st.DataObject) -> None:
    raw = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)))))
    tokens = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    detokenizer = Detokenizer(Vocabulary([*tokens, b"<end>"]))
    assert "".join([detokenizer.push([id]) for id in range(len(tokens))]) + detokenizer.flush() == text


@given(st.lists(st.binary(max_size=5)))
def test_bytes_that_are_no_text_are_replaced_as_in_a_whole_decode(tokens: list[bytes]) -> None:
    detokenizer = Detokenizer(Vocabulary([*tokens, b"."]), skip_special=False)
    shown = "".join(detokenizer.push([id]) for id in range(len(tokens) + 1))
    assert shown == b"".join([*tokens, b"."]).decode("utf-8", "replace")


def test_a_character_cut_by_the_end_is_dropped() -> None:
    detokenizer = Detokenizer(Vocabulary([b"ok", "😀".encode()[:3], b"<end>"]))
    assert detokenizer.push([0, 1]) == "ok" and detokenizer.flush() == ""
    assert detokenizer.push([0]) == "ok"


def test_special_tokens_are_left_out_unless_kept() -> None:
    vocabulary = Vocabulary([b"a", b"<end>"])
    assert Detokenizer(vocabulary).push([0, 1, 0]) == "aa"
    assert Detokenizer(vocabulary, skip_special=False).push([0, 1]) == "a<end>"
    assert Detokenizer(vocabulary, keep=[1]).push([0, 1]) == "a<end>"
