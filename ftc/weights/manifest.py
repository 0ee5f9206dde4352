"""Which stored tensors make each parameter, checked against the spec before a byte of them is read."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterator

import msgspec

from ftc.errors import CheckpointError, Problems
from ftc.spec.model import Model
from ftc.spec.parameters import Precision, block_parameters, expert_record, model_parameters
from ftc.spec.weights import Source, as_source, bind, names, settle
from ftc.weights.checkpoint import LISTED, Checkpoint, capped
from ftc.weights.pieces import Pieces, expand

READABLE = ("BF16", "F16", "F32")
INTEGERS = ("I32", "I64")  # what a parameter of precision "int32" may be stored as
TIED = "tied: the head reads the embedding"

_SCALED = ("F8_E4M3", "F8_E5M2", "F4", "I8", "U8")
_SCALES = ("_scale_inv", "_scale")


class Entry(msgspec.Struct, frozen=True):
    """One parameter: `path` as `embedding` or `blocks.3.mixer.qkv`, its bound source and the pieces that make it.

    Matrices of routed experts ("blocks.3.ffn.experts.gate") have shape [experts, width, hidden] and `routed`.
    """

    path: str
    source: Source
    pieces: Pieces
    precision: Precision
    routed: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return self.pieces.shape


class Manifest(msgspec.Struct, frozen=True):
    """Every parameter's entry by path, and every stored tensor that is left unused, with the reason."""

    entries: dict[str, Entry]
    skipped: dict[str, str]
    used: frozenset[str]
    prefix: str
    warnings: tuple[str, ...] = ()


class _Wanted(msgspec.Struct, frozen=True):
    path: str
    pattern: str
    block: int | None
    shape: tuple[int, ...]
    precision: Precision
    experts: int = 0


def resolve(model: Model, checkpoint: Checkpoint) -> Manifest:
    """Finds the source of every parameter. Raises Problems with everything that is wrong, files included."""
    wanted = list(_wanted(model))
    rules = {path: as_source(rule) for path, rule in model.weights.rules.items()}
    prefix = _prefix(model, rules, wanted, checkpoint)
    search = _Search(checkpoint)
    entries: dict[str, Entry] = {}
    for w in wanted:
        rule = rules.get(w.path, rules.get(w.pattern))
        if rule is None:
            search.unruled.append(CheckpointError("the spec has no weight rule for this parameter", where=w.path))
            continue
        entry = search.entry(w, bind(rule, prefix, w.block))
        if entry is not None:
            entries[w.path] = entry
    skipped = {}
    if model.head.tied and "head" in rules:
        skipped = {n: TIED for n in names(bind(rules["head"], prefix, None), 0) if n in checkpoint.tensors}
    patterns = [(re.compile(fnmatch.translate(s.pattern)), s.reason) for s in model.weights.skip]
    unused = []
    for name in checkpoint.tensors:
        if name in search.used or name in skipped:
            continue
        reason = next((reason for pattern, reason in patterns if pattern.match(name)), None)
        if reason is None:
            unused.append(name)
        else:
            skipped[name] = reason
    problems = [*checkpoint.problems, *search.unruled, *search.missing(unused), *capped(search.misfits)]
    left = "no parameter uses this tensor, and no rule skips it"
    problems += capped(CheckpointError(left, where=f"{checkpoint.tensors[n].file}: {n}") for n in unused)
    if problems:
        raise Problems(str(checkpoint.folder), problems)
    return Manifest(entries, skipped, frozenset(search.used), prefix, checkpoint.warnings)


