"""What is refused in a spec before anything is traced, with the field's name."""

from __future__ import annotations

import msgspec
import pytest

from ftc.errors import SpecError
from ftc.spec import (
    MLP,
    Attention,
    Block,
    BlockIndexer,
    Branch,
    Experts,
    GatedDelta,
    GatedRMSNorm,
    Groups,
    Indexer,
    Model,
    MoE,
    PairFactors,
    RMSNorm,
    Rope,
    Router,
    WeightRules,
    pre_norm,
)
from ftc.spec.check import check_model

NORM = RMSNorm(1e-6)
ATTENTION = Attention(4, 2, 16)
DELTA = GatedDelta(2, 4, 8, 8, 4, GatedRMSNorm(1e-6))
MOE = MoE(Router(2), Experts(8, 6))


def model(*blocks: Block, **fields: int) -> Model:
    sizes = {"hidden": 8, "vocab": 16, "context_tokens": 32, **fields}
    return Model("m", sizes["hidden"], sizes["vocab"], sizes["context_tokens"], blocks, NORM, WeightRules({}))


def of(mixer: object = ATTENTION, ffn: object = MOE) -> Model:
    return model(pre_norm(NORM, mixer, ffn))  # type: ignore[arg-type]


def but(part: msgspec.Struct, **fields: object) -> object:
    return msgspec.structs.replace(part, **fields)


def test_legal_specs() -> None:
    check_model(of(), "x")
    check_model(model(pre_norm(NORM, DELTA, MLP(6)), pre_norm(NORM, ATTENTION, MOE)), "x")


@pytest.mark.parametrize(
    ("bad", "where"),
    [
        (model(), "at least one block"),
        (model(pre_norm(NORM, ATTENTION, MOE), hidden=0), "x: hidden"),
        (model(pre_norm(NORM, ATTENTION, MOE), context_tokens=-1), "x: context_tokens"),
        (model(Block((Branch("a", ATTENTION, NORM), Branch("a", MOE, NORM)))), "branch names repeat"),
        (of(but(ATTENTION, heads=0)), "x: block 0 mixer: heads"),
        (of(but(ATTENTION, head_dim=True)), "x: block 0 mixer: head_dim"),
        (of(but(ATTENTION, kv_heads=3)), "x: block 0 mixer: kv_heads"),
        (of(but(ATTENTION, rope=Rope(1e4, 15))), "rope.dim"),
        (of(but(ATTENTION, rope=Rope(1e4, 18))), "rope.dim"),
        (of(but(DELTA, key_heads=3)), "key_heads"),
        (of(but(DELTA, conv_width=0)), "conv_width"),
        (of(ffn=MLP(0)), "x: block 0 ffn: width"),
        (of(ffn=but(MOE, router=Router(9))), "top_k"),
        (of(ffn=but(MOE, router=Router(0))), "top_k"),
        (of(ffn=but(MOE, experts=Experts(0, 6))), "experts"),
        (of(ffn=but(MOE, router=Router(2, groups=Groups(3, 1)))), "groups"),
        (of(ffn=but(MOE, router=Router(2, groups=Groups(4, 5)))), "groups"),
        (of(ffn=but(MOE, router=Router(5, groups=Groups(4, 2)))), "hold fewer experts than the 5"),
        (of(ffn=but(MOE, router=Router(2, score="sparse_mixer", bias=True))), "router"),
        (of(but(ATTENTION, block_indexer=BlockIndexer(3, 8, 4, 2))), "block_indexer.heads"),
        (of(but(ATTENTION, block_indexer=BlockIndexer(2, 8, 4, 2, local=3))), "block_indexer.local"),
        (of(but(ATTENTION, block_indexer=BlockIndexer(2, 8, 4, 2), chunk=8)), "only one thing may choose"),
        (of(but(ATTENTION, rope=Rope(1e4, 16, scaling=PairFactors((1.0,) * 7)))), "rope.scaling.factors"),
        (of(but(ATTENTION, indexer=Indexer(2, 8, 16, "shared"))), "before any layer chose"),
        (model(pre_norm(NORM, ATTENTION, MOE), pre_norm(NORM, but(ATTENTION, head_dim=8), MOE)), "kv"),
        (model(pre_norm(NORM, ATTENTION, MOE), pre_norm(NORM, ATTENTION, but(MOE, experts=Experts(8, 7)))), "several sizes"),
    ],
)  # fmt: skip
def test_illegal_specs(bad: Model, where: str) -> None:
    with pytest.raises(SpecError) as e:
        check_model(bad, "x")
    assert where in str(e.value)
