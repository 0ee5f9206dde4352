"""What makes a spec legal: sizes that divide, references that resolve; each refusal names the field."""

from __future__ import annotations

from ftc.errors import SpecError
from ftc.spec.ffn import FFN, MLP, MoE
from ftc.spec.mixer import Attention, GatedDelta, Mixer
from ftc.spec.model import Model


def check_model(model: Model, where: str) -> None:
    """Raises SpecError for the first thing that no engine could run."""
    for name, value in (("hidden", model.hidden), ("vocab", model.vocab), ("context_tokens", model.context_tokens)):
        _positive(where, name, value)
    if not model.blocks:
        raise SpecError("a model needs at least one block", where=where)
    for i, block in enumerate(model.blocks):
        names = [b.name for b in block.branches]
        if len(set(names)) != len(names):
            raise SpecError("branch names repeat", where=f"{where}: block {i}", value=names)
        for branch in block.branches:
            _body(branch.body, f"{where}: block {i} {branch.name}")
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


def _positive(where: str, name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise SpecError("must be a positive whole number", where=f"{where}: {name}", value=value)


def _body(body: Mixer | FFN, where: str) -> None:
    match body:
        case Attention():
            for name in ("heads", "kv_heads", "head_dim"):
                _positive(where, name, getattr(body, name))
            if body.heads % body.kv_heads:
                near = max(k for k in range(1, body.kv_heads + 1) if body.heads % k == 0)
                raise SpecError(
                    f"key/value heads do not divide the {body.heads} query heads",
                    where=f"{where}: kv_heads",
                    value=body.kv_heads,
                    hint=f"the nearest that would is {near}",
                )
            if body.rope is not None and (body.rope.dim % 2 or not 0 < body.rope.dim <= body.head_dim):
                raise SpecError(
                    f"rope needs an even number of at most {body.head_dim} elements",
                    where=f"{where}: rope.dim",
                    value=body.rope.dim,
                )
        case GatedDelta():
            for name in ("key_heads", "value_heads", "key_dim", "value_dim", "conv_width"):
                _positive(where, name, getattr(body, name))
            if body.value_heads % body.key_heads:
                raise SpecError(
                    f"key heads do not divide the {body.value_heads} value heads",
                    where=f"{where}: key_heads",
                    value=body.key_heads,
                )
        case MLP():
            _positive(where, "width", body.width)
        case MoE():
            for name, value in (("experts", body.experts.count), ("width", body.experts.width)):
                _positive(where, name, value)
            _positive(where, "top_k", body.router.top_k)
            total = body.experts.count + body.experts.identity
            if body.router.top_k > total:
                raise SpecError(f"takes more than the {total} experts", where=f"{where}: top_k", value=body.router.top_k)
            groups = body.router.groups
            if groups is not None and (total % groups.count or not 0 < groups.taken <= groups.count):
                raise SpecError(
                    f"{total} experts do not fall into such groups",
                    where=f"{where}: groups",
                    value=(groups.count, groups.taken),
                )