class _Search:
    """Gathers what is used, missing or wrong while the parameters are gone through."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.shapes = {name: t.shape for name, t in checkpoint.tensors.items()}
        self.used: set[str] = set()
        self.absent: dict[str, str] = {}
        self.unruled: list[CheckpointError] = []
        self.misfits: list[CheckpointError] = []
        self._judged: set[str] = set()

    def present(self, name: str) -> bool:
        return name in self.shapes or name in self.checkpoint.lost

    def entry(self, w: _Wanted, rule: Source) -> Entry | None:
        """The parameter's entry, or None after noting why there is none."""
        source = settle(rule, self.present, w.experts)
        needed = list(names(source, w.experts))
        self.used.update(n for n in needed if n in self.shapes)
        absent = [n for n in needed if n not in self.shapes]
        self.absent.update((n, w.path) for n in absent if n not in self.checkpoint.lost)
        readable = [self._readable(n, w.precision) for n in needed if n in self.shapes]
        if absent or not all(readable):
            return None
        try:
            pieces = expand(source, self.shapes, w.experts)
        except CheckpointError as e:
            self.misfits.append(CheckpointError(f"{w.path}: {e.what}", where=e.where, value=e.value))
            return None
        if pieces.shape != w.shape:
            stored = needed[0] if len(needed) == 1 else f"{needed[0]} and {len(needed) - 1} more"
            self.misfits.append(
                CheckpointError(f"wrong shape: {w.path} needs {list(w.shape)}", where=stored, value=list(pieces.shape))
            )
            return None
        return Entry(w.path, source, pieces, w.precision, w.experts > 0)

    def _readable(self, name: str, precision: Precision) -> bool:
        tensor = self.checkpoint.tensors[name]
        wanted = INTEGERS if precision == "int32" else READABLE
        if tensor.dtype in wanted:
            return True
        if name not in self._judged:
            self._judged.add(name)
            self.misfits.append(_refused_dtype(name, tensor.dtype, tensor.file, self.shapes, wanted))
        return False

    def missing(self, unused: list[str]) -> list[CheckpointError]:
        """One error for each absent tensor; unused tensors are what a wrong name would have left over."""
        found = []
        for k, (name, path) in enumerate(self.absent.items()):
            near = difflib.get_close_matches(name, unused[:1000], n=1, cutoff=0.7) if k < LISTED else []
            hint = f"an unused tensor has a similar name: {near[0]}" if near else None
            found.append(CheckpointError(f"missing tensor, needed for {path}", where=name, hint=hint))
        return capped(found)


def _refused_dtype(
    name: str, dtype: str, file: str, stored: dict[str, tuple[int, ...]], wanted: tuple[str, ...]
) -> CheckpointError:
    if dtype in _SCALED:
        scales = [name + end for end in _SCALES]
        if not any(s in stored for s in scales):
            what = f"wrong dtype {dtype}: such values need a scale, and {scales[0]} is missing"
        else:
            what = f"the number format {dtype} with a scale is not read yet"
    else:
        what = f"wrong dtype {dtype} for a weight"
    return CheckpointError(what, where=f"{file}: {name}", hint=f"it may be {', '.join(wanted)}")


def _wanted(model: Model) -> Iterator[_Wanted]:
    for p in model_parameters(model):
        yield _Wanted(p.path, p.path, None, p.shape, p.precision)
    for i, block in enumerate(model.blocks):
        for p in block_parameters(model, block):
            yield _Wanted(f"blocks.{i}.{p.path}", f"blocks.{{i}}.{p.path}", i, p.shape, p.precision)
    for i, branch in model.moe_branches:
        record = expert_record(model, branch)
        for matrix in record.matrices:
            path = f"{record.path}.{matrix}"
            shape = (record.count, record.width, record.hidden)
            yield _Wanted(f"blocks.{i}.{path}", f"blocks.{{i}}.{path}", i, shape, "run", record.count)


def _prefix(model: Model, rules: dict[str, Source], wanted: list[_Wanted], checkpoint: Checkpoint) -> str:
    """The candidate under which most tensors of the first block and the model's own parameters are found."""
    first = [w for w in wanted if w.block in (None, 0)]

    def found(prefix: str) -> int:
        count = 0
        for w in first:
            rule = rules.get(w.path, rules.get(w.pattern))
            if rule is not None:
                count += sum(n in checkpoint.tensors for n in names(bind(rule, prefix, w.block), w.experts))
        return count

    return max(model.weights.prefixes, key=found)
