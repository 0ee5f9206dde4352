"""Latent attention and its indexer as specs: parameters, cache, checks; sizes are counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

from ftc.errors import SpecError
from ftc.spec import Gate, Indexer, LatentAttention, LayerNorm, RMSNorm, Rope

INDEXER = Indexer(3, 6, 2, rope=Rope(1e4, 4), key_norm=LayerNorm(1e-6))


def latent(**changes: Any) -> LatentAttention:
    fields: dict[str, Any] = dict(heads=4, latent=10, plain_dim=6, rope_dim=4, value_dim=5, norm=RMSNorm(1e-6))
    return LatentAttention(**(fields | {"rope": Rope(1e4, 4)} | changes))


def shapes(mixer: LatentAttention) -> dict[str, tuple[int, ...]]:
    return {p.path: p.shape for p in mixer.parameters(8)}


def test_queries_straight_from_the_hidden_vector() -> None:
    assert shapes(latent()) == {
        "in": (4 * 10 + 10 + 4, 8), "latent_norm": (10,), "up": (4 * (6 + 5), 10), "out": (8, 4 * 5),
    }  # fmt: skip


def test_query_latent_gate_and_indexer() -> None:
    own = shapes(latent(query_latent=7, gate=Gate(per="head", source="own"), indexer=INDEXER))
    assert own == {
        "in": (7 + 10 + 4, 8), "query_norm": (7,), "query": (40, 7), "latent_norm": (10,), "up": (44, 10),
        "index_q": (18, 7), "index_k": (6, 8), "index_k_norm": (6,), "index_k_norm_bias": (6,), "index_weights": (3, 8),
        "gate": (4, 8), "out": (8, 20),
    }  # fmt: skip


def test_a_token_leaves_its_latent_and_the_shared_part_and_a_full_indexers_key() -> None:
    assert [(g.name, g.per, g.shape) for g in latent(indexer=INDEXER).groups()] == [
        ("latent", "token", (14,)), ("index", "token", (6,)),
    ]  # fmt: skip
    shared = latent(indexer=Indexer(3, 6, 2, "shared"))
    assert [g.name for g in shared.groups()] == ["latent"] and set(shapes(shared)) == set(shapes(latent()))
    assert set(shared.constants()) == {"rope"} and set(latent(indexer=INDEXER).constants()) == {"rope", "index_rope"}


def test_what_an_indexer_chose_does_not_grow_with_the_context() -> None:
    per_key = 2 * 4 * (10 + 10 + 4)
    assert (latent().step_flops(), latent().context_flops()) == (0, per_key)
    assert (latent(indexer=INDEXER).step_flops(), latent(indexer=INDEXER).context_flops()) == (2 * per_key, 2 * 3 * 6)
    assert latent(indexer=Indexer(3, 6, 2, "shared")).context_flops() == 0


@pytest.mark.parametrize(
    ("bad", "where"),
    [
        (latent(heads=0), "x: heads"),
        (latent(query_latent=-1), "x: query_latent"),
        (latent(rope=Rope(1e4, 2)), "x: rope"),
        (latent(gate=Gate(per="head", source="query")), "x: gate"),
        (latent(indexer=Indexer(3, 6, 0)), "x: top_k"),
        (latent(indexer=Indexer(3, 6, 2, rope=Rope(1e4, 8))), "x: rope.dim"),
    ],
)
def test_refused(bad: LatentAttention, where: str) -> None:
    with pytest.raises(SpecError) as caught:
        bad.check("x")
    assert where in str(caught.value)
