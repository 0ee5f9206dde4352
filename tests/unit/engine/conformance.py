"""What every engine must do, whatever it computes: one suite over any command that starts one.

A test module subclasses Conformance and says how its engine is started. Prompts are small token ids; without stop ids
an engine goes on until `max_tokens`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftc.engine.messages import VERSION, Abort, Control, Hello, Progress, Refused, Sampling, Stats, Tokens
from tests.unit.engine.peer import GREEDY, Peer

FRAMES = Path(__file__).parents[2] / "data" / "engine" / "replay.json"
PROMPT = [11, 12, 13, 14, 15, 16, 17, 18, 19, 20]


class Conformance:
    """The suite. `engine_command` is a class-scoped fixture of the subclass."""

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, engine_command: list[str]) -> Iterator[tuple[Peer, Hello]]:
        with Peer(engine_command) as peer:
            yield peer, peer.hello()

    def test_hello_comes_first_and_is_true(self, engine: tuple[Peer, Hello]) -> None:
        peer, hello = engine
        assert all(isinstance(message, Progress) for message in peer.early)
        assert (hello.version, hello.pid) == (VERSION, peer.process.pid)
        assert min(hello.context_tokens, hello.vocab_size, hello.max_running) > 0
        assert hello.max_queued >= 0

    def test_nothing_is_said_unasked(self, engine: tuple[Peer, Hello]) -> None:
        message = engine[0].receive(0.3)
        assert message is None or isinstance(message, Stats)

    def test_an_answer_has_the_length_asked_and_one_end(self, engine: tuple[Peer, Hello]) -> None:
        peer, _ = engine
        for length in (1, 2, 9):
            tokens, last = peer.answer(peer.submit(PROMPT, length))
            assert (len(tokens), last.finish) == (length, "length")
            assert 0 <= last.cached < len(PROMPT)

    def test_requests_side_by_side_do_not_mix(self, engine: tuple[Peer, Hello]) -> None:
        peer, hello = engine
        ids = [peer.submit([*PROMPT, 30 + at], 3 + at) for at in range(min(6, hello.max_running))]
        got = peer.answers(ids)
        assert [sum(len(piece.tokens) for piece in got[id]) for id in ids] == [3 + at for at in range(len(ids))]
        assert all([piece.finish for piece in got[id]].count(None) == len(got[id]) - 1 for id in ids)

    def test_a_stop_id_ends_the_answer_and_is_not_sent(self, engine: tuple[Peer, Hello]) -> None:
        peer, _ = engine
        free, _ = peer.answer(peer.submit(PROMPT, 12))
        stop = free[2]
        tokens, last = peer.answer(peer.submit(PROMPT, 12, stop_ids=[stop]))
        assert tokens == free[: free.index(stop)]
        assert (last.finish, last.stop_id) == ("stop", stop)

    def test_min_tokens_holds_off_the_stop(self, engine: tuple[Peer, Hello]) -> None:
        peer, _ = engine
        free, _ = peer.answer(peer.submit(PROMPT, 12))
        tokens, _ = peer.answer(peer.submit(PROMPT, 12, stop_ids=[free[0]], min_tokens=4))
        assert len(tokens) >= 4

    def test_forced_tokens_begin_the_answer(self, engine: tuple[Peer, Hello]) -> None:
        peer, _ = engine
        tokens, last = peer.answer(peer.submit(PROMPT, 6, forced=[41, 42, 43]))
        assert (tokens[:3], len(tokens), last.finish) == ([41, 42, 43], 6, "length")
        tokens, _ = peer.answer(peer.submit(PROMPT, 2, forced=[41, 42, 43]))
        assert tokens == [41, 42]

    def test_the_same_seed_gives_the_same_tokens(self, engine: tuple[Peer, Hello]) -> None:
        peer, _ = engine
        sampling = Sampling(temperature=1.0, seed=7)
        first, _ = peer.answer(peer.submit(PROMPT, 8, sampling))
        second, _ = peer.answer(peer.submit(PROMPT, 8, sampling))
        assert first == second

    def test_logprobs_are_of_the_tokens_sent(self, engine: tuple[Peer, Hello]) -> None:
        peer, _ = engine
        for best in (0, 2):
            id = peer.submit(PROMPT, 5, logprobs=best)
            pieces = [piece for piece in peer.answers([id])[id] if isinstance(piece, Tokens)]
            entries = [entry for piece in pieces for entry in piece.logprobs]
            assert [entry.token for entry in entries] == [token for piece in pieces for token in piece.tokens]
            assert all(entry.logprob <= 0 and len(entry.top) == best for entry in entries)
            assert all(entry.top == sorted(entry.top, key=lambda one: -one[1]) for entry in entries)
        _, last = peer.answer(peer.submit(PROMPT, 2))
        assert last.logprobs == []

    def test_an_abort_ends_a_running_request_within_a_second(self, engine: tuple[Peer, Hello]) -> None:
        peer, hello = engine
        id = peer.submit(PROMPT, hello.context_tokens - len(PROMPT) - 1)
        peer.first_tokens(id)
        peer.send(Abort(id=id))
        _, last = peer.answer(id, within=1.0)
        assert last.finish == "abort"
        message = peer.receive(0.3)
        assert message is None or isinstance(message, Stats)
        assert (peer.stats().running, peer.stats().queued) == (0, 0)

    def test_an_abort_right_behind_its_request_ends_it(self, engine: tuple[Peer, Hello]) -> None:
        peer, hello = engine
        ids = [peer.submit([*PROMPT, at], hello.context_tokens - len(PROMPT) - 2) for at in range(4)]
        peer.send(*(Abort(id=id) for id in ids))
        got = peer.answers(ids, within=1.0)
        assert all(got[id][-1].finish == "abort" for id in ids)

    def test_an_unknown_or_late_abort_is_ignored(self, engine: tuple[Peer, Hello]) -> None:
        peer, _ = engine
        id = peer.submit(PROMPT, 1)
        peer.answer(id)
        peer.send(Abort(id=id), Abort(id="never seen"))
        assert len(peer.answer(peer.submit(PROMPT, 2))[0]) == 2

    def test_a_deadline_is_an_abort(self, engine: tuple[Peer, Hello]) -> None:
        peer, hello = engine
        begin = time.monotonic()
        _, last = peer.answer(peer.submit(PROMPT, hello.context_tokens - len(PROMPT) - 1, deadline=0.2), within=5.0)
        # A fast engine may come to the context's end before the deadline.
        assert last.finish == "abort" and time.monotonic() - begin >= 0.2 or last.finish == "length"

    @pytest.mark.parametrize("fault", ["too_long", "empty", "vocabulary", "negative"])
    def test_what_can_never_be_served_is_refused_at_once(self, engine: tuple[Peer, Hello], fault: str) -> None:
        peer, hello = engine
        tokens = {
            "too_long": [11] * (hello.context_tokens + 1),
            "empty": [],
            "vocabulary": [11, hello.vocab_size],
            "negative": [-1],
        }[fault]
        id = peer.submit(tokens, 4)
        (refusal,) = peer.answers([id], within=2.0)[id]
        assert isinstance(refusal, Refused)
        assert refusal.code == ("too_long" if fault == "too_long" else "invalid")
        if fault == "too_long":
            assert str(hello.context_tokens + 1) in refusal.message and str(hello.context_tokens) in refusal.message
        assert len(peer.answer(peer.submit(PROMPT, 2))[0]) == 2

    def test_a_full_queue_refuses_and_recovers(self, engine: tuple[Peer, Hello]) -> None:
        peer, hello = engine
        length = hello.context_tokens - len(PROMPT) - 1
        ids = [peer.submit(PROMPT, length) for _ in range(hello.max_running + hello.max_queued + 8)]
        peer.send(*(Abort(id=id) for id in ids))
        got = peer.answers(ids, within=10.0)
        refused = [got[id][-1] for id in ids if isinstance(got[id][-1], Refused)]
        assert refused and all(one.code == "overloaded" for one in refused)
        assert len(refused) < len(ids)
        assert len(peer.answer(peer.submit(PROMPT, 2))[0]) == 2

    def test_stats_add_up_and_nothing_is_held_after_the_end(self, engine: tuple[Peer, Hello]) -> None:
        peer, hello = engine
        before = peer.stats()
        peer.answer(peer.submit(PROMPT, 5))
        id = peer.submit(PROMPT, hello.context_tokens - len(PROMPT) - 1)
        peer.first_tokens(id)
        peer.send(Abort(id=id))
        peer.answer(id, within=2.0)
        after = peer.stats()
        assert (after.running, after.queued) == (0, 0)
        assert after.steps > before.steps
        assert after.decode_tokens - before.decode_tokens >= 5
        for used, live, reserved in after.pools.values():
            assert 0 <= used <= live <= reserved

    def test_recorded_frames_are_understood(self, engine: tuple[Peer, Hello]) -> None:
        """Bytes written when the contract was version 1: a change of the wire fails here."""
        peer, _ = engine
        recorded = json.loads(FRAMES.read_text())
        peer.socket.sendall(bytes.fromhex(recorded["sent"]))
        got = peer.answers(list(recorded["finish"]), within=20.0)
        ends = {id: pieces[-1] for id, pieces in got.items()}
        seen = {id: end.code if isinstance(end, Refused) else end.finish for id, end in ends.items()}
        assert seen == recorded["finish"]

    def test_a_server_that_goes_away_takes_the_engine_with_it(self, engine_command: list[str]) -> None:
        with Peer(engine_command) as peer:
            hello = peer.hello()
            peer.first_tokens(peer.submit(PROMPT, hello.context_tokens - len(PROMPT) - 1))
            peer.socket.close()
            peer.process.wait(3)

    def test_stop_ends_the_process_in_order(self, engine_command: list[str]) -> None:
        with Peer(engine_command) as peer:
            peer.hello()
            peer.answer(peer.submit(PROMPT, 2, GREEDY))
            peer.send(Control(verb="stop"))
            assert peer.process.wait(5) == 0
