"""THE ordered list of passes, in phases; each can be switched off by name."""

from __future__ import annotations

from ftc.errors import PassError
from ftc.passes import (
    choose_kernels,
    lower_formats,
    map_slots,
    mark_regions,
    overlap,
    split_misses,
    stream_layers,
)
from ftc.passes.base import Pass

# formats   number formats of weights become op variants
# place     experts become slots, fills and a CPU branch; whole layers are streamed   (targets with a link)
# order     submits and fills as early, joins as late, as the data allows             (targets with streams)
# bind      ops become kernels; the schedule becomes segments
PHASES = ("formats", "place", "order", "bind")

_LIST = (
    ("formats", lower_formats),
    ("place", map_slots),
    ("place", split_misses),
    ("place", stream_layers),
    ("order", overlap),
    ("bind", choose_kernels),
    ("bind", mark_regions),
)

PIPELINE: tuple[Pass, ...] = tuple(
    Pass(module.__name__.rpartition(".")[2], module.PASS, (module.__doc__ or "").strip(), module.run)
    for _, module in sorted(_LIST, key=lambda entry: PHASES.index(entry[0]))
)


def pipeline(off: frozenset[str] = frozenset()) -> tuple[Pass, ...]:
    """The passes that are on. Raises PassError for a name that is no pass."""
    unknown = off - {p.name for p in PIPELINE}
    if unknown:
        raise PassError("no such pass", value=sorted(unknown), hint=f"passes: {', '.join(p.name for p in PIPELINE)}")
    return tuple(p for p in PIPELINE if p.name not in off)
