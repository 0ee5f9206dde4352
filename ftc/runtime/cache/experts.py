"""The memory of the expert cache: slots for records on the GPU, the table that says who is where, the mailbox to the CPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ftc.errors import TargetError
from ftc.ops import slots as table
from ftc.ops.routed import LATE, NOTE_ELEMENTS
from ftc.passes.base import PlanClass, Prefill
from ftc.runtime.cache.split import Costs
from ftc.spec.ffn import MoE
from ftc.spec.model import Model

# The clock counts slot lookups, thousands a second; it is set back long before 31 bits are full.
_LATE = 1 << 30


@dataclass(frozen=True)
class Counts:
    """Experts that were looked up since the start: found in a slot, fetched into one, computed on the CPU."""

    hits: int
    filled: int
    on_cpu: int
    lookups: int


class ExpertCache:
    """`live` of `reserved` slots may be used, on `device`; `bank` are the views of the host's records."""

    def __init__(
        self, model: Model, bank: dict[str, Tensor], live: int, reserved: int, max_rows: int, chunk_rows: int,
        costs: Costs, device: str = "cpu",
    ) -> None:  # fmt: skip
        branches = _bodies(model)
        self.experts = branches[0].experts.count
        top_k = max(b.router.top_k for b in branches)
        if max_rows * top_k > table.MOST_ROUTES:
            raise TargetError(
                f"a decode step routes at most {table.MOST_ROUTES} rows to experts", value=max_rows * top_k,
                hint="use fewer running requests",
            )  # fmt: skip
        first = min(bank.values(), key=lambda v: v.storage_offset())
        rows, width, hidden = first.shape
        stride, elements = first.stride(0), len(bank) * width * hidden
        self.live, self.reserved, self.device = live, reserved, device
        source = torch.as_strided(first, (rows, elements), (stride, 1), first.storage_offset())
        records = torch.empty((reserved, elements), dtype=first.dtype, device=device)

        def ints(*size: int, value: int = 0) -> Tensor:
            return torch.full(size, value, dtype=torch.int32, device=device)

        self.state = ints(table.STATE_ELEMENTS)
        self.state[table.LIVE] = live
        self.used = ints(reserved)
        self.costs = costs.tensor().to(device)
        self.inputs: dict[str, Tensor] = {
            "slots.state": self.state,
            "slots.owner": ints(reserved, value=-1),
            "slots.used": self.used,
            "slots.place": ints(rows, value=-1),
            "slots.first": ints(self.experts),
            "slots.plan": ints(1 + 2 * table.MOST_ROUTES),
            "slots.chosen": ints(1 + 2 * self.experts),
            "slots.costs": self.costs,
            "slots.records": records,
            "bank.records": source,
        }
        for name, view in bank.items():
            at = view.storage_offset() - first.storage_offset()
            self.inputs[f"slots.{name}"] = torch.as_strided(records, (reserved, width, hidden), (elements, hidden, 1), at)
        pinned = device != "cpu"
        most = max(max_rows, chunk_rows)
        self.inputs |= {
            "mail.x": torch.empty((most, hidden), dtype=torch.float32, pin_memory=pinned),
            "mail.rows": torch.empty((most * top_k, hidden), dtype=torch.float32, pin_memory=pinned),
            "mail.ids": torch.full((most * top_k,), -1, dtype=torch.int32, pin_memory=pinned),
            "mail.note": torch.zeros(NOTE_ELEMENTS, dtype=torch.int32, pin_memory=pinned),
        }

    def set_costs(self, costs: Costs) -> None:
        """New tables for the split, at any time: the next lookup reads them."""
        self.costs.copy_(costs.tensor(), non_blocking=True)

    def settle_clock(self) -> None:
        """Between steps: sets the clock back when it has run far; slots keep their order of use."""
        clock = int(self.state[table.CLOCK])
        if clock > _LATE:
            free = self.used < table.PINNED
            self.used[free] = (self.used[free] - _LATE // 2).clamp_(min=0)
            self.state[table.CLOCK] = clock - _LATE // 2

    def counts(self) -> Counts:
        """Reads the statistics; waits for the device."""
        s = self.state.tolist()
        return Counts(s[table.HITS], s[table.FILLED], s[table.ON_CPU], s[table.LAYERS])

    def take_faults(self) -> int:
        """Experts that found no slot though they had to, since the last call."""
        faults = int(self.state[table.FAULTS])
        self.state[table.FAULTS] = 0
        return faults

    def take_late(self) -> int:
        """Number of the first question to the CPU that was given up, 0 if none; the next step waits for answers again."""
        late = int(self.state[table.LATE])
        self.state[table.LATE] = 0
        self.inputs["mail.note"][LATE] = 0
        return late


def plan_class(model: Model, slots: int) -> tuple[PlanClass, Prefill]:
    """Where experts live with so many slots, and how prefill gets them."""
    branches = model.moe_branches
    experts = _bodies(model)[0].experts.count
    if slots >= len(branches) * experts:
        return "resident", "double"
    layers = slots // experts
    per_block = [i for i, _ in branches]
    most = max(per_block.count(i) for i in per_block)
    if layers > most:
        return "cached", "double"
    return "streamed", "single" if layers >= most else "host"


def _bodies(model: Model) -> list[MoE]:
    return [branch.body for _, branch in model.moe_branches if isinstance(branch.body, MoE)]
