"""What is refused in specs of scans, shared caches, inputs per layer and residual gates, and what they count."""

from __future__ import annotations

import msgspec
import pytest

from ftc.errors import SpecError
from ftc.spec import (
    MLP,
    Attention,
    Block,
    Branch,
    DecayAttention,
    HyperConnections,
    Model,
    PerLayerInput,
    ResidualGate,
    RMSNorm,
    ShortConv,
    WeightRules,
)
from ftc.spec.check import check_model

NORM = RMSNorm(1e-6)
ATTENTION = Attention(4, 2, 16)
SHARING = Attention(4, 2, 16, shares_cache=True)
LINEAR = DecayAttention(4, 16, (1.0, 0.5), NORM)


def model(*blocks: Block, **fields: object) -> Model:
    made = Model("m", 8, 16, 32, blocks, NORM, WeightRules({}))
    return msgspec.structs.replace(made, **fields)


def block(mixer: object, **branch: object) -> Block:
    return Block((Branch("mixer", mixer, NORM, **branch), Branch("ffn", MLP(6), NORM)))  # type: ignore[arg-type]


def test_a_layer_that_shares_reads_the_last_own_cache_of_its_group() -> None:
    other = Attention(4, 1, 16, cache="other")
    found = model(*map(block, (ATTENTION, other, ATTENTION, SHARING, SHARING)))
    check_model(found, "x")
    assert [uses["mixer"][0].index for uses in found.cache_uses()] == [0, 0, 1, 1, 1]
    assert {name: layers for name, (_, layers) in found.cache_groups().items()} == {"kv": 2, "other": 1}
    paths = {p.path: p.shape for p in SHARING.parameters(8)}
    assert paths == {"qkv": (64, 8), "out": (8, 64)}


def test_layers_of_fixed_decays_are_one_kind() -> None:
    found = model(block(LINEAR), block(ATTENTION), block(LINEAR))
    check_model(found, "x")
    assert found.blocks[0] == found.blocks[2]
    assert LINEAR.constants()["slopes"] == [2**-2, 2**-4, 2**-6, 2**-8]


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        (model(block(SHARING), block(ATTENTION)), "block 0 mixer: shares a cache that no earlier layer wrote"),
        (model(block(LINEAR)), r"x: factors: one factor for each of 1 layers \(got 2\)"),
        (model(Block((Branch("input", PerLayerInput(4), None),))), "x: embedding.per_layer"),
        (model(block(ATTENTION, gate=ResidualGate(0.3)), residual=HyperConnections(4)), "several residual streams"),
        (model(block(ATTENTION, keeps="normed"), residual=HyperConnections(4)), "several residual streams"),
        (model(block(ShortConv(8, 0))), r"mixer: width: .*\(got 0\)"),
    ],
)
def test_refused(bad: Model, what: str) -> None:
    with pytest.raises(SpecError, match=what):
        check_model(bad, "x")
