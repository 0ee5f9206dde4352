"""Plays a GPU on host tensors: ops queued on named streams, run in any order that the events allow, memory poisoned."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from ftc.compile.program import Binder, Memory, Program, Region
from ftc.errors import PassError
from ftc.ops.copy import COMPUTE, STREAMS
from ftc.ops.slots import read_list
from ftc.passes.base import Context, Lowered, PlanClass, Prefill, apply
from ftc.passes.pipeline import pipeline
from ftc.spec.model import Model
from ftc.target import Target
from ftc.trace.graph import argument, op_name, stream_of
from ftc.trace.inputs import Shape, Step
from ftc.trace.tracer import trace

Order = str | int


class _Mark:
    """A place in a stream's queue; `is_reached` once everything before it has run."""

    is_reached = False


class Machine:
    """Streams of queued work. `order`: "eager" runs side streams as early as it can, "laziest" only when the main one has to
    wait, a number draws at random with that seed.
    """

    def __init__(self, order: Order = "eager") -> None:
        self.order = order
        self._random = random.Random(order if isinstance(order, int) else 0)
        self._queues: dict[str, deque[tuple[str, Any]]] = {name: deque() for name in STREAMS}
        self._latest: dict[str, _Mark] = {}

    def queue(self, stream: str, work: Callable[[], None]) -> None:
        self._queues[stream].append(("run", work))

    def record(self, event: str, stream: str) -> None:
        self._latest[event] = mark = _Mark()
        self._queues[stream].append(("record", mark))

    def wait(self, event: str, stream: str) -> None:
        """Holds for the last record queued until now; none is no wait, as on a GPU."""
        if event in self._latest:
            self._queues[stream].append(("wait", self._latest[event]))

    def finish(self) -> None:
        """Runs all that is queued. Raises PassError where streams wait for each other."""
        while any(self._queues.values()):
            ready = [s for s, q in self._queues.items() if q and not (q[0][0] == "wait" and not q[0][1].is_reached)]
            if not ready:
                stuck = ", ".join(s for s, q in self._queues.items() if q)
                raise PassError("streams wait for each other", where="sim", value=stuck)
            what, it = self._queues[self._choose(ready)].popleft()
            if what == "run":
                it()
            elif what == "record":
                it.is_reached = True

    def _choose(self, ready: list[str]) -> str:
        if self.order == "laziest":
            return self._needed()
        if self.order == "eager":
            return next((s for s in ready if s != COMPUTE), COMPUTE)
        return self._random.choice(ready)


    def _needed(self) -> str:
        """The stream that the main one waits for, directly or through others; any other when the main one is done."""
        at = COMPUTE if self._queues[COMPUTE] else next(s for s, q in self._queues.items() if q)
        while (head := self._queues[at][0])[0] == "wait" and not head[1].is_reached:
            at = next(s for s, q in self._queues.items() if any(it is head[1] and what == "record" for what, it in q))
        return at


class _Later:
    """A value that exists once its work has run."""

    value: Any = None


def _now(value: Any) -> Any:
    return value.value if isinstance(value, _Later) else value


def poison(cache: dict[str, Tensor]) -> None:
    """What a fresh machine's slots and mailbox hold: nothing that may be used."""
    cache["slots.records"].fill_(float("nan"))
    _poison_mail(cache)


def _poison_mail(cache: dict[str, Tensor]) -> None:
    if "mail.x" in cache:
        cache["mail.x"].fill_(float("nan"))
        cache["mail.rows"].fill_(float("nan"))
        cache["mail.ids"].fill_(-1)
        cache["mail.note"].zero_()


