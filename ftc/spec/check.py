"""What makes a spec legal: sizes that divide, references that resolve; each refusal names the field."""

from __future__ import annotations

from ftc.errors import SpecError
from ftc.spec.ffn import MoE
from ftc.spec.model import HyperConnections, Model
from ftc.spec.parameter import require_positive
from ftc.spec.scan import DecayAttention


def check_model(model: Model, where: str) -> None:
    """Raises SpecError for the first thing that no engine could run."""
    require_positive(where, hidden=model.hidden, vocab=model.vocab, context_tokens=model.context_tokens)
    if not model.blocks:
        raise SpecError("a model needs at least one block", where=where)
    for i, block in enumerate(model.blocks):
        names = [b.name for b in block.branches]
        if len(set(names)) != len(names):
            raise SpecError("branch names repeat", where=f"{where}: block {i}", value=names)
        for branch in block.branches:
            branch.body.check(f"{where}: block {i} {branch.name}")
    for extra in model.extra:
        require_positive(f"{where}: {extra.name}", layers=extra.layers)
        for branch in (b for block in extra.blocks for b in block.branches):
            branch.body.check(f"{where}: {extra.name} {branch.name}")
    sizes = {}
    for name, (group, _) in model.cache_groups().items():
        sizes[name] = group
    for uses in model.cache_uses():
        for use in (u for own in uses.values() for u in own):
            if use.group != sizes[use.group.name]:
                raise SpecError(
                    "layers that share a cache group keep different sizes in it",
                    where=f"{where}: {use.group.name}",
                    value=(use.group.elements, sizes[use.group.name].elements),
                    hint="give the other layers their own group name",
                )
    experts = [b.body.experts for _, b in model.moe_branches if isinstance(b.body, MoE)]
    records = {(e.count, e.width, e.latent, e.activation.gated) for e in experts}
    if len(records) > 1:
        raise SpecError("MoE layers have experts of several sizes", where=where, value=sorted(records))
    _indices(model, where)
    _residuals(model, where)
    _counts(model, where)


def _residuals(model: Model, where: str) -> None:
    """Several streams are mixed by their own rule: what one stream can have besides a plain sum does not go with them."""
    for i, block in enumerate(model.blocks):
        for b in block.branches:
            own = b.keeps != "stream" or b.stream_scale != 1.0 or b.gate is not None or b.late
            if own and isinstance(model.residual, HyperConnections):
                raise SpecError("does not go with several residual streams", where=f"{where}: block {i} {b.name}")


def _counts(model: Model, where: str) -> None:
    """What is made once for all layers has a part for each that takes one."""
    if model.per_layer_inputs and model.embedding.per_layer is None:
        raise SpecError("layers take inputs of a table that is not there", where=f"{where}: embedding.per_layer")
    uses, written = model.cache_uses(), set()
    scans: dict[DecayAttention, int] = {}
    for i, block in enumerate(model.blocks):
        for b in block.branches:
            if isinstance(b.body, DecayAttention):
                scans[b.body] = scans.get(b.body, 0) + 1
            if getattr(b.body, "shares_cache", False) and uses[i][b.name][0].group.name not in written:
                raise SpecError("shares a cache that no earlier layer wrote", where=f"{where}: block {i} {b.name}")
            written |= {use.group.name for use in uses[i].get(b.name, ())}
    for mixer, layers in scans.items():
        if len(mixer.factors) != layers:
            raise SpecError(f"one factor for each of {layers} layers", where=f"{where}: factors", value=len(mixer.factors))


def _indices(model: Model, where: str) -> None:
    have = False
    for i, block in enumerate(model.blocks):
        for branch in block.branches:
            indexer = getattr(branch.body, "indexer", None)
            if indexer is None:
                continue
            if indexer.mode == "shared" and not have:
                raise SpecError("shares indices before any layer chose them", where=f"{where}: block {i} {branch.name}")
            have = True
