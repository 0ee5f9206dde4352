"""A model on a played GPU with a limited expert cache: the rig's steps by hand, over any cache size, split and order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ftc.compile.program import Memory
from ftc.compile.sim import Order, SimPrograms, poison
from ftc.ops.slots import LIVE
from ftc.passes.base import Lowered, PlanClass, Prefill
from ftc.runtime.cache.experts import ExpertCache, plan_class
from ftc.runtime.cache.split import Costs
from ftc.target import sim_target
from tests.rig import Rig


class SimRig(Rig):
    """Shares weights and caches of `rig`. `slots`: size of the expert cache, `share`: the part of misses that is fetched."""

    def __init__(
        self,
        rig: Rig,
        slots: int,
        share: float = 0.5,
        *,
        order: Order = "eager",
        prefill: Prefill | None = None,
        off: Sequence[str] = (),
        change: Callable[[Lowered], None] = lambda lowered: None,
        decode_rows: Sequence[int] = (1, 4, 8),
        chunk_rows: Sequence[int] = (64,),
    ) -> None:
        opened = rig.opened
        self.opened, self.model, self.pools, self._batches = opened, rig.model, rig.pools, {}
        self.plan, fits = plan_class(self.model, slots)
        plan: PlanClass = "cached" if self.plan == "resident" else self.plan
        self.cache = ExpertCache(self.model, opened.bank, slots, slots + 3, decode_rows[-1], chunk_rows[-1], Costs.share(share))
        memory = Memory(opened.outer, opened.blocks, opened.bank, rig.pools.tensors, self.cache.inputs)
        table = rig.pools.pages.reserved // rig.pools.slots.reserved
        target = sim_target(opened.target.threads, bool(opened.target.kernels))
        self.programs: SimPrograms = SimPrograms(  # type: ignore[assignment]
            self.model, memory, table, target, opened.dtype, plan, prefill or fits, tuple(off), order, change, decode_rows,
            chunk_rows,
        )  # fmt: skip

    def restart(self, order: Order) -> None:
        """An empty cache and an idle machine that will run in another order."""
        self.programs.machine.order = order
        inputs = self.cache.inputs
        live = int(inputs["slots.state"][LIVE])
        for name, value in (("state", 0), ("used", 0), ("owner", -1), ("place", -1), ("plan", 0), ("chosen", 0)):
            inputs[f"slots.{name}"].fill_(value)
        inputs["slots.state"][LIVE] = live
        poison(inputs)

    @property
    def rows(self) -> int:
        """Experts of all layers: a cache of so many slots misses only what is cold."""
        return self.cache.inputs["slots.place"].shape[0]


def batch_greedy(rig: Rig, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """Greedy tokens of several prompts: each prefilled, then decoded together. Fails where a logit is no number."""
    lines = [rig.sequence() for _ in prompts]
    outs = []
    try:
        for line, prompt in zip(lines, prompts, strict=True):
            outs.append([_best(rig.prompt(line, prompt, None))[0]])
        for _ in range(count - 1):
            for out, token in zip(outs, _best(rig.decode(lines, [out[-1] for out in outs])), strict=True):
                out.append(token)
    finally:
        for line in lines:
            rig.release(line)
    return outs


def _best(logits: torch.Tensor) -> list[int]:
    if not bool(logits.isfinite().all()):
        raise ArithmeticError("logits that are no numbers: something was read before it was written")
    return logits.argmax(-1).tolist()
