"""The real engine under load: golden answers whoever else is served, pools that change size, clients that leave at random."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ftc.engine.messages import Abort, Control, Failed, Progress, Refused, Sampling, Stats, Tokens
from tests.unit.engine.peer import GREEDY, Peer

STREAMS = 8


@pytest.fixture(scope="module")
def peer(demo: Path) -> Iterator[Peer]:
    """One engine in float32, whose answers do not depend on what else runs."""
    with Peer([sys.executable, "-m", "ftc.runtime", "--model", str(demo), "--dtype", "float32"]) as made:
        made.hello()
        yield made


@pytest.fixture(scope="module")
def golden(demo: Path) -> list[dict[str, Any]]:
    """Prompts and the reference library's greedy tokens; only those where no two tokens were nearly equal."""
    cases = json.loads((demo / "golden.json").read_text())
    stop = set(cases["eos_token_ids"])
    return [
        case | {"stop": sorted(stop), "answer": [t for t in case["output_ids"] if t not in stop]}
        for case in cases["cases"]
        if case["min_top2_gap"] >= 1e-3
    ]


def test_golden_answers_alone_and_side_by_side(peer: Peer, golden: list[dict[str, Any]]) -> None:
    assert len(golden) >= 8
    alone = golden[0]
    tokens, _ = peer.answer(ask(peer, alone))
    assert tokens == alone["answer"]
    ids = [ask(peer, case) for case in golden]
    got = peer.answers(ids)
    for id, case in zip(ids, golden, strict=True):
        assert spoken(got[id]) == case["answer"], case["name"]


