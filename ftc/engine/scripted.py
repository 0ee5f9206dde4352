"""The second engine behind the contract: answers from a script over the real link, with faults to order.

python -m ftc.engine.scripted --fd N --script FILE.json
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from collections import deque
from itertools import islice
from pathlib import Path

from ftc.engine.link import Link, attach
from ftc.engine.messages import (
    VERSION,
    Abort,
    Control,
    Failed,
    Finish,
    FromEngine,
    Hello,
    Logprob,
    Progress,
    Refused,
    Stats,
    Submit,
    Tokens,
)
from ftc.engine.script import Rule, Script, read_script
from ftc.errors import FtcError
from ftc.text.tokenizer import Tokenizer

STATS_S = 1.0
# Prompts remembered for `cached`.
REMEMBERED = 64


class _Running:
    """One request that has its place; `prefilled` counts prompt tokens, `said` output tokens."""

    def __init__(self, request: Submit, rule: Rule, answer: list[int], cached: int) -> None:
        self.request, self.rule, self.cached = request, rule, cached
        self.answer = request.forced + answer * rule.repeat
        self.cycle = answer if rule.endless else []
        self.prefilled = float(cached)
        self.said = 0

    def next_token(self) -> int | None:
        """The token after those said, or None at the script's end."""
        if self.said < len(self.answer):
            return self.answer[self.said]
        beyond = self.cycle or (self.answer if self.said < self.request.min_tokens else [])
        return beyond[(self.said - len(self.answer)) % len(beyond)] if beyond else None


