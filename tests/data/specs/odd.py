"""A model nobody trained, of parts that rarely meet: four streams, shared indices, layers with two mixers."""

from __future__ import annotations

from ftc.spec import (
    MLP,
    Attention,
    Block,
    Branch,
    Config,
    Experts,
    GatedDelta,
    GatedRMSNorm,
    HyperConnections,
    Indexer,
    Model,
    MoE,
    PlainResidual,
    RMSNorm,
    Rope,
    Router,
    SharedExpert,
    WeightRules,
)
from ftc.spec.parameters import block_parameters, expert_record, model_parameters

ARCHITECTURES = ()


def model(c: Config) -> Model:
    """Layers in turn: indexer + dense; shared indices, gated delta and experts as three branches of one block.

    `streams` 1 is the plain residual, `index_top_k` 0 full attention.
    """
    norm = RMSNorm(1e-6)

    def attention(mode: str) -> Attention:
        indexer = Indexer(c.index_heads, c.index_dim, c.index_top_k, mode) if c.index_top_k else None
        rope = Rope(theta=1e4, dim=c.head_dim)
        return Attention(c.heads, c.kv_heads, c.head_dim, rope=rope, indexer=indexer)

    delta = GatedDelta(c.delta_heads, c.delta_heads, c.delta_dim, c.delta_dim, 4, GatedRMSNorm(1e-6))
    moe = MoE(Router(c.top_k, renormalize=True), Experts(c.experts, c.width), SharedExpert(c.width, gate="sigmoid"))
    full = Block((Branch("mixer", attention("full"), norm), Branch("ffn", MLP(c.width), norm)))
    double = Block((Branch("mixer", attention("shared"), norm), Branch("memory", delta, norm), Branch("ffn", moe, norm)))
    bare = Model(
        name="odd",
        hidden=c.hidden,
        vocab=c.vocab,
        context_tokens=512,
        blocks=tuple((full, double)[i % 2] for i in range(c.layers)),
        final_norm=norm,
        weights=WeightRules({}),
        residual=HyperConnections(c.streams, iterations=4) if c.streams > 1 else PlainResidual(),
    )
    return Model(
        name=bare.name,
        hidden=bare.hidden,
        vocab=bare.vocab,
        context_tokens=bare.context_tokens,
        blocks=bare.blocks,
        final_norm=norm,
        weights=WeightRules({path: path for path in _paths(bare)}),
        residual=bare.residual,
    )


def _paths(m: Model) -> list[str]:
    """Every parameter is stored under its own path."""
    own = [p.path for p in model_parameters(m)]
    for i, block in enumerate(m.blocks):
        own += [f"blocks.{i}.{p.path}" for p in block_parameters(m, block)]
    for i, branch in m.moe_branches:
        record = expert_record(m, branch)
        own += [f"blocks.{i}.{record.path}.{matrix}" for matrix in record.matrices]
    return own
