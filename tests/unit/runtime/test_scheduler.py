"""The scheduler over a stand-in whose tokens depend on everything it may mix up: alone is batched is chunked is preempted."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftc.engine.messages import Sampling, Submit, Tokens
from ftc.engine.refusal import TooLongError
from ftc.errors import EngineError, OverloadError, RequestError
from ftc.trace.inputs import Shape
from tests.unit.runtime.standin import LAYERS, VOCAB, Bench, greedy, next_logits


def prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng((length, seed)).integers(0, VOCAB, length).tolist()


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 64, 65, 96, 97, 200])
def test_one_request_alone(length: int) -> None:
    bench = Bench()
    bench.submit("a", prompt(length), 12)
    bench.run()
    assert bench.tokens["a"] == greedy(prompt(length), 12)
    assert bench.ends["a"].finish == "length"
    assert bench.scheduler.prefill_tokens == (length if length > 1 and length not in (97,) else length - 1)
    assert (bench.scheduler.decode_tokens, bench.scheduler.preemptions) == (12, 0)


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_batched_is_alone_and_uses_the_smallest_program(count: int) -> None:
    bench = Bench(max_running=8)
    for n in range(count):
        bench.submit(str(n), prompt(5 + 9 * n, n), 20 + n)
    bench.run()
    assert bench.tokens == {str(n): greedy(prompt(5 + 9 * n, n), 20 + n) for n in range(count)}
    sizes = {shape.rows for shape in bench.programs.starts if shape.mode == "decode"}
    assert sizes == {1, 2} if count == 2 else sizes == {1, 2, 4}


def test_more_requests_than_rows_of_any_program() -> None:
    bench = Bench(max_running=7, decode=(1, 2))
    for n in range(9):
        bench.submit(str(n), prompt(3 + n, n), 10)
    bench.run()
    assert bench.tokens == {str(n): greedy(prompt(3 + n, n), 10) for n in range(9)}


def test_stop_ids_end_the_output_and_are_not_sent() -> None:
    expected = greedy(prompt(10), 30)
    stop = expected[9]
    before = expected.index(stop)
    bench = Bench()
    bench.submit("a", prompt(10), 30, stop_ids=[stop])
    bench.submit("never", prompt(10), 8, stop_ids=[next(t for t in range(VOCAB) if t not in expected[:8])])
    bench.run()
    assert bench.tokens["a"] == expected[:before]
    assert (bench.ends["a"].finish, bench.ends["a"].stop_id, bench.ends["a"].tokens) == ("stop", stop, [])
    assert bench.ends["never"].finish == "length" and bench.ends["never"].stop_id is None


def test_min_tokens_bars_stop_ids_until_then() -> None:
    expected = greedy(prompt(10), 30)
    bench = Bench()
    bench.submit("a", prompt(10), 30, stop_ids=[expected[0]], min_tokens=5)
    bench.run()
    tokens = prompt(10)
    for _ in range(5):
        logits = next_logits(tokens)
        logits[expected[0]] = -np.inf
        tokens.append(int(logits.argmax()))
    assert bench.tokens["a"][:5] == tokens[10:]
    assert expected[0] not in bench.tokens["a"]


def test_forced_tokens_come_first_and_end_nothing() -> None:
    forced = [5, 6, 7]
    bench = Bench()
    bench.submit("a", prompt(10), 12, forced=forced, stop_ids=[6])
    bench.run()
    assert bench.tokens["a"] == forced + greedy(prompt(10) + forced, 9, stop_ids=(6,))


def test_a_mask_is_asked_with_the_output_so_far() -> None:
    asked: list[list[int]] = []

    def even(output: list[int]) -> np.ndarray | None:
        asked.append(output)
        return None if len(output) == 2 else np.full(2, 0x55555555, np.int32)

    bench = Bench()
    bench.scheduler.submit(Submit(id="a", tokens=prompt(4), max_tokens=4, sampling=Sampling(temperature=0.0)), even)
    bench.submit("other", prompt(6), 8)
    bench.run()
    tokens = prompt(4)
    for n in range(4):
        logits = next_logits(tokens)
        if n != 2:
            logits[1::2] = -np.inf
        tokens.append(int(logits.argmax()))
    assert bench.tokens["a"] == tokens[4:]
    assert asked == [tokens[4 : 4 + n] for n in range(4)]
    assert bench.tokens["other"] == greedy(prompt(6), 8)


def test_logprobs_are_those_of_the_model() -> None:
    bench = Bench()
    bench.submit("a", prompt(9), 3, logprobs=2, sampling=Sampling(temperature=0.0, logit_bias={1: 50.0}))
    messages: list[Tokens] = []
    while bench.scheduler.busy:
        messages += bench.scheduler.step()  # type: ignore[arg-type]
    assert [m.tokens for m in messages] == [[1], [1], [1]]
    tokens = prompt(9)
    for message in messages:
        logits = next_logits(tokens).astype(np.float64)
        expected = logits - np.log(np.exp(logits).sum())
        best = np.argsort(-expected)[:2]
        (logprob,) = message.logprobs
        assert logprob.token == 1
        assert logprob.logprob == pytest.approx(expected[1], abs=1e-5)
        assert [token for token, _ in logprob.top] == best.tolist()
        assert [value for _, value in logprob.top] == pytest.approx(expected[best].tolist(), abs=1e-5)
        tokens.append(1)


def test_a_full_context_ends_with_length() -> None:
    bench = Bench(context=100)
    bench.submit("a", prompt(90), 50)
    bench.run()
    assert bench.tokens["a"] == greedy(prompt(90), 10)
    assert bench.ends["a"].finish == "length"


def test_refusals_name_the_numbers_and_cost_nothing() -> None:
    bench = Bench(context=100, max_running=1, max_queued=2)
    with pytest.raises(TooLongError, match=r"100 tokens .* 100"):
        bench.submit("long", prompt(100))
    for n in range(3):
        bench.submit(str(n), prompt(5, n))
    with pytest.raises(OverloadError, match="3 are waiting"):
        bench.submit("3", prompt(5))
    with pytest.raises(RequestError, match="id"):
        bench.submit("0", prompt(5))
    bench.step()
    bench.run()
    assert sorted(bench.ends) == ["0", "1", "2"]


def test_first_come_first_served_unless_priority_says_otherwise() -> None:
    bench = Bench(max_running=1)
    for n, priority in enumerate([0, 0, 5, 5, -1]):
        bench.submit(str(n), prompt(4, n), 2, priority=priority)
    bench.run()
    assert list(dict.fromkeys(bench.order)) == ["2", "3", "0", "1", "4"]


def test_a_deadline_aborts_running_and_waiting() -> None:
    bench = Bench(max_running=1)
    bench.submit("runs", prompt(4), 500, deadline=0.1)
    bench.submit("waits", prompt(4), 500, deadline=0.05)
    bench.submit("free", prompt(4), 3)
    bench.run()
    assert {id: end.finish for id, end in bench.ends.items()} == {"runs": "abort", "waits": "abort", "free": "length"}
    assert bench.tokens["waits"] == []
    assert 5 < len(bench.tokens["runs"]) < 100 / LAYERS
    assert bench.tokens["runs"] == greedy(prompt(4), len(bench.tokens["runs"]))


@pytest.mark.parametrize("when", ["waiting", "in prefill", "decoding"])
def test_abort_frees_at_once_and_leaves_the_others_alone(when: str) -> None:
    bench = Bench(max_running=2)
    bench.submit("other", prompt(20, 1), 60)
    if when == "waiting":
        bench.submit("third", prompt(7, 2), 60)
    for _ in range(3):
        bench.step()
    bench.submit("a", prompt(400), 60)
    target = {"waiting": 0, "in prefill": 3, "decoding": 200}[when]
    for _ in range(target):
        if when == "decoding" and len(bench.tokens.get("a", [])) > 3:
            break
        bench.step()
    before = len(bench.scheduler.running)
    bench.scheduler.abort("a")
    bench.check()
    assert len(bench.scheduler.running) == before - (when != "waiting")
    bench.scheduler.abort("a")
    bench.scheduler.abort("unknown")
    bench.step()
    assert bench.ends["a"].finish == "abort"
    assert (len(bench.tokens["a"]) > 0) == (when == "decoding")
    bench.run()
    assert bench.tokens["other"] == greedy(prompt(20, 1), 60)


def test_preemption_recomputes_the_youngest_and_changes_no_token() -> None:
    # Six pages of 64 tokens; three requests that each grow to three pages.
    bench = Bench(context=256, max_running=4, pages=6)
    for n in range(3):
        bench.submit(str(n), prompt(60 + n, n), 120)
    bench.run(20000)
    assert bench.scheduler.preemptions >= 1
    assert bench.tokens == {str(n): greedy(prompt(60 + n, n), 120) for n in range(3)}
    finished = [id for id in bench.order if id in bench.ends]
    assert finished.index("0") < len(finished)
    assert list(bench.ends)[0] == "0", "the oldest is never put back"


def test_preemption_of_a_prompt_under_way() -> None:
    # 34 pages: one and a spare one for the first, 32 for the prompt, which is slower than the first grows.
    bench = Bench(context=2112, max_running=2, pages=34, chunks=(8,))
    bench.submit("old", prompt(60), 180)
    while not bench.tokens.get("old"):
        bench.step()
    bench.submit("young", prompt(2000, 1), 3)
    while not bench.scheduler.preemptions:
        bench.step()
    assert "young" not in bench.tokens
    bench.run(20000)
    assert bench.tokens == {"old": greedy(prompt(60), 180), "young": greedy(prompt(2000, 1), 3)}


def test_decode_goes_on_while_a_long_prompt_is_computed() -> None:
    bench = Bench(context=4096, max_running=2, chunks=(96,))
    bench.submit("stream", prompt(5), 400)
    while len(bench.tokens.get("stream", [])) < 10:
        bench.step()
    bench.submit("long", prompt(2000, 1), 5)
    calls: list[int] = []  # region calls so far, at each token of the stream
    while "long" not in bench.tokens:
        count = len(bench.tokens["stream"])
        bench.step()
        if len(bench.tokens["stream"]) > count:
            calls.append(bench.programs.calls)
    gaps = [b - a for a, b in pairwise(calls)]
    decode = LAYERS + 1
    # A decode step takes 4 calls of the same length; the prompt gets about as many before the next one, even within a chunk.
    assert max(gaps) <= 3 * decode
    assert len(gaps) > 10, "the prompt took one turn only"
    bench.run()
    assert bench.tokens["stream"] == greedy(prompt(5), 400)
    assert bench.tokens["long"] == greedy(prompt(2000, 1), 5)


def test_a_step_over_a_quiet_prompt_returns_within_its_time() -> None:
    bench = Bench(context=4096)
    bench.submit("long", prompt(3000), 1)
    seen = []
    while bench.scheduler.busy:
        before = bench.clock.now
        bench.step()
        seen.append(bench.clock.now - before)
    assert len(seen) > 5
    assert max(seen) < 0.0125


@pytest.mark.parametrize("during", ["decode", "chunk"])
def test_an_exception_ends_the_requests_it_met_and_no_other(during: str) -> None:
    bench = Bench(max_running=2, chunks=(8,))
    bench.submit("first", prompt(6), 40)
    while len(bench.tokens.get("first", [])) < 3:
        bench.step()
    bench.submit("second", prompt(60, 1), 10)

    def fail() -> None:
        bench.clock.tick()
        wanted = Shape(1, 1) if during == "decode" else Shape(8, 1)
        if bench.programs.starts[-1] == wanted:
            bench.programs.on_call = bench.clock.tick
            raise FloatingPointError("a kernel broke")

    bench.programs.on_call = fail
    bench.run()
    broken, whole = ("first", "second") if during == "decode" else ("second", "first")
    assert bench.ends[broken].finish == "error"
    assert "a kernel broke" in (bench.ends[broken].error or "")
    assert bench.ends[whole].finish == "length"
    assert bench.tokens["second" if during == "decode" else "first"] == (
        greedy(prompt(60, 1), 10) if during == "decode" else greedy(prompt(6), 40)
    )


def test_a_fault_that_a_kernel_counted_is_an_error() -> None:
    bench = Bench()
    bench.submit("a", prompt(6), 40)
    while len(bench.tokens.get("a", [])) < 3:
        bench.step()
    bench.programs.on_call = lambda: bench.programs.decode(1).step.pages.fill_(bench.pools.pages.live)
    bench.step()
    assert bench.ends["a"].finish == "error" and "kv" in (bench.ends["a"].error or "")
    bench.run()


def test_logits_that_are_no_numbers_end_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.submit("a", prompt(6), 40)
    bench.step()
    monkeypatch.setattr("tests.unit.runtime.standin._logits", lambda *_: np.full(VOCAB, np.nan, np.float32))
    while bench.scheduler.busy:
        bench.step()
    assert bench.ends["a"].finish == "error"
    assert "not numbers" in (bench.ends["a"].error or "")


def test_every_pool_is_halved_and_regrown_between_two_steps() -> None:
    bench = Bench(context=512, max_running=4, pages=64)
    for n in range(2):
        bench.submit(str(n), prompt(90 + n, n), 60)
    bench.submit("gone", prompt(200, 7), 60)
    while len(bench.tokens.get("gone", [])) < 2:
        bench.step()
    bench.submit("prompt", prompt(300, 9), 10)
    while bench.scheduler._chunk is None:  # a chunk under way is moved, too
        bench.step()
    bench.scheduler.abort("0")  # leaves holes at the bottom
    held = {r.id: (r.pages, r.slot) for r in bench.scheduler.running}
    bench.scheduler.resize("pages", 16)
    bench.scheduler.resize("states", 3)
    bench.check()
    bench.step()
    bench.scheduler.resize("pages", 64)
    bench.scheduler.resize("states", 4)
    bench.check()
    assert held != {r.id: (r.pages, r.slot) for r in bench.scheduler.running}, "nothing had to move"
    bench.run()
    assert bench.tokens["1"] == greedy(prompt(91, 1), 60)
    assert bench.tokens["gone"] == greedy(prompt(200, 7), 60)
    assert bench.tokens["prompt"] == greedy(prompt(300, 9), 10)


def test_less_memory_than_requests_need_is_told() -> None:
    bench = Bench(context=512, max_running=2)
    bench.submit("a", prompt(200), 100)
    bench.submit("b", prompt(200, 1), 300)
    while len(bench.tokens.get("b", [])) < 2:
        bench.step()
    with pytest.raises(EngineError, match="8 are in use"):
        bench.scheduler.resize("pages", 7)
    bench.scheduler.resize("pages", 8)
    bench.run(20000)
    assert bench.tokens["a"] == greedy(prompt(200), 100)
    assert bench.tokens["b"] == greedy(prompt(200, 1), 300)
    bench.scheduler.resize("pages", 1)
    with pytest.raises(TooLongError, match="64"):
        bench.submit("c", prompt(64))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32))
def test_random_schedules_change_no_token(seed: int) -> None:
    chance = random.Random(seed)
    pages = chance.choice([6, 9, 40])
    bench = Bench(context=320, max_running=chance.choice([1, 3, 5]), pages=pages, chunks=chance.choice([(8,), (8, 96), (64,)]))
    bench.programs.on_call = lambda: setattr(bench.clock, "now", bench.clock.now + chance.choice([1e-5, 1e-3, 0.02]))
    wanted: dict[str, tuple[list[int], int]] = {}
    aborted: set[str] = set()
    for n in range(chance.randint(4, 10)):
        text, count = prompt(chance.choice([1, 5, 60, 64, 130, 200]), n), chance.choice([1, 3, 30, 90])
        wanted[str(n)] = text, count
        bench.submit(str(n), text, count, priority=chance.choice([0, 0, 1]))
        for _ in range(chance.choice([0, 1, 5, 20])):
            bench.step()
        if chance.random() < 0.3:
            id = chance.choice(list(wanted))
            bench.scheduler.abort(id)
            aborted.add(id)
        if chance.random() < 0.4:
            name = chance.choice(["pages", "states"])
            used, _, reserved = bench.pools.counts()[name]
            low = max(used, 5 if name == "pages" else 1)
            bench.scheduler.resize(name, chance.randint(low, reserved))
            bench.check()
    bench.run(50000)
    for id, (text, count) in wanted.items():
        got, end = bench.tokens[id], bench.ends[id]
        assert end.finish == "length" or (id in aborted and end.finish == "abort")
        assert got == greedy(text, count if end.finish == "length" else len(got))