class SimRegion:
    """A lowered region: calling it queues its nodes and gives values that exist later."""

    def __init__(self, graph: fx.GraphModule, machine: Machine, cache: dict[str, Tensor]) -> None:
        self._graph, self._machine, self._cache = graph.graph, machine, cache

    def __call__(self, *inputs: Any) -> list[Any]:
        given, env = iter(inputs), {}
        for node in self._graph.nodes:
            if node.op == "placeholder":
                env[node] = next(given)
            elif node.op == "output":
                return [env[n] for n in node.args[0]]
            else:
                self._queue(node, env)
        raise AssertionError("a region without an output")

    def _queue(self, node: fx.Node, env: dict[fx.Node, Any]) -> None:
        name = op_name(node)
        if name.startswith(("ftc.event_record", "ftc.event_wait")):
            put = self._machine.record if "record" in name else self._machine.wait
            put(argument(node, "event"), argument(node, "stream"))
            return
        out = env[node] = _Later()

        def work() -> None:
            args: Any = fx.node.map_arg(node.args, lambda n: _now(env[n]))
            kwargs: Any = fx.node.map_arg(node.kwargs, lambda n: _now(env[n]))
            out.value = node.target(*args, **kwargs)  # type: ignore[operator]
            self._after(name, node, env)

        self._machine.queue(stream_of(node), work)

    def _after(self, name: str, node: fx.Node, env: dict[fx.Node, Any]) -> None:
        if name.startswith(("ftc.slot_map", "ftc.layer_map")):
            table = argument(node, "plan" if name.startswith("ftc.slot_map") else "chosen")
            for _, slot in read_list(_now(env[table])):
                self._cache["slots.records"][slot] = float("nan")
        elif name.startswith("ftc.combine"):
            if argument(node, "mail_rows") is not None:
                _poison_mail(self._cache)


class SimPrograms:
    """Programs of a model as a GPU with an expert cache would run them, by shape. `memory.cache` holds the cache's tensors.

    `change` may alter a lowered program before it runs: what tests that take an event away need.
    """

    def __init__(
        self,
        model: Model,
        memory: Memory,
        table_pages: int,
        target: Target,
        dtype: torch.dtype,
        plan: PlanClass,
        prefill: Prefill = "double",
        off: tuple[str, ...] = (),
        order: Order = "eager",
        change: Callable[[Lowered], None] = lambda lowered: None,
        decode_rows: Sequence[int] = (1, 2, 4, 8),
        chunk_rows: Sequence[int] = (64, 512),
    ) -> None:
        self.decode_rows, self.chunk_rows = tuple(decode_rows), tuple(chunk_rows)
        self.machine, self._change = Machine(order), change
        self._model, self._dtype, self._table_pages = model, dtype, table_pages
        self._passes = pipeline(frozenset(off))
        self._context = (target, plan, prefill)
        self._cache, self._binder = memory.cache, Binder(model, memory)
        self._made: dict[Shape, Program] = {}
        if memory.cache:
            poison(memory.cache)

    def decode(self, rows: int) -> Program:
        """The smallest decode program that takes `rows`."""
        n = next(n for n in self.decode_rows if n >= rows)
        return self.program(Shape(n, n))

    def prefill(self, tokens: int) -> Program:
        """The smallest chunk program that takes `tokens`, else the largest."""
        return self.program(Shape(next((n for n in self.chunk_rows if n >= tokens), self.chunk_rows[-1]), 1))

    def lower(self, shape: Shape) -> Lowered:
        target, plan, prefill = self._context
        ctx = Context(target, shape, plan, {}, prefill=prefill)
        return apply(trace(self._model, shape, self._dtype), self._passes, ctx, check=True)

    def program(self, shape: Shape) -> Program:
        if shape not in self._made:
            lowered = self.lower(shape)
            self._change(lowered)
            regions: dict[str, Region] = {n: SimRegion(g, self.machine, self._cache) for n, g in lowered.regions.items()}
            regions["head"] = self._finishing(regions["head"])
            self._made[shape] = Program(
                self._binder, shape, Step(shape, self._table_pages), regions, lowered.segments, lowered.kinds,
                self.machine.finish,
            )  # fmt: skip
        return self._made[shape]

    def _finishing(self, head: Region) -> Region:
        def run(*inputs: Any) -> list[Tensor]:
            later = head(*inputs)
            self.machine.finish()
            return [_now(value) for value in later]

        return run
