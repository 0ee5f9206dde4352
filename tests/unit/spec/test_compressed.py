"""Compressed attention as a spec: parameters, what is cached per token and per sequence, checks; counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

from ftc.errors import SpecError
from ftc.spec import CompressedAttention, Compressor, Indexer, RMSNorm, Rope

FEW = Compressor(4, overlap=True, indexer=Indexer(3, 8, 2))
MANY = Compressor(128)


def compressed(**changes: Any) -> CompressedAttention:
    fields: dict[str, Any] = dict(heads=4, head_dim=32, query_latent=7, window=9, rope=Rope(1e4, 8, at="tail"))
    return CompressedAttention(**(fields | dict(norm=RMSNorm(1e-6), out_groups=2, out_rank=5) | changes))


def shapes(mixer: CompressedAttention) -> dict[str, tuple[int, ...]]:
    return {p.path: p.shape for p in mixer.parameters(6)}


def test_window_alone() -> None:
    assert shapes(compressed()) == {
        "in": (7 + 32, 6), "query_norm": (7,), "query": (128, 7), "shared_norm": (32,), "sinks": (4,),
        "group_out": (10, 64), "out": (6, 10),
    }  # fmt: skip
    assert [g.shape for g in compressed().groups()] == [(32,)]


def test_overlapping_windows_with_an_indexer() -> None:
    own = shapes(compressed(compressor=FEW))
    assert {k: v for k, v in own.items() if k not in shapes(compressed())} == {
        "pool": (4 * 32 + 4 * 8, 6), "places": (4, 64), "entry_norm": (32,), "index_places": (4, 16),
        "index_entry_norm": (8,), "index_q": (24, 7), "index_weights": (3, 6),
    }  # fmt: skip


def test_entries_are_spread_over_tokens_and_open_windows_are_kept_per_sequence() -> None:
    few = {g.name: (g.per, g.shape) for g in compressed(compressor=FEW).groups()}
    assert few == {
        "shared": ("token", (32,)),
        "entry_4": ("token", (8,)), "pooling_4": ("sequence", (8, 128)),
        "index_entry_4": ("token", (2,)), "index_pooling_4": ("sequence", (8, 32)),
    }  # fmt: skip
    many = {g.name: g.shape for g in compressed(compressor=MANY).groups()}
    assert many == {"shared": (32,), "entry_128": (2,), "pooling_128": (128, 64)}


@pytest.mark.parametrize(
    ("bad", "where"),
    [
        (compressed(window=0), "x: window"),
        (compressed(out_groups=3), "x: out_groups"),
        (compressed(compressor=Compressor(0)), "x: rate"),
        (compressed(head_dim=40, compressor=MANY), "x: compressor.rate"),
        (compressed(compressor=Compressor(4, indexer=Indexer(3, 4, 2))), "x: rope.dim"),
    ],
)
def test_refused(bad: CompressedAttention, where: str) -> None:
    with pytest.raises(SpecError) as caught:
        bad.check("x")
    assert where in str(caught.value)
