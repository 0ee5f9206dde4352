"""What the server counts of its own work, and how it is told in the Prometheus text format."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import AsyncGenerator
from contextlib import aclosing

from ftc.engine.client import EngineClient
from ftc.engine.messages import Stats
from ftc.serve.generate import Counts, Step

FIRST_TOKEN_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
TOKEN_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0)


class Histogram:
    """Counts of observations up to each bound, as Prometheus cumulates them."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.total, self.sum = bounds, 0, 0.0
        self._counts = [0] * (len(bounds) + 1)

    def add(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += 1
        self.sum += value

    def lines(self, name: str) -> list[str]:
        found, running = [], 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self._counts, strict=True):
            running += count
            found.append(f'{name}_bucket{{le="{bound}"}} {running}')
        return [*found, f"{name}_sum {self.sum:.6f}", f"{name}_count {self.total}"]


class Meter:
    """Counters of one server, since its start; lives on its event loop."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, int], int] = {}
        self.in_flight = 0
        self.prompt_tokens = self.cached_tokens = self.completion_tokens = 0
        self.finishes: dict[str, int] = {}
        self.first_token = Histogram(FIRST_TOKEN_S)
        self.token = Histogram(TOKEN_S)

    def request(self, route: str, status: int) -> None:
        """One HTTP request has been answered."""
        self.requests[route, status] = self.requests.get((route, status), 0) + 1

    async def measured(self, steps: AsyncGenerator[Step, None]) -> AsyncGenerator[Step, None]:
        """The same steps; their tokens and times are counted, also when the answer is ended early."""
        begin, first, last = time.monotonic(), 0.0, 0.0
        counts: Counts | None = None
        finish = "error"
        try:
            async with aclosing(steps) as inner:
                async for step in inner:
                    last = time.monotonic()
                    if counts is None:
                        first = last
                        self.first_token.add(first - begin)
                    counts, finish = step.counts, step.finish or "abort"
                    yield step
        finally:
            self.finishes[finish] = self.finishes.get(finish, 0) + 1
            if counts is not None:
                self.prompt_tokens += counts.prompt
                self.cached_tokens += counts.cached
                self.completion_tokens += counts.completion
                if counts.completion > 1:
                    self.token.add((last - first) / (counts.completion - 1))

    def text(self, engine: EngineClient) -> str:
        """All of it and what the engine last told, one metric a line."""
        lines: list[str] = []

        def add(name: str, kind: str, help: str, *values: str) -> None:
            lines.extend([f"# HELP {name} {help}", f"# TYPE {name} {kind}", *values])

        def one(name: str, kind: str, help: str, value: float) -> None:
            add(name, kind, help, f"{name} {value}")

        name = "ftc_http_requests_total"
        rows = [f'{name}{{route="{r}",status="{s}"}} {count}' for (r, s), count in sorted(self.requests.items())]
        add(name, "counter", "HTTP requests answered.", *rows)
        one("ftc_http_requests_in_flight", "gauge", "HTTP requests being answered.", self.in_flight)
        name = "ftc_answers_total"
        rows = [f'{name}{{finish="{finish}"}} {count}' for finish, count in sorted(self.finishes.items())]
        add(name, "counter", "Answers made, by how they ended.", *rows)
        one("ftc_prompt_tokens_total", "counter", "Tokens of prompts.", self.prompt_tokens)
        one("ftc_cached_tokens_total", "counter", "Tokens of prompts not computed again.", self.cached_tokens)
        one("ftc_completion_tokens_total", "counter", "Tokens of answers.", self.completion_tokens)
        name = "ftc_first_token_seconds"
        add(name, "histogram", "From the request to its first token.", *self.first_token.lines(name))
        name = "ftc_token_seconds"
        add(name, "histogram", "Mean time between the tokens of an answer.", *self.token.lines(name))
        one("ftc_engine_ready", "gauge", "1 while the engine serves.", int(engine.state == "ready"))
        one("ftc_engine_restarts_total", "counter", "Restarts of the engine.", engine.restarts)
        if (stats := engine.stats) is not None:
            one("ftc_engine_running", "gauge", "Requests that have their place in the engine.", stats.running)
            one("ftc_engine_queued", "gauge", "Requests that wait for a place.", stats.queued)
            one("ftc_engine_steps_total", "counter", "Steps of the engine.", stats.steps)
            one("ftc_engine_prefill_tokens_total", "counter", "Prompt tokens computed.", stats.prefill_tokens)
            one("ftc_engine_decode_tokens_total", "counter", "Tokens decoded.", stats.decode_tokens)
            add("ftc_pool_entries", "gauge", "Pages and slots of the engine's pools.", *_pools(stats))
        return "\n".join(lines) + "\n"


def _pools(stats: Stats) -> list[str]:
    return [
        f'ftc_pool_entries{{pool="{pool}",kind="{kind}"}} {count}'
        for pool, counts in sorted(stats.pools.items())
        for kind, count in zip(("used", "live", "reserved"), counts, strict=True)
    ]
