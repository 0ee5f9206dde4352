"""The words of `ftc spec show`."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftc.spec import MLP, Activation, Attention, Indexer, RMSNorm, pre_norm
from ftc.spec.load import read_model
from ftc.spec.show import branches, bytes_text, numbers, short, summary
from ftc.spec.size import measure


@pytest.mark.parametrize(
    ("blocks", "text"),
    [((), ""), ((0,), "0"), ((0, 1, 2), "0-2"), ((0, 2, 3, 7), "0, 2-3, 7")],
)
def test_layer_numbers(blocks: tuple[int, ...], text: str) -> None:
    assert numbers(blocks) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(7, "7 "), (999, "999 "), (1000, "1 k"), (19_258_336, "19.3 M"), (30_532_122_624, "30.5 G"), (1.2e12, "1.2 T")],
)
def test_counts(count: float, text: str) -> None:
    assert short(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(12, "12 B"), (98304, "96 KiB"), (1023 * 1024, "1023 KiB"), (1 << 20, "1 MiB"), (57 << 30, "57 GiB")],
)
def test_bytes(count: int, text: str) -> None:
    assert bytes_text(count) == text


def test_summary_of_the_embedded_model(demo: Path) -> None:
    model = read_model(demo)
    lines = dict(summary(model, measure(model)))
    assert lines["parameters"] == "19.3 M in all, 8.25 M active per token (43 %)"
    assert lines["experts"] == "256 of 96 KiB each in 16 bits, 48 KiB in 8, 25.5 KiB in 4" and lines["context"] == "4096 tokens"
    assert "tied" in lines["vocabulary"]


def test_branches_say_what_is_unusual() -> None:
    attention = Attention(8, 2, 64, window=128, sinks=True, value_dim=32, indexer=Indexer(4, 16, 256))
    own = dict(branches(pre_norm(RMSNorm(1e-6), attention, MLP(96, Activation("relu2", False)))))
    for words in ("values 32", "no rope", "window 128", "sinks", "top 256 indexed tokens"):
        assert words in own["mixer"]
    assert own["ffn"] == "dense, width 96, relu2"
