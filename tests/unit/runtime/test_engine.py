"""The engine's loop over a real socket, with the stand-in for programs: what is told, refused, counted, and when it sleeps."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from ftc.engine.link import Frames, Link, frame
from ftc.engine.messages import (
    VERSION,
    Abort,
    Control,
    FromEngine,
    Hello,
    Message,
    Refused,
    Sampling,
    Stats,
    Submit,
    Tokens,
    decode_from_engine,
)
from ftc.runtime.engine import Engine, warm_up
from tests.unit.runtime.standin import VOCAB, Bench, greedy

GREEDY = Sampling(temperature=0.0)
HELLO = Hello(
    version=VERSION,
    model="stand-in",
    vocab_size=VOCAB,
    vocab_hash="",
    context_tokens=1024,
    max_running=4,
    max_queued=64,
    pid=0,
    dtype="float32",
    target="cpu",
)


class Peer:
    """The server's end: sends messages and keeps all that comes back."""

    def __init__(self, bench: Bench) -> None:
        self.bench, (self._socket, theirs) = bench, socket.socketpair()
        self._socket.settimeout(10)
        self._frames = Frames()
        self.ended: BaseException | str | None = None
        self._link = Link(theirs.detach())
        self._engine = Engine(self._link, bench.scheduler, HELLO)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.heard: list[FromEngine] = []

    def _run(self) -> None:
        try:
            self._engine.serve()
            self.ended = "returned"
        except BaseException as error:
            self.ended = error

    def send(self, *messages: Message) -> None:
        self._socket.sendall(frame(messages))

    def hear(self) -> list[FromEngine]:
        """Waits for the next messages."""
        new = [decode_from_engine(data) for data in self._frames.push(self._socket.recv(1 << 16))]
        self.heard += new
        return new

    def until(self, kind: type, count: int = 1) -> list[FromEngine]:
        """All messages of one kind, once there are so many."""
        while len(found := [m for m in self.heard if isinstance(m, kind)]) < count:
            self.hear()
        return found

    def answer(self, id: str) -> tuple[list[int], Tokens]:
        """The tokens of a request, once it is finished, and its last message."""
        while True:
            own = [m for m in self.heard if isinstance(m, Tokens) and m.id == id]
            if own and own[-1].finish is not None:
                return [t for m in own for t in m.tokens], own[-1]
            self.hear()

    def close(self) -> None:
        self._socket.close()
        self._thread.join(10)
        assert not self._thread.is_alive()
        self._link.close()


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer(Bench())
    yield made
    made.close()


def test_hello_then_tokens_in_one_message_a_step(peer: Peer) -> None:
    peer.send(Submit(id="a", tokens=[1, 2, 3], sampling=GREEDY, max_tokens=9))
    tokens, last = peer.answer("a")
    assert peer.heard[0] == HELLO
    assert tokens == greedy([1, 2, 3], 9)
    assert (last.finish, last.error) == ("length", None)
    assert [len(m.tokens) for m in peer.heard[1:] if isinstance(m, Tokens)] == [1] * 9


def test_refusals_carry_code_field_and_numbers(peer: Peer) -> None:
    nan = float("nan")
    peer.send(
        Submit(id="long", tokens=[1] * 2000, sampling=GREEDY, max_tokens=9),
        Submit(id="empty", tokens=[], sampling=GREEDY, max_tokens=9),
        Submit(id="word", tokens=[1, VOCAB], sampling=GREEDY, max_tokens=9),
        Submit(id="none", tokens=[1], sampling=GREEDY, max_tokens=0),
        Submit(id="nan", tokens=[1], sampling=Sampling(temperature=nan), max_tokens=9),
        Submit(id="bias", tokens=[1], sampling=Sampling(logit_bias={VOCAB: 1.0}), max_tokens=9),
        Submit(id="minus", tokens=[1], sampling=Sampling(top_p=-0.1), max_tokens=9),
        Submit(id="good", tokens=[1], sampling=GREEDY, max_tokens=9),
    )
    assert peer.answer("good")[0] == greedy([1], 9)
    refused = {m.id: (m.code, m.where, m.message) for m in peer.until(Refused, 7)}
    assert {id: (code, where) for id, (code, where, _) in refused.items()} == {
        "long": ("too_long", "tokens"),
        "empty": ("invalid", "tokens"),
        "word": ("invalid", "tokens"),
        "none": ("invalid", "max_tokens"),
        "nan": ("invalid", "temperature"),
        "bias": ("invalid", "logit_bias"),
        "minus": ("invalid", "top_p"),
    }
    assert "2000" in refused["long"][2] and "1024" in refused["long"][2]
    assert str(VOCAB) in refused["word"][2]
    assert not [m for m in peer.heard if isinstance(m, Tokens) and m.id != "good"]


