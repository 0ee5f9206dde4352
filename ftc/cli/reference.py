"""A checkpoint in the reference library: the same prompt, and what every module of every layer read and gave."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ftc.errors import CheckpointError, TargetError
from ftc.spec.load import read_config


@dataclass
class Seen:
    """What the reference library computed, float32: `left[i]` leaves layer i, `parts[i]` are the modules' tensors in it.

    `linears[i]`: results of its linear modules in order, so that neighbours can be put together where ours are one.
    """

    embedded: Tensor
    left: list[Tensor]
    parts: list[list[Tensor]]
    linears: list[list[Tensor]]
    logits: Tensor


@dataclass
class _Layer:
    parts: list[Tensor] = field(default_factory=list)
    linears: list[Tensor] = field(default_factory=list)
    left: Tensor | None = None
    entered: Tensor | None = None


@torch.no_grad()
def run_reference(folder: Path, tokens: list[int], layers: int) -> Seen:
    """One forward without a cache. Raises TargetError where the library is missing, CheckpointError where it cannot read it."""
    model = _load(folder)
    stack = _layers(model, layers, str(folder))
    notes = [_Layer() for _ in stack]
    for layer, note in zip(stack, notes, strict=True):
        _hook(layer, note, len(tokens))
    logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float()
    left = [n.left for n in notes]
    first = notes[0].entered
    assert first is not None and all(t is not None for t in left)
    return Seen(first, left, [n.parts for n in notes], [n.linears for n in notes], logits)  # type: ignore[arg-type]


def joined(linears: list[Tensor], width: int) -> list[Tensor]:
    """Neighbouring results of linears that are `width` wide together."""
    found = []
    for start in range(len(linears)):
        sums = itertools.accumulate(t.shape[1] for t in linears[start:])
        for end, total in enumerate(sums, start + 1):
            if total == width and end > start + 1:
                found.append(torch.cat(linears[start:end], 1))
    return found


def _load(folder: Path) -> Any:
    try:
        import transformers
        from transformers.utils import logging
    except ImportError:
        raise TargetError("the reference library is not installed", hint="pip install transformers") from None
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    names = read_config(folder).get("architectures") or []
    kind = next((getattr(transformers, n) for n in names if hasattr(transformers, n)), None)
    if kind is None:
        raise CheckpointError("the reference library does not have this architecture", where=str(folder), value=names)
    try:
        return kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    except (OSError, ValueError, RuntimeError) as e:
        raise CheckpointError(f"the reference library cannot load it: {e}", where=str(folder)) from e


def _layers(model: nn.Module, count: int, where: str) -> nn.ModuleList:
    lists = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.ModuleList) and n.endswith(("layers", "h", "blocks"))]
    for name, found in lists:
        if len(found) == count and "vision" not in name and "audio" not in name:
            return found
    raise CheckpointError("the reference has no list of as many layers", where=where, value=count)


def _hook(layer: nn.Module, note: _Layer, tokens: int) -> None:
    def after(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any], result: Any) -> None:
        read = [t for t in (*given, *named.values()) if isinstance(t, Tensor)]
        gave = [t for t in (result if isinstance(result, (tuple, list)) else (result,)) if isinstance(t, Tensor)]
        note.parts += [r for t in (*read, *gave) if (r := rows(t, tokens)) is not None]
        if isinstance(module, nn.Linear) and gave and (r := rows(gave[0], tokens)) is not None:
            note.linears.append(r)

    def around(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any], result: Any) -> None:
        read = (rows(t, tokens) for t in (*given, *named.values()) if isinstance(t, Tensor))
        note.entered = next(r for r in read if r is not None)
        note.left = rows(result[0] if isinstance(result, (tuple, list)) else result, tokens)

    for module in layer.modules():
        module.register_forward_hook(around if module is layer else after, with_kwargs=True)


def rows(t: Tensor, tokens: int) -> Tensor | None:
    """[tokens, rest] float32 with the tokens first, or None for a tensor without a dimension of that size."""
    dims = [d for d, size in enumerate(t.shape) if size == tokens]
    if not dims or not t.is_floating_point():
        return None
    moved = t.detach().movedim(dims[0], 0)
    return moved.reshape(tokens, -1).float().clone()
