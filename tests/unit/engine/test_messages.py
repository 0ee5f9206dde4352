"""The wire of every message kind, spelled out: what changes here breaks engines and servers of other versions."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ftc.engine import messages as m

SAMPLING = {
    "temperature": 0.5,
    "top_k": 20,
    "top_p": 0.9,
    "min_p": 0.1,
    "presence_penalty": 0.2,
    "frequency_penalty": 0.3,
    "repetition_penalty": 1.1,
    "seed": 2**63 - 1,
    "logit_bias": {7: -100.0},
}
SUBMIT = {
    "kind": "submit",
    "id": "r",
    "tokens": [1, 2],
    "sampling": SAMPLING,
    "max_tokens": 9,
    "min_tokens": 1,
    "stop_ids": [3],
    "forced": [4],
    "logprobs": 2,
    "grammar": {"syntax": "regex", "text": "a*"},
    "anchors": [{"position": 1, "label": "system"}],
    "anchor_ids": [5],
    "salt": "s",
    "priority": 1,
    "deadline": 2.5,
}
TO_ENGINE: list[dict[str, Any]] = [
    SUBMIT,
    {"kind": "abort", "id": "r"},
    {"kind": "control", "verb": "resize", "arguments": {"pages": 8}},
]
FROM_ENGINE: list[dict[str, Any]] = [
    {
        "kind": "hello",
        "version": 1,
        "model": "a",
        "vocab_size": 8,
        "vocab_hash": "ff",
        "context_tokens": 64,
        "max_running": 2,
        "max_queued": 3,
        "pid": 4,
        "dtype": "float32",
        "target": "cpu",
    },
    {"kind": "progress", "phase": "weights", "done": 1, "total": 2},
    {"kind": "failed", "text": "x: broken"},
    {
        "kind": "tokens",
        "id": "r",
        "tokens": [1],
        "logprobs": [{"token": 1, "logprob": -0.5, "top": [[1, -0.5], [2, -1.5]]}],
        "cached": 1,
        "finish": "stop",
        "stop_id": 2,
        "error": None,
    },
    {"kind": "refused", "id": "r", "code": "too_long", "message": "m", "where": "tokens"},
    {
        "kind": "stats",
        "running": 1,
        "queued": 2,
        "steps": 3,
        "prefill_tokens": 4,
        "decode_tokens": 5,
        "pools": {"pages": [1, 2, 3]},
        "programs": "eager",
        "compiled": 6,
        "loaded": 7,
    },
]


@pytest.mark.parametrize("wire", TO_ENGINE, ids=lambda wire: wire["kind"])
def test_messages_to_the_engine(wire: dict[str, Any]) -> None:
    message = m.decode_to_engine(msgspec.msgpack.encode(wire))
    assert msgspec.msgpack.decode(m.encode(message), strict=False) == wire


@pytest.mark.parametrize("wire", FROM_ENGINE, ids=lambda wire: wire["kind"])
def test_messages_from_the_engine(wire: dict[str, Any]) -> None:
    message = m.decode_from_engine(msgspec.msgpack.encode(wire))
    assert msgspec.msgpack.decode(m.encode(message), strict=False) == wire


def test_every_kind_is_spelled_out_and_the_version_is_this() -> None:
    assert {wire["kind"] for wire in TO_ENGINE} == {kind.__name__.lower() for kind in m.ToEngine.__args__}
    assert {wire["kind"] for wire in FROM_ENGINE} == {kind.__name__.lower() for kind in m.FromEngine.__args__}
    assert m.VERSION == 1


@pytest.mark.parametrize(
    "wire",
    [
        {"kind": "abort"},
        {"kind": "abort", "id": 1},
        {"kind": "abort", "id": "r", "more": 1},
        {"kind": "hello"},
        {**SUBMIT, "tokens": ["a"]},
        {**SUBMIT, "sampling": {"other": 1}},
        {"kind": "control", "verb": "explode"},
    ],
)
def test_what_is_outside_the_contract_is_an_error(wire: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        m.decode_to_engine(msgspec.msgpack.encode(wire))