def test_stats_and_resize(peer: Peer) -> None:
    peer.send(Submit(id="a", tokens=[1] * 100, sampling=GREEDY, max_tokens=5))
    peer.answer("a")
    peer.send(Control(verb="stats"))
    (stats,) = peer.until(Stats)
    assert stats == Stats(
        running=0,
        queued=0,
        steps=stats.steps,
        prefill_tokens=100,
        decode_tokens=5,
        pools={"pages": (0, 64, 64), "states": (0, 4, 4)},
        programs="eager",
    )
    peer.send(Control(verb="resize", arguments={"pages": 20, "states": 9, "unknown": 3}))
    assert peer.until(Stats, 2)[1].pools == {"pages": (0, 20, 64), "states": (0, 4, 4)}  # type: ignore[attr-defined]


def test_stats_come_every_second_while_something_runs(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftc.runtime.engine.STATS_S", 0.05)
    peer.bench.slow_down(0.002)
    began = time.monotonic()
    peer.send(Submit(id="a", tokens=[1], sampling=GREEDY, max_tokens=60))
    peer.answer("a")
    found = [m for m in peer.heard if isinstance(m, Stats)]
    assert 3 <= len(found) <= (time.monotonic() - began) / 0.05 + 1
    assert all(stats.running == 1 and stats.pools["pages"][0] == 1 for stats in found)


def test_abort_answers_and_unknown_ids_do_not(peer: Peer) -> None:
    peer.bench.slow_down(0.005)
    peer.send(Submit(id="a", tokens=[1] * 900, sampling=GREEDY, max_tokens=100), Abort(id="b"))
    peer.hear()
    peer.send(Abort(id="a"), Abort(id="a"))
    tokens, last = peer.answer("a")
    assert (tokens, last.finish) == ([], "abort")
    peer.send(Submit(id="a", tokens=[4], sampling=GREEDY, max_tokens=3))
    while len([m for m in peer.heard if isinstance(m, Tokens)]) < 4:
        peer.hear()
    assert [m.tokens for m in peer.heard if isinstance(m, Tokens)][1:] == [[t] for t in greedy([4], 3)]


def test_drain_refuses_new_requests_and_stop_ends(peer: Peer) -> None:
    peer.send(Submit(id="a", tokens=[1], sampling=GREEDY, max_tokens=30), Control(verb="drain"))
    peer.send(Submit(id="b", tokens=[1], sampling=GREEDY, max_tokens=30))
    assert peer.answer("a")[0] == greedy([1], 30)
    (refused,) = peer.until(Refused)
    assert (refused.id, refused.code) == ("b", "overloaded")  # type: ignore[attr-defined]
    peer.send(Control(verb="stop"))
    peer._thread.join(5)
    assert peer.ended == "returned"


def test_the_end_of_the_link_ends_the_engine_even_while_it_works() -> None:
    for busy in (False, True):
        peer = Peer(Bench())
        peer.bench.slow_down(0.001)
        if busy:
            peer.send(Submit(id="a", tokens=[1], sampling=GREEDY, max_tokens=900))
            peer.until(Tokens)
        peer.close()
        assert isinstance(peer.ended, EOFError)


def test_idle_costs_no_time(peer: Peer) -> None:
    peer.send(Submit(id="a", tokens=[1], sampling=GREEDY, max_tokens=3))
    peer.answer("a")
    time.sleep(0.05)
    polls, steps = peer.bench.programs.polls, peer.bench.scheduler.steps
    time.sleep(0.2)
    assert (peer.bench.programs.polls, peer.bench.scheduler.steps) == (polls, steps)


def test_a_failure_of_the_scheduler_ends_requests_and_the_engine_goes_on(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(rows: int) -> None:
        raise KeyError("no such program")

    with monkeypatch.context() as patch:
        patch.setattr(peer.bench.programs, "prefill", broken)
        peer.send(Submit(id="a", tokens=[1, 2], sampling=GREEDY, max_tokens=30))
        assert "no such program" in (peer.answer("a")[1].error or "")
    peer.send(Submit(id="b", tokens=[1, 2], sampling=GREEDY, max_tokens=30))
    assert peer.answer("b")[0] == greedy([1, 2], 30)


def test_a_page_that_nobody_holds_is_not_passed_over() -> None:
    peer = Peer(Bench())
    peer.bench.pools.pages.allocate(1)
    peer.send(Submit(id="a", tokens=[1, 2], sampling=GREEDY, max_tokens=3))
    peer._thread.join(5)
    assert isinstance(peer.ended, AssertionError) and "pages" in str(peer.ended)
    peer.close()


def test_warm_up_leaves_nothing_and_tells_what_is_broken() -> None:
    bench = Bench()
    warm_up(bench.scheduler)
    assert not bench.scheduler.busy
    assert bench.pools.pages.used == bench.pools.slots.used == 0
    assert [shape.mode for shape in bench.programs.starts] == ["prefill", "decode"]

    def fail() -> None:
        raise FloatingPointError("a kernel broke")

    bench.programs.on_call = fail
    with pytest.raises(Exception, match="does not run.*a kernel broke"):
        warm_up(bench.scheduler)
