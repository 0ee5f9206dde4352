"""The two ends of the wire: frames survive any cut, and each end notices when the other is gone."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections.abc import Iterator

import msgspec
import pytest

from ftc.engine.link import FRAME_LIMIT_BYTES, Frames, Link, frame
from ftc.engine.messages import Abort, Control, Progress, Submit, encode

SENT = [Abort(id="a" * n) for n in (0, 1, 300)] + [Control(verb="stats")]


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, Link]]:
    ours, theirs = socket.socketpair()
    link = Link(theirs.detach())
    yield ours, link
    ours.close()
    link.close()


@pytest.mark.parametrize("seed", range(10))
def test_frames_survive_any_cut(seed: int) -> None:
    data, frames, got = frame(SENT), Frames(), []
    cuts = random.Random(seed)
    while data:
        size = cuts.randint(1, 9)
        got += frames.push(data[:size])
        data = data[size:]
    assert got == [encode(message) for message in SENT]


def test_a_length_out_of_bounds_is_refused() -> None:
    with pytest.raises(ValueError, match=str(FRAME_LIMIT_BYTES)):
        Frames().push(struct.pack("<I", FRAME_LIMIT_BYTES + 1))


def test_polling_returns_at_once_and_waiting_waits(pair: tuple[socket.socket, Link]) -> None:
    ours, link = pair
    begin = time.monotonic()
    assert link.receive(0) == []
    assert time.monotonic() - begin < 0.05
    assert link.receive(0.1) == []
    assert time.monotonic() - begin >= 0.1
    ours.sendall(frame(SENT))
    assert link.receive(0) == SENT


def test_blocking_waits_for_a_whole_message(pair: tuple[socket.socket, Link]) -> None:
    ours, link = pair
    data = frame([SENT[2]])

    def send() -> None:
        for at in (0, 100, 200):
            ours.sendall(data[at : at + 100] if at < 200 else data[at:])
            time.sleep(0.02)

    thread = threading.Thread(target=send)
    thread.start()
    assert link.receive(None) == [SENT[2]]
    thread.join()


def test_messages_before_the_end_are_delivered_then_the_end_is_told(pair: tuple[socket.socket, Link]) -> None:
    ours, link = pair
    ours.sendall(frame(SENT[:1]))
    assert link.receive(1) == SENT[:1]
    ours.close()
    with pytest.raises(EOFError):
        link.receive(1)
    with pytest.raises(EOFError):
        for _ in range(2):
            link.send([Progress(phase="x")])


def test_a_large_prompt_passes(pair: tuple[socket.socket, Link]) -> None:
    ours, link = pair
    from ftc.engine.messages import Sampling

    submit = Submit(id="r", tokens=list(range(1_000_000)), sampling=Sampling(), max_tokens=1)
    thread = threading.Thread(target=ours.sendall, args=(frame([submit]),))
    thread.start()
    assert link.receive(None) == [submit]
    thread.join()


def test_a_message_outside_the_contract_is_an_error(pair: tuple[socket.socket, Link]) -> None:
    ours, link = pair
    body = msgspec.msgpack.encode({"kind": "abort", "id": "r", "extra": 1})
    ours.sendall(struct.pack("<I", len(body)) + body)
    with pytest.raises(msgspec.ValidationError, match="extra"):
        link.receive(1)
