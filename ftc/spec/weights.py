"""Weight rules: for each parameter of a spec, one source expression over the tensors of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec


class Source(msgspec.Struct, frozen=True, tag=True):
    """Base of source expressions; a plain string in a rule is `Tensor(name)`."""


class Tensor(Source, frozen=True, tag="tensor"):
    """A tensor of the checkpoint. `{i}` is the block number, `{e}` the expert, `{p}` the prefix found."""

    name: str


class Concat(Source, frozen=True, tag="concat"):
    parts: tuple[Source, ...]
    dim: int = 0


class Stack(Source, frozen=True, tag="stack"):
    """`part` for each expert {e}, along a new first dimension."""

    part: Source


class Slice(Source, frozen=True, tag="slice"):
    """`size` entries of dimension `dim` from `start`, every `step`-th (2 undoes an interleaving)."""

    part: Source
    dim: int
    start: int
    size: int
    step: int = 1


class Transpose(Source, frozen=True, tag="transpose"):
    """The last two dimensions swapped."""

    part: Source


class Reshape(Source, frozen=True, tag="reshape"):
    part: Source
    shape: tuple[int, ...]


class Either(Source, frozen=True, tag="either"):
    """The first option whose tensors are all in the checkpoint: layouts that exist side by side in public files."""

    options: tuple[Source, ...]


Rule = Source | str


class Skip(msgspec.Struct, frozen=True):
    """Tensors (a glob over names) that are left unused on purpose, and why."""

    pattern: str
    reason: str


class WeightRules(msgspec.Struct, frozen=True):
    """`rules`: parameter path (or pattern with `{i}`) -> source, the path itself first. `prefixes`: candidates for `{p}`.

    The prefix under which most tensors are found is taken, the first of equals.
    """

    rules: dict[str, Rule]
    skip: tuple[Skip, ...] = ()
    prefixes: tuple[str, ...] = ("",)


def tensor(name: str) -> Tensor:
    return Tensor(name)


def as_source(rule: Rule) -> Source:
    return Tensor(rule) if isinstance(rule, str) else rule


def concat(*parts: Rule, dim: int = 0) -> Concat:
    return Concat(tuple(as_source(p) for p in parts), dim)


def either(*options: Rule) -> Either:
    return Either(tuple(as_source(o) for o in options))


def stack(part: Rule) -> Stack:
    return Stack(as_source(part))


def rows(part: Rule, start: int, size: int, dim: int = 0, step: int = 1) -> Slice:
    return Slice(as_source(part), dim, start, size, step)


def transpose(part: Rule) -> Transpose:
    return Transpose(as_source(part))


def reshape(part: Rule, *shape: int) -> Reshape:
    return Reshape(as_source(part), shape)


def bind(source: Source, prefix: str, block: int | None, expert: int | None = None) -> Source:
    """The source with `{p}`, `{i}` and `{e}` filled in; a None leaves its mark standing."""
    match source:
        case Tensor(name=name):
            name = name.replace("{p}", prefix)
            if block is not None:
                name = name.replace("{i}", str(block))
            return Tensor(name if expert is None else name.replace("{e}", str(expert)))
        case Concat(parts=parts, dim=dim):
            return Concat(tuple(bind(p, prefix, block, expert) for p in parts), dim)
        case Either(options=options):
            return Either(tuple(bind(o, prefix, block, expert) for o in options))
        case Stack(part=part) | Transpose(part=part) | Slice(part=part) | Reshape(part=part):
            return msgspec.structs.replace(source, part=bind(part, prefix, block, expert))
    raise TypeError(f"not a source expression: {source!r}")


def names(source: Source, experts: int) -> Iterator[str]:
    """Names of the tensors a bound source reads: a `Stack` one for each of `experts`, an `Either` every option's."""
    match source:
        case Tensor(name=name):
            yield name
        case Concat(parts=parts):
            for part in parts:
                yield from names(part, experts)
        case Either(options=options):
            for option in options:
                yield from names(option, experts)
        case Stack(part=part):
            own = list(names(part, experts))
            for e in range(experts):
                yield from (name.replace("{e}", str(e)) for name in own)
        case Transpose(part=part) | Slice(part=part) | Reshape(part=part):
            yield from names(part, experts)


def settle(source: Source, present: Callable[[str], bool], experts: int) -> Source:
    """The bound source without `Either`: the first option whose tensors are all present, else the most complete one."""
    match source:
        case Tensor():
            return source
        case Concat(parts=parts, dim=dim):
            return Concat(tuple(settle(p, present, experts) for p in parts), dim)
        case Either(options=options):
            shares = []
            for option in (settle(o, present, experts) for o in options):
                found = [present(name) for name in names(option, experts)]
                if all(found):
                    return option
                shares.append((sum(found) / len(found), option))
            return max(shares, key=lambda s: s[0])[1]
        case Stack(part=part) | Transpose(part=part) | Slice(part=part) | Reshape(part=part):
            return msgspec.structs.replace(source, part=settle(part, present, experts))
    raise TypeError(f"not a source expression: {source!r}")
