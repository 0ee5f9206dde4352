"""Shapes and order of parameters, for mixers and residuals that no embedded family has."""

from __future__ import annotations

from ftc.spec import (
    MLP,
    Attention,
    Block,
    Branch,
    Experts,
    Gate,
    GatedDelta,
    GatedRMSNorm,
    Head,
    HyperConnections,
    Indexer,
    LayerNorm,
    Model,
    MoE,
    ReLU2,
    RMSNorm,
    Router,
    SharedExpert,
    WeightRules,
    pre_norm,
)
from ftc.spec.parameters import block_parameters, expert_record, model_parameters

NORM = RMSNorm(1e-6)


def made(block: Block, **fields: object) -> Model:
    return Model("m", 8, 16, 32, (block,), NORM, WeightRules({}), **fields)  # type: ignore[arg-type]


def shapes(model: Model) -> dict[str, tuple[int, ...]]:
    found = block_parameters(model, model.blocks[0])
    assert len({p.path for p in found}) == len(found)
    return {p.path: p.shape for p in found}


def test_attention_with_everything() -> None:
    attention = Attention(
        4, 2, 6, value_dim=5, qk_norm=LayerNorm(1e-6, over="projection"), gate=Gate(per="head", source="own"), qkv_bias=True,
        out_bias=True, sinks=True, indexer=Indexer(3, 7, 2),
    )  # fmt: skip
    own = shapes(made(Block((Branch("a", attention, NORM, post_norm=NORM),))))
    assert own == {
        "a.norm": (8,), "a.qkv": (4 * 6 + 2 * 6 + 2 * 5, 8), "a.qkv_bias": (46,), "a.q_norm": (24,), "a.q_norm_bias": (24,),
        "a.k_norm": (12,), "a.k_norm_bias": (12,), "a.gate": (4, 8), "a.sinks": (4,), "a.index_q": (21, 8),
        "a.index_k": (7, 8), "a.index_weights": (3, 8), "a.out": (8, 20), "a.out_bias": (8,), "a.post_norm": (8,),
    }  # fmt: skip


def test_gate_in_the_query_doubles_it_and_shared_indices_need_nothing() -> None:
    attention = Attention(4, 2, 6, gate=Gate(), indexer=Indexer(3, 7, 2, "shared"))
    own = shapes(made(Block((Branch("a", attention, None),))))
    assert own == {"a.qkv": (48 + 12 + 12, 8), "a.out": (8, 24)}


def test_gated_delta() -> None:
    own = shapes(made(Block((Branch("d", GatedDelta(2, 4, 3, 5, 4, GatedRMSNorm(1e-6), "channel"), None),))))
    assert own == {
        "d.in": (2 * 6 + 20 + 20 + 4 + 12, 8), "d.conv": (32, 4), "d.log_decay": (4,), "d.decay_bias": (12,),
        "d.inner_norm": (5,), "d.out": (8, 20),
    }  # fmt: skip


def test_gated_delta_through_low_ranks() -> None:
    delta = GatedDelta(4, 4, 3, 5, 4, GatedRMSNorm(1e-6), "channel", decay_rank=6, gate_rank=7)
    own = shapes(made(Block((Branch("d", delta, None),))))
    assert own == {
        "d.in": (2 * 12 + 20 + 7 + 4 + 6, 8), "d.gate_up": (20, 7), "d.decay_up": (12, 6), "d.conv": (44, 4),
        "d.log_decay": (4,), "d.decay_bias": (12,), "d.inner_norm": (5,), "d.out": (8, 20),
    }  # fmt: skip


def test_experts_looked_up_by_token_id_need_a_table() -> None:
    moe = MoE(Router(2, table=16), Experts(6, 5))
    table = next(p for p in moe.parameters(8) if p.path == "router_table")
    assert (table.shape, table.precision, table.linear) == ((16, 2), "int32", False)


def test_moe_and_its_record() -> None:
    moe = MoE(Router(2, bias=True), Experts(6, 5, ReLU2(), identity=2), SharedExpert(3, ReLU2(), gate="sigmoid"))
    model = made(pre_norm(RMSNorm(1e-6, "none"), Attention(1, 1, 8), moe))
    own = {k: v for k, v in shapes(model).items() if k.startswith("ffn")}
    assert own == {
        "ffn.router": (8, 8), "ffn.router_bias": (8,), "ffn.shared_gate_up": (3, 8), "ffn.shared_down": (8, 3),
        "ffn.shared_gate": (1, 8),
    }  # fmt: skip
    record = expert_record(model, model.blocks[0].branches[1])
    assert record.path == "ffn.experts" and record.matrices == ("up", "down") and record.elements == 2 * 5 * 8


def test_streams_and_the_models_own() -> None:
    streams = HyperConnections(4)
    model = made(Block((Branch("f", MLP(6, bias=True), NORM),)), head=Head(bias=True), residual=streams)
    assert shapes(model) == {
        "f.norm": (8,), "f.gate_up": (12, 8), "f.down": (8, 6), "f.gate_up_bias": (12,), "f.down_bias": (8,),
        "f.streams": (24, 32), "f.streams_base": (24,), "f.streams_scale": (3,),
    }  # fmt: skip
    assert [(p.path, p.shape, p.precision) for p in model_parameters(model)] == [
        ("embedding", (16, 8), "run"), ("final_norm", (8,), "run"), ("final.streams", (4, 32), "float32"),
        ("final.streams_base", (4,), "float32"), ("final.streams_scale", (1,), "float32"), ("head", (16, 8), "run"),
        ("head_bias", (16,), "float32"),
    ]  # fmt: skip


def test_a_tied_embedding_is_a_linear_too() -> None:
    block = Block((Branch("f", MLP(6), NORM),))
    tied, untied = (made(block, head=Head(tied=t)) for t in (True, False))
    assert [(p.path, p.linear) for p in model_parameters(tied)] == [("embedding", True), ("final_norm", False)]
    assert [(p.path, p.linear) for p in model_parameters(untied)][::2] == [("embedding", False), ("head", True)]
