"""How the experts of all layers lie in memory: one record each, in one mapping on huge pages."""

from __future__ import annotations

import torch

from ftc.spec.model import Model
from ftc.spec.parameters import ExpertRecord, expert_record
from ftc.weights.memory import mapped

RECORD_BYTES = 4096  # records begin at multiples of this: the unit of direct disk reads and of small pages


class Bank:
    """[ordinals * experts, record] of `dtype` in one anonymous mapping; row `ordinal * experts + expert`.

    A record is `matrices`, each [width, hidden] with hidden contiguous (down too), then padding to RECORD_BYTES.
    `record_elements` counts a record without its padding, `row_stride` with it.
    """

    def __init__(self, record: ExpertRecord, ordinals: int, dtype: torch.dtype) -> None:
        self.ordinals, self.experts = ordinals, record.count
        self.width, self.hidden = record.width, record.hidden
        self.matrices = record.matrices
        self.dtype = dtype
        self.rows = ordinals * record.count
        self.record_elements = record.elements
        self.record_bytes = -(-record.elements * dtype.itemsize // RECORD_BYTES) * RECORD_BYTES
        self.row_stride = self.record_bytes // dtype.itemsize
        self.size_bytes = self.rows * self.record_bytes
        self.elements = mapped(self.size_bytes).view(dtype)

    def views(self) -> dict[str, torch.Tensor]:
        """Matrix name ("gate" where gated, "up", "down") -> strided view [rows, width, hidden] of the one buffer."""
        size = self.width * self.hidden
        base = self.elements.storage_offset()
        return {
            name: torch.as_strided(
                self.elements, (self.rows, self.width, self.hidden), (self.row_stride, self.hidden, 1), base + k * size
            )
            for k, name in enumerate(self.matrices)
        }


def empty_bank(model: Model, dtype: torch.dtype) -> Bank | None:
    """A bank for every routed expert of the model, not yet filled; None for a model without any."""
    branches = model.moe_branches
    if not branches:
        return None
    return Bank(expert_record(model, branches[0][1]), len(branches), dtype)
