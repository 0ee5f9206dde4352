"""Programs whose logits are a pure function of the tokens found through pages and states: any mix-up changes what is drawn."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ftc.engine.messages import Sampling, Submit, Tokens
from ftc.runtime.plan import PAGE_TOKENS, Plan
from ftc.runtime.pools import Pools
from ftc.runtime.scheduler import Scheduler
from ftc.spec.cache import CacheGroup
from ftc.trace.inputs import Shape, Step

VOCAB = 61
LAYERS = 3
MODULUS = 65521  # products with numbers below 256 stay exact in float32
GROUPS = {
    "kv": (CacheGroup("kv", "token", (2,)), LAYERS),
    "line": (CacheGroup("line", "sequence", (2, 2), "float32"), LAYERS),
}


def next_logits(tokens: list[int]) -> np.ndarray:
    """The logits [VOCAB] after `tokens`, computed without any cache: what the stand-in must come to."""
    paged, rolled = 0, 0
    for position, token in enumerate(tokens):
        paged = (paged + (token + 1) * (position % 251 + 1)) % MODULUS
        rolled = (rolled * 31 + token + 1) % MODULUS
    return _logits(paged, rolled)


def _logits(paged: int, rolled: int) -> np.ndarray:
    return np.random.default_rng((paged, rolled)).standard_normal(VOCAB).astype(np.float32)


def greedy(prompt: list[int], count: int, stop_ids: tuple[int, ...] = ()) -> list[int]:
    """The tokens that follow a prompt, without cache, batch or engine."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + count:
        token = int(next_logits(tokens).argmax())
        if token in stop_ids:
            break
        tokens.append(token)
    return tokens[len(prompt) :]