def test_pools_halve_and_regrow_under_running_requests(peer: Peer, golden: list[dict[str, Any]]) -> None:
    _, live, reserved = peer.stats().pools["pages"]
    cases = golden[:6]
    ids = [ask(peer, case) for case in cases]
    sizes = [{"pages": live // 2, "states": 6}, {"pages": reserved, "states": 8}, {"pages": live // 4}, {"pages": live}]
    stats: list[Stats] = []
    got: dict[str, list[Tokens | Refused]] = {id: [] for id in ids}
    until = time.monotonic() + 60
    while sizes or not all(pieces and ended(pieces[-1]) for pieces in got.values()):
        message = peer.receive(until - time.monotonic())
        assert message is not None
        if isinstance(message, Stats):
            stats.append(message)
            continue
        assert isinstance(message, Tokens)
        got[message.id].append(message)
        if sizes and sum(map(len, got.values())) % 5 == 4:
            peer.send(Control(verb="resize", arguments=sizes.pop(0)))
    for id, case in zip(ids, cases, strict=True):
        assert spoken(got[id]) == case["answer"], case["name"]
    assert {live // 2, reserved, live // 4} <= {s.pools["pages"][1] for s in [*stats, peer.stats()]}
    nothing_is_held(peer)


def test_requests_that_must_give_way_are_computed_again(peer: Peer, golden: list[dict[str, Any]]) -> None:
    live = peer.stats().pools["pages"][1]
    # Pages for the longest alone and one more: of eight that want to run, most lose theirs on the way.
    most = max(-(-len(case["prompt_ids"] + case["output_ids"]) // 64) for case in golden)
    peer.send(Control(verb="resize", arguments={"pages": most + 1}))
    try:
        ids = [ask(peer, case) for case in golden]
        got = peer.answers(ids)
    finally:
        peer.send(Control(verb="resize", arguments={"pages": live}))
    for id, case in zip(ids, golden, strict=True):
        assert spoken(got[id]) == case["answer"], case["name"]
    nothing_is_held(peer)


def test_long_prompts_do_not_starve_a_stream(peer: Peer, golden: list[dict[str, Any]]) -> None:
    """Case c089 at this model's size: two prompts of 3,500 tokens arrive while one stream decodes."""
    long = (golden[0]["prompt_ids"] * 300)[:3500]
    victim = peer.submit(golden[1]["prompt_ids"], 400)
    while not isinstance(message := peer.receive(30), Tokens):
        assert message is not None
    arrivals = {peer.submit(long, 4), peer.submit(long[::-1], 4)}
    left, during = {*arrivals, victim}, 0
    while left:
        message = peer.receive(60)
        assert message is not None, "nothing came for a minute"
        if isinstance(message, Tokens):
            during += message.id == victim and bool(left & arrivals)
            if ended(message):
                assert message.finish == "length", message
                left.discard(message.id)
    # 7,000 tokens of prompt are 14 chunks of 512: at least one token of the stream for each of them
    assert during >= 14
    nothing_is_held(peer)


@pytest.mark.parametrize("seconds", [6, pytest.param(60, marks=pytest.mark.full)])
def test_clients_that_leave_at_random(peer: Peer, golden: list[dict[str, Any]], seconds: int) -> None:
    chance = random.Random(seconds)
    leaves: dict[str, int] = {}  # request -> after how many messages its client leaves
    got: dict[str, list[Tokens | Refused]] = {}
    begun = left = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end or leaves:
        while len(leaves) < STREAMS and time.monotonic() < end:
            prompt = chance.choice(golden)["prompt_ids"] * chance.choice([1, 1, 2, 9])
            sampling = Sampling(temperature=chance.choice([0.0, 1.0]), seed=begun, top_p=0.9, presence_penalty=0.1)
            id = peer.submit(prompt[:3000], chance.choice([3, 30, 300]), sampling, priority=chance.choice([0, 1]))
            leaves[id] = chance.choice([0, 1, 5, 40, 1000, 1000])
            got[id] = []
            begun += 1
            if leaves[id] == 0:
                if chance.random() < 0.5:
                    time.sleep(chance.random() * 0.05)
                peer.send(Abort(id=id))
        message = peer.receive(10.0)
        assert message is not None, f"nothing came for 10 s with {len(leaves)} requests in flight"
        if isinstance(message, Stats):
            continue
        assert isinstance(message, Tokens) and message.id in leaves, message
        got[message.id].append(message)
        if ended(message):
            assert message.finish in ("length", "abort"), message
            del leaves[message.id]
        elif len(got[message.id]) == leaves[message.id]:
            peer.send(Abort(id=message.id))
            left += 1
    assert begun > STREAMS and left > 3
    nothing_is_held(peer)
    assert peer.answer(ask(peer, golden[0]))[0] == golden[0]["answer"]


def test_a_checkpoint_that_cannot_be_loaded_is_told_in_words(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["NoSuchForCausalLM"]}')
    with Peer([sys.executable, "-m", "ftc.runtime", "--model", str(tmp_path)]) as peer:
        while isinstance(message := peer.receive(60), Progress):
            pass
        assert isinstance(message, Failed)
        assert "NoSuchForCausalLM" in message.text and "Traceback" not in message.text
        assert peer.process.wait(10) == 1


def test_a_context_beyond_the_model_is_refused_with_both_numbers(demo: Path) -> None:
    with Peer([sys.executable, "-m", "ftc.runtime", "--model", str(demo), "--context", "5000"]) as peer:
        while isinstance(message := peer.receive(60), Progress):
            pass
        assert isinstance(message, Failed)
        assert "--context" in message.text and "5000" in message.text and "4096" in message.text


def test_an_idle_engine_uses_no_processor(peer: Peer) -> None:
    peer.answer(peer.submit([11, 12], 2))
    before = loop_s(peer.process)
    time.sleep(0.5)
    assert loop_s(peer.process) - before <= 0.01


def loop_s(process: subprocess.Popen[bytes]) -> float:
    """Seconds of processor time that the engine's loop has used; other threads may be bringing in compiled programs."""
    fields = Path(f"/proc/{process.pid}/task/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_the_engine_dies_with_its_server_even_when_it_is_stopped(demo: Path) -> None:
    with Peer([sys.executable, "-m", "ftc.runtime", "--model", str(demo)]) as peer:
        peer.hello()
        peer.first_tokens(peer.submit([11, 12, 13], 4000))
        peer.process.send_signal(signal.SIGSTOP)
        peer.socket.close()
        peer.process.send_signal(signal.SIGCONT)
        assert peer.process.wait(5) == 0


def ask(peer: Peer, case: dict[str, Any]) -> str:
    return peer.submit(case["prompt_ids"], len(case["output_ids"]), GREEDY, stop_ids=case["stop"])


def spoken(pieces: list[Tokens | Refused]) -> list[int]:
    return [token for piece in pieces if isinstance(piece, Tokens) for token in piece.tokens]


def ended(piece: Tokens | Refused) -> bool:
    return isinstance(piece, Refused) or piece.finish is not None


def nothing_is_held(peer: Peer) -> None:
    stats = peer.stats()
    assert (stats.running, stats.queued) == (0, 0)
    assert {name: used for name, (used, _, _) in stats.pools.items()} == {"pages": 0, "states": 0}
