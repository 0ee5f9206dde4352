"""Where a spec and the reference library part: the first layer, and in it the first part behind which nothing agrees."""

from __future__ import annotations

from pathlib import Path

import msgspec
import torch
from torch import Tensor

from ftc.cli.reference import Seen, joined, run_reference
from ftc.runtime.open import open_model
from ftc.runtime.probe import Probed, probe

TOKENS = 37  # a number that no size of a model is likely to have, so that the dimension of the tokens is known by it
CLOSE = 1e-3  # of the largest value: what float32 leaves of a right result after many layers is 100 times less


class Part(msgspec.Struct, frozen=True):
    """One part of the layer under suspicion. `error` None: the reference has nothing of its size."""

    path: str
    error: float | None


class Comparison(msgspec.Struct, frozen=True):
    """Relative errors: of the embedding, after each layer, of the logits. `parts` are those of the first layer that differs."""

    embedding: float
    layers: list[float]
    logits: float
    parts: list[Part]
    close: float

    @property
    def agrees(self) -> bool:
        return max(self.embedding, self.logits, *self.layers) < self.close

    @property
    def layer(self) -> int | None:
        """The first layer that differs."""
        return next((i for i, error in enumerate(self.layers) if not error < self.close), None)

    @property
    def part(self) -> str | None:
        """The first part of that layer behind which everything differs: what only looks unlike is followed by what agrees."""
        known = [p for p in self.parts if p.error is not None]
        right = max((i for i, p in enumerate(known) if p.error < self.close), default=-1)  # type: ignore[operator]
        return known[right + 1].path if right + 1 < len(known) else None

    @property
    def place(self) -> str:
        """Layer and part in words."""
        if not self.embedding < self.close:
            return "the embedding"
        if self.layer is None:
            return "the head"
        return f"layer {self.layer}" + (f", {self.part}" if self.part else "")


def compare(folder: Path, spec: Path | None, close: float = CLOSE) -> Comparison:
    """Runs one prompt through both, in float32."""
    opened = open_model(folder, spec, torch.float32)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, opened.model.vocab, (TOKENS,), generator=generator).tolist()
    ours = probe(opened, tokens)
    theirs = run_reference(folder, tokens, len(opened.model.blocks))
    layers = [error(a, b) for a, b in zip(ours.left, theirs.left, strict=True)]
    first = next((i for i, e in enumerate(layers) if not e < close), None)
    parts = [] if first is None else _parts(ours, theirs, first)
    return Comparison(error(ours.embedded, theirs.embedded), layers, error(ours.logits, theirs.logits), parts, close)


def error(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference over the largest value; infinite where sizes differ."""
    ours = ours.reshape(ours.shape[0], -1).float()
    if ours.shape != theirs.shape:
        return float("inf")
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-30))


def _parts(ours: Probed, theirs: Seen, layer: int) -> list[Part]:
    found = []
    for path, value in ours.parts[layer]:
        if value.shape[0] != TOKENS:
            continue
        width = value[0].numel()
        same = [t for t in theirs.parts[layer] if t.shape[1] == width] + joined(theirs.linears[layer], width)
        found.append(Part(path, min((error(value, t) for t in same), default=None)))
    return found
