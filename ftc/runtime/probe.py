"""Runs one prompt through the uncompiled regions and keeps what every block and every part of it gave."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ftc.compile.program import Binder, Memory
from ftc.runtime.open import Opened
from ftc.runtime.plan import Plan, pages_for
from ftc.runtime.pools import Pools
from ftc.trace.inputs import Shape, Step
from ftc.trace.interpret import region_function
from ftc.trace.layer import watching


@dataclass
class Probed:
    """`embedded` [N, ...] enters the first block, `left[i]` leaves block i; `parts[i]`: what its norms, linears and branches

    read and gave, by path, in order. `logits` [N, vocab] float32, one row for each token.
    """

    embedded: Tensor
    left: list[Tensor] = field(default_factory=list)
    parts: list[list[tuple[str, Tensor]]] = field(default_factory=list)
    logits: Tensor = field(default_factory=lambda: torch.empty(0))


@torch.no_grad()
def probe(opened: Opened, tokens: list[int]) -> Probed:
    """Runs `tokens` as one chunk of a fresh sequence."""
    model, count = opened.model, len(tokens)
    table = pages_for(count)
    pools = Pools(model.cache_groups(), opened.dtype, Plan(count, 1, table, table, 1))
    binder = Binder(model, Memory(opened.outer, opened.blocks, opened.bank, pools.tensors))
    step = _step(tokens, table)
    carry: tuple[Tensor, ...] = ()
    found: Probed | None = None
    for call in binder.layout.schedule:
        kind = binder.layout.kinds[call.kind]
        region, given = region_function(model, kind), binder.arguments(kind, call.block, step)
        arguments = [*carry, *given[len(carry) :]]
        if found is None:
            carry = region(*arguments)
            found = Probed(carry[0].clone())
        elif call.block is None:
            found.logits = torch.cat([_score(region, arguments, kind.inputs.index("step.select"), row) for row in range(count)])
        else:
            seen: list[tuple[str, Tensor]] = []
            with watching(lambda path, value, seen=seen: seen.append((path, value.clone()))):  # type: ignore[misc]
                carry = region(*arguments)
            found.left.append(carry[0].clone())
            found.parts.append(seen)
    assert found is not None
    return found


def _step(tokens: list[int], table: int) -> Step:
    count = len(tokens)
    step = Step(Shape(count, 1), table)
    step.tokens[:] = torch.tensor(tokens)
    step.positions[:] = torch.arange(count)
    step.offsets[1] = count
    step.rows[0] = count
    step.pages[0] = torch.arange(table)
    step.state_in[0] = -1
    return step


def _score(region: object, arguments: list[Tensor | None], select: int, row: int) -> Tensor:
    arguments[select] = torch.tensor([row], dtype=torch.int32)
    return region(*arguments)[0]  # type: ignore[operator]