class StandInExecution:
    """One call per layer, which reads the step buffers and pools anew, and a head."""

    def __init__(self, program: StandInProgram, logits: bool) -> None:
        self._program, self._calls, self._at = program, LAYERS + logits, 0
        self._carry: list[tuple[int, int]] = []
        self.logits: Tensor | None = None

    def advance(self) -> bool:
        self._program.owner.calls += 1
        self._program.owner.on_call()
        if self._at < LAYERS:
            self._carry = self._layer(self._at)
        else:
            self.logits = torch.zeros((self._program.shape.seqs, VOCAB))
            for row, (paged, rolled) in enumerate(self._carry):
                self.logits[row] = torch.from_numpy(_logits(paged, rolled))
        self._at += 1
        return self._at < self._calls

    def run(self) -> Tensor | None:
        while self.advance():
            pass
        return self.logits

    def _layer(self, layer: int) -> list[tuple[int, int]]:
        step = {name: t.tolist() for name, t in self._program.step.tensors().items()}
        (kv, kv_state), (line, line_state) = self._program.owner.pools.tensors.values()
        result = []
        offsets = step["offsets"]
        assert step["rows"] == [offsets[-1]], "rows must be the number of live rows"
        for s, (begin, end) in enumerate(zip(offsets, offsets[1:], strict=False)):
            if begin == end:
                continue
            length, source, target = step["lengths"][s], step["state_in"][s], step["state_out"][s]
            pages = step["pages"][s]
            needed = -(-(length + end - begin) // PAGE_TOKENS)
            if not all(0 <= page < int(kv_state[0]) for page in pages[:needed]):
                kv_state[1] += 1
                continue
            if source >= int(line_state[0]) or not 0 <= target < int(line_state[0]):
                line_state[1] += 1
                continue
            assert all(page == -1 for page in pages[needed + 1 :]) or end - begin > 1, "the table holds pages of others"
            assert step["select"][s] == end - 1
            rolled = 0 if source < 0 else int(line[source, layer, 0, 0])
            for position in range(length, length + end - begin):
                token = step["tokens"][begin + position - length]
                assert step["positions"][begin + position - length] == position
                kv[pages[position // PAGE_TOKENS], layer, position % PAGE_TOKENS] = float(token + 1)
                rolled = (rolled * 31 + token + 1) % MODULUS
            line[target, layer] = float(rolled)
            total = length + end - begin
            held = kv[pages[:needed], layer, :, 1].flatten()[:total].numpy().astype(np.int64)
            paged = int((held * (np.arange(total) % 251 + 1)).sum() % MODULUS)
            result.append((paged, rolled))
        return result


class StandInProgram:
    def __init__(self, owner: StandIn, shape: Shape, pages: int) -> None:
        self.owner, self.shape, self.step = owner, shape, Step(shape, pages)

    def start(self, logits: bool = True) -> StandInExecution:
        self.owner.starts.append(self.shape)
        return StandInExecution(self, logits)


class StandIn:
    """What `ftc.compile` gives the runtime, over `pools`. `on_call` runs before each region call."""

    state, compiled, loaded = "eager", 0, 0

    def __init__(
        self, pools: Pools, plan: Plan, decode: tuple[int, ...] = (1, 2, 4), chunks: tuple[int, ...] = (8, 96)
    ) -> None:
        self.pools, self.decode_rows, self.chunk_rows = pools, decode, chunks
        self._programs = {
            shape: StandInProgram(self, shape, plan.pages_per_sequence)
            for shape in [Shape(n, n) for n in decode] + [Shape(n, 1) for n in chunks]
        }
        self.starts: list[Shape] = []
        self.calls = self.polls = 0
        self.on_call: Callable[[], None] = lambda: None

    def decode(self, rows: int) -> StandInProgram:
        fit = min(n for n in self.decode_rows if n >= rows)
        return self._programs[Shape(fit, fit)]

    def prefill(self, tokens: int) -> StandInProgram:
        fit = min((n for n in self.chunk_rows if n >= tokens), default=max(self.chunk_rows))
        return self._programs[Shape(fit, 1)]

    def poll(self) -> bool:
        self.polls += 1
        return False


class Clock:
    """Time that passes by a fixed amount at each region call, so that schedules are the same on every machine."""

    def __init__(self, call_s: float = 0.001) -> None:
        self.now, self._call_s = 0.0, call_s

    def __call__(self) -> float:
        return self.now

    def tick(self) -> None:
        self.now += self._call_s


class Bench:
    """A scheduler over the stand-in, and what came out of it by request."""

    def __init__(
        self,
        *,
        context: int = 1024,
        max_running: int = 4,
        pages: int | None = None,
        max_queued: int = 64,
        decode: tuple[int, ...] = (1, 2, 4),
        chunks: tuple[int, ...] = (8, 96),
    ) -> None:
        most = max_running * -(-context // PAGE_TOKENS)
        self.plan = Plan(context, max_running, pages or most, max(most, pages or 0), max_running)
        self.pools = Pools(GROUPS, torch.float32, self.plan)
        self.programs = StandIn(self.pools, self.plan, decode, chunks)
        self.clock = Clock()
        self.programs.on_call = self.clock.tick
        self.scheduler = Scheduler(self.programs, self.pools, self.plan, VOCAB, max_queued, self.clock)  # type: ignore[arg-type]
        self.tokens: dict[str, list[int]] = {}
        self.ends: dict[str, Tokens] = {}
        self.order: list[str] = []

    def submit(self, id: str, tokens: list[int], max_tokens: int = 20, **more: object) -> None:
        sampling = more.pop("sampling", Sampling(temperature=0.0))
        self.scheduler.submit(Submit(id=id, tokens=tokens, max_tokens=max_tokens, sampling=sampling, **more))  # type: ignore[arg-type]

    def slow_down(self, call_s: float) -> None:
        """Region calls take real time from now on, and time is real time."""
        self.scheduler._clock = time.perf_counter
        self.programs.on_call = lambda: time.sleep(call_s)

    def step(self) -> None:
        for message in self.scheduler.step():
            assert isinstance(message, Tokens)
            assert message.id not in self.ends, "a request went on after its end"
            self.tokens.setdefault(message.id, []).extend(message.tokens)
            self.order.append(message.id)
            if message.finish is not None:
                self.ends[message.id] = message
        self.check()

    def run(self, steps: int = 5000) -> None:
        """Until nothing is left; then nothing may be held."""
        for _ in range(steps):
            if not self.scheduler.busy:
                break
            self.step()
        assert not self.scheduler.busy, "a request is stuck"
        assert (self.pools.pages.used, self.pools.slots.used) == (0, 0)

    def check(self) -> None:
        """What is in use is what running requests hold, each page and slot by one."""
        running = self.scheduler.running
        pages = [page for r in running for page in r.pages]
        slots = [r.slot for r in running]
        assert len(set(pages)) == len(pages) == self.pools.pages.used
        assert len(set(slots)) == len(slots) == self.pools.slots.used
        assert all(0 <= page < self.pools.pages.live for page in pages)
        assert all(0 <= slot < self.pools.slots.live for slot in slots)
