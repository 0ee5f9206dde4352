"""The engine process's loop: messages in, scheduler steps, messages out; idle it sleeps, and nothing may be held then."""

from __future__ import annotations

import time

from ftc import log
from ftc.engine.link import Link
from ftc.engine.messages import Abort, Control, FromEngine, Hello, Refused, Sampling, Stats, Submit, ToEngine, Tokens
from ftc.engine.refusal import TooLongError
from ftc.errors import EngineError, FtcError, OverloadError, RequestError
from ftc.runtime.scheduler import Scheduler

# While requests run, the server hears at least this often that the engine is alive.
STATS_S = 1.0

_log = log.logger("engine")


class Engine:
    """Serves one scheduler over one link."""

    def __init__(self, link: Link, scheduler: Scheduler, hello: Hello) -> None:
        self._link, self._scheduler, self._hello = link, scheduler, hello
        self._draining = False
        self._out: list[FromEngine] = []

    def serve(self) -> None:
        """Runs until told to stop. Raises EOFError when the server is gone."""
        scheduler = self._scheduler
        self._link.send([self._hello])
        told = time.monotonic()
        while True:
            for message in self._link.receive(0 if scheduler.busy else None):
                if message == Control(verb="stop"):
                    self._link.send(self._out)
                    return
                self._take(message)
            if scheduler.busy:
                self._step()
                if not scheduler.busy:
                    self._check_idle()
                elif time.monotonic() - told >= STATS_S:
                    told = time.monotonic()
                    self._out.append(self._stats())
            self._link.send(self._out)
            self._out = []

    def _take(self, message: ToEngine) -> None:
        match message:
            case Submit():
                self._submit(message)
            case Abort():
                self._scheduler.abort(message.id)
            case Control(verb="drain"):
                self._draining = True
            case Control(verb="resize"):
                self._resize(message.arguments)
            case Control():
                self._out.append(self._stats())

    def _submit(self, submit: Submit) -> None:
        try:
            if self._draining:
                raise OverloadError("the engine is stopping and takes no more requests")
            self._scheduler.submit(submit)
        except TooLongError as error:
            self._out.append(_refused(submit, "too_long", error))
        except RequestError as error:
            self._out.append(_refused(submit, "invalid", error))
        except OverloadError as error:
            self._out.append(_refused(submit, "overloaded", error))

    def _resize(self, arguments: dict[str, int]) -> None:
        """The answer is Stats, which tell what the pools are now."""
        for name, live in arguments.items():
            try:
                self._scheduler.resize(name, live)
            except EngineError as error:
                _log.warning("a pool keeps its size: %s", error.message)
        self._out.append(self._stats())

    def _step(self) -> None:
        try:
            self._out += self._scheduler.step()
        except Exception as error:
            # What a step can end with an error itself, it has; this is the scheduler's own failure.
            _log.exception("the scheduler failed; all requests end with an error")
            self._scheduler.fail_all(f"the engine failed: {type(error).__name__}: {error}")

    def _check_idle(self) -> None:
        held = {name: used for name, (used, _, _) in self._scheduler.pools.counts().items() if used}
        assert not held, f"pages or slots are held by nobody: {held}"

    def _stats(self) -> Stats:
        s = self._scheduler
        return Stats(
            running=len(s.running),
            queued=len(s.waiting),
            steps=s.steps,
            prefill_tokens=s.prefill_tokens,
            decode_tokens=s.decode_tokens,
            pools=s.pools.counts(),
            programs=s.programs.state,
            compiled=s.programs.compiled,
            loaded=s.programs.loaded,
        )


def warm_up(scheduler: Scheduler) -> None:
    """Runs a short request, so that what is broken shows before Hello and the first real one meets warm code.

    Raises EngineError with what went wrong.
    """
    scheduler.submit(Submit(id="", tokens=[0, 0], sampling=Sampling(temperature=0.0), max_tokens=2))
    while scheduler.busy:
        for event in scheduler.step():
            if isinstance(event, Tokens) and event.error is not None:
                raise EngineError(f"the model does not run: {event.error}")


def _refused(submit: Submit, code: str, error: FtcError) -> Refused:
    # `where` travels by itself and is put in front of the message again on the other side.
    value = "" if error.value is None else f" (got {error.value!r})"
    return Refused(id=submit.id, code=code, message=f"{error.what}{value}", where=error.where)  # type: ignore[arg-type]