class ScriptedEngine:
    """Steps through a script; one step gives every running request up to `tokens_per_step` tokens."""

    def __init__(self, link: Link, script: Script, tokenizer: Tokenizer | None) -> None:
        self._link, self._script, self._tokenizer = link, script, tokenizer
        self._vocab = tokenizer.size if tokenizer else script.vocab_size or 1 << 16
        self._queue: deque[Submit] = deque()
        self._running: dict[str, _Running] = {}
        self._deadlines: dict[str, float] = {}
        self._remembered: deque[tuple[str, list[int]]] = deque(maxlen=REMEMBERED)
        self._draining = False
        self._steps = self._prefill_tokens = self._decode_tokens = 0
        self._stats_at = time.monotonic()
        self._out: list[FromEngine] = []

    def serve(self) -> None:
        """Runs until 'stop', or raises EOFError when the server is gone."""
        self._load()
        due = time.monotonic()
        while True:
            busy = bool(self._queue or self._running)
            now = time.monotonic()
            wait = max(0.0, due - now) if busy else None
            for message in self._link.receive(wait):
                match message:
                    case Submit():
                        self._submit(message)
                    case Abort():
                        self._abort(message.id)
                    case Control(verb="stop"):
                        self._flush()
                        return
                    case Control(verb="drain"):
                        self._draining = True
                    case Control():
                        self._out.append(self._stats())
            now = time.monotonic()
            if now >= due and (self._queue or self._running):
                self._step()
                rate = self._script.decode_rate
                due = max(due, now - 0.1) + self._script.tokens_per_step / rate if rate else now
            elif not self._running:
                due = now
            if busy and now - self._stats_at >= STATS_S:
                self._stats_at = now
                self._out.append(self._stats())
            self._flush()

    def _load(self) -> None:
        load = self._script.load
        for index, phase in enumerate(load.phases):
            for done in range(10 if load.seconds else 0):
                self._link.send([Progress(phase=phase, done=done, total=10)])
                time.sleep(load.seconds / 10 / len(load.phases))
            self._link.send([Progress(phase=phase, done=10, total=10)])
            if index == 0 and load.fail is not None:
                raise FtcError(load.fail)
            if index == 0 and load.exit is not None:
                os._exit(load.exit)
        hello = Hello(
            version=VERSION,
            model="scripted",
            vocab_size=self._vocab,
            vocab_hash=self._tokenizer.hash if self._tokenizer else "",
            context_tokens=self._script.context_tokens,
            max_running=self._script.max_running,
            max_queued=self._script.max_queued,
            pid=os.getpid(),
            dtype="none",
            target="script",
        )
        self._link.send([hello])

    def _submit(self, request: Submit) -> None:
        script = self._script
        known = request.id in self._running or any(waiting.id == request.id for waiting in self._queue)
        bad = [token for token in request.tokens + request.forced if not 0 <= token < self._vocab]
        if known or bad or not request.tokens or request.max_tokens < 1:
            no_token = f"token {bad[0]} is not in the vocabulary" if bad else "no token to begin with, or none to make"
            what, where = ("this id is in flight", "id") if known else (no_token, "tokens")
            self._out.append(Refused(id=request.id, code="invalid", message=what, where=where))
        elif len(request.tokens) >= script.context_tokens:
            text = f"the prompt has {len(request.tokens)} tokens, the context is {script.context_tokens}"
            self._out.append(Refused(id=request.id, code="too_long", message=text, where="tokens"))
        elif self._draining or len(self._queue) + len(self._running) >= script.max_queued + script.max_running:
            text = f"{len(self._running)} requests are running and {len(self._queue)} waiting"
            self._out.append(Refused(id=request.id, code="overloaded", message=text))
        else:
            self._queue.append(request)
            if request.deadline is not None:
                self._deadlines[request.id] = time.monotonic() + request.deadline

    def _abort(self, id: str) -> None:
        waiting = next((request for request in self._queue if request.id == id), None)
        if waiting is not None:
            self._queue.remove(waiting)
            self._deadlines.pop(id, None)
            self._out.append(Tokens(id=id, tokens=[], finish="abort"))
        elif id in self._running:
            self._finish(self._running[id], [], [], "abort")

    def _step(self) -> None:
        now = time.monotonic()
        for id in [id for id, limit in self._deadlines.items() if now >= limit]:
            self._abort(id)
        while self._queue and len(self._running) < self._script.max_running:
            request = self._queue.popleft()
            self._running[request.id] = self._begin(request)
        self._steps += 1
        for running in list(self._running.values()):
            if self._prefill(running):
                self._decode(running)

    def _begin(self, request: Submit) -> _Running:
        prompt = self._tokenizer.decode(request.tokens) if self._tokenizer else ""
        rule = next((rule for rule in self._script.rules if rule.matches(prompt)), Rule(tokens=[]))
        if rule.tokens is not None:
            answer = rule.tokens
        elif rule.draw:
            seeded = random.Random(request.sampling.seed)
            answer = [seeded.randrange(min(self._vocab, 256)) for _ in range(rule.draw)]
        else:
            text = prompt if rule.echo else rule.text or ""
            answer = self._tokenizer.encode(text) if self._tokenizer else list(text.encode())
        page = self._script.page_tokens
        alike = [_shared(request.tokens, old) for salt, old in self._remembered if salt == request.salt]
        cached = max(alike, default=0)
        # The last prompt token is always computed: its logits give the first output token.
        return _Running(request, rule, answer, min(cached, len(request.tokens) - 1) // page * page)

    def _prefill(self, running: _Running) -> bool:
        """Whether the prompt is complete after this step."""
        total, rate = len(running.request.tokens), self._script.prefill_rate
        if running.prefilled >= total:
            return True
        before = running.prefilled
        share = rate / self._script.decode_rate if rate and self._script.decode_rate else total
        running.prefilled = min(total, before + share)
        self._prefill_tokens += int(running.prefilled) - int(before)
        if running.prefilled < total:
            return False
        self._remembered.append((running.request.salt, running.request.tokens))
        return True

    def _decode(self, running: _Running) -> None:
        request, fault = running.request, running.rule.fault
        new: list[int] = []
        finish: Finish | None = None
        stop_id: int | None = None
        room = self._script.context_tokens - len(request.tokens)
        for _ in range(self._script.tokens_per_step):
            self._misbehave(fault.die_after, fault.stall_after, running, new)
            if fault.error_after is not None and running.said >= fault.error_after:
                self._finish(running, new, [], "error", error="the script says that this request fails")
                return
            token = running.next_token()
            if token is None or (token in request.stop_ids and running.said >= request.min_tokens):
                finish, stop_id = "stop", token
                break
            new.append(token)
            running.said += 1
            if running.said >= min(request.max_tokens, room):
                finish = "length"
                break
        self._decode_tokens += len(new)
        logprobs = [self._logprob(token, request.logprobs) for token in new] if request.logprobs >= 0 else []
        if finish is not None:
            self._finish(running, new, logprobs, finish, stop_id)
        elif new:
            self._out.append(Tokens(id=request.id, tokens=new, logprobs=logprobs, cached=running.cached))

    def _misbehave(self, die_after: int | None, stall_after: int | None, running: _Running, new: list[int]) -> None:
        dies = die_after is not None and running.said >= die_after
        if dies or (stall_after is not None and running.said >= stall_after):
            if new:
                self._out.append(Tokens(id=running.request.id, tokens=new, cached=running.cached))
            self._flush()
            if dies:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(3600)

    def _finish(
        self,
        running: _Running,
        new: list[int],
        logprobs: list[Logprob],
        finish: Finish,
        stop_id: int | None = None,
        error: str | None = None,
    ) -> None:
        id = running.request.id
        del self._running[id]
        self._deadlines.pop(id, None)
        self._out.append(
            Tokens(id=id, tokens=new, logprobs=logprobs, cached=running.cached, finish=finish, stop_id=stop_id, error=error)
        )

    def _logprob(self, token: int, best: int) -> Logprob:
        """Made up, but the same for the same token, and falling."""
        top = [((token + rank) % self._vocab, -0.1 * (token % 7 + rank)) for rank in range(best)]
        return Logprob(token=token, logprob=-0.1 * (token % 7), top=top)

    def _stats(self) -> Stats:
        page = self._script.page_tokens
        live = -(-self._script.context_tokens // page) * self._script.max_running
        used = sum(-(-(int(one.prefilled) + one.said) // page) for one in self._running.values())
        return Stats(
            running=len(self._running),
            queued=len(self._queue),
            steps=self._steps,
            prefill_tokens=self._prefill_tokens,
            decode_tokens=self._decode_tokens,
            pools={
                "pages": (used, live, live),
                "states": (len(self._running), self._script.max_running, self._script.max_running),
            },
            programs="eager",
        )

    def _flush(self) -> None:
        out, self._out = self._out, []
        self._link.send(out)


def _shared(one: list[int], other: list[int]) -> int:
    """Length of the common beginning."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(islice(pairs, min(len(one), len(other)))) if a != b), min(len(one), len(other)))


def main(arguments: list[str]) -> int:
    """Exit code 0 after 'stop' and when the server went away, 1 when the script cannot be played."""
    parser = argparse.ArgumentParser(prog="ftc.engine.scripted")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--script", type=Path, required=True)
    options = parser.parse_args(arguments)
    link = attach(options.fd)
    try:
        script = read_script(options.script)
        tokenizer = Tokenizer.load(Path(script.tokenizer)) if script.tokenizer else None
        ScriptedEngine(link, script, tokenizer).serve()
    except FtcError as error:
        link.send([Failed(text=str(error))])
        return 1
    except (EOFError, KeyboardInterrupt):
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
