"""What makes a spec legal: sizes that divide, references that resolve; each refusal names the field."""

from __future__ import annotations

from ftc.errors import SpecError
from ftc.spec.ffn import MoE
from ftc.spec.mixer import Attention
from ftc.spec.model import Model
from ftc.spec.parameter import require_positive


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
    records = {(b.body.experts.count, b.body.experts.width) for _, b in model.moe_branches if isinstance(b.body, MoE)}
    if len(records) > 1:
        raise SpecError("MoE layers have experts of several sizes", where=where, value=sorted(records))
    _indices(model, where)


def _indices(model: Model, where: str) -> None:
    have = False
    for i, block in enumerate(model.blocks):
        for branch in block.branches:
            indexer = branch.body.indexer if isinstance(branch.body, Attention) else None
            if indexer is None:
                continue
            if indexer.mode == "shared" and not have:
                raise SpecError("shares indices before any layer chose them", where=f"{where}: block {i} {branch.name}")
            have = True
