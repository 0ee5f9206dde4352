"""How much memory the caches get: pages and slots from what is free, the context, and the requests that run at once."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import psutil
import torch

from ftc.errors import TargetError
from ftc.runtime.pool import entry_bytes
from ftc.spec.model import Model

PAGE_TOKENS = 64

# Of the memory that is free once the weights are read; the rest is for activations, the page cache and other programs.
CACHE_SHARE = 0.5


class Plan(msgspec.Struct, frozen=True):
    """`pages` are live at the start and may grow to `pages_reserved`; one slot for each request that runs.

    `context_tokens` is the longest prompt + output of one request; it always fits the pages that are live at the start.
    """

    context_tokens: int
    max_running: int
    pages: int
    pages_reserved: int
    slots: int

    @property
    def pages_per_sequence(self) -> int:
        return pages_for(self.context_tokens)


def pages_for(tokens: int) -> int:
    """Pages that hold so many tokens."""
    return -(-tokens // PAGE_TOKENS)


def plan(model: Model, dtype: torch.dtype, budget_bytes: int, max_running: int, context: int | None) -> Plan:
    """Slots for all that run, then pages for all of them at full context, or as many as the budget holds.

    Without `context` it is the model's own, cut to what one request can have. Raises TargetError when a context that was
    asked for, or a single page, does not fit.
    """
    groups = model.cache_groups().values()
    page, slot = (
        sum(entry_bytes(group, layers, PAGE_TOKENS, dtype) for group, layers in groups if group.per == per)
        for per in ("token", "sequence")
    )
    if context is not None and not 1 <= context <= model.context_tokens:
        most = model.context_tokens
        raise TargetError(f"must be from 1 to {most}, what the model was made for", where="--context", value=context)
    wanted = context or model.context_tokens
    left = budget_bytes - max_running * slot
    affordable = max(0, left) // page if page else max_running * pages_for(wanted)
    if affordable < 1 or left < 0 or (context is not None and affordable < pages_for(context)):
        need = max_running * slot + (pages_for(context) if context else 1) * page
        raise TargetError(
            f"the caches need {_size(need)}, and there is room for {_size(budget_bytes)}",
            where="memory",
            hint="use a smaller --context or --max-running, or free memory.",
        )
    tokens = min(wanted, affordable * PAGE_TOKENS)
    most = max_running * pages_for(tokens)
    return Plan(tokens, max_running, min(affordable, most), most, max_running)


def cache_budget() -> int:
    """Bytes that the caches may take on this machine, and in this container, as they are now."""
    return int(min(psutil.virtual_memory().available, _left_in_container()) * CACHE_SHARE)


def _left_in_container(folder: Path = Path("/sys/fs/cgroup")) -> float:
    """Bytes up to the limit of the control group that is mounted here; infinite where there is none."""
    try:
        limit, used = ((folder / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return math.inf
    return math.inf if limit == "max" else max(0, int(limit) - int(used))


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**28 else f"{count / 2**20:.1f} MiB"
