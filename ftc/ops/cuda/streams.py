"""The device's streams and events by the names that graphs use, inside a capture as outside."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from ftc.ops.copy import COMPUTE, HOST

_streams: dict[str, torch.cuda.Stream] = {}
_events: dict[str, torch.cuda.Event] = {}


def stream(name: str) -> torch.cuda.Stream:
    """The stream of that name; the main one is whichever is current."""
    if name == COMPUTE:
        return torch.cuda.current_stream()
    if name not in _streams:
        _streams[name] = torch.cuda.Stream()
    return _streams[name]


def on(name: str) -> AbstractContextManager[object]:
    return nullcontext() if name == COMPUTE or not torch.cuda.is_available() else torch.cuda.stream(stream(name))


def event_record(state: Tensor, event: str, stream_name: str) -> None:
    # the CPU branch signals through the mailbox: nothing of it is on a stream
    if stream_name != HOST and event not in ("submitted", "computed"):
        _events[event] = torch.cuda.Event()
        _events[event].record(stream(stream_name))


def event_wait(state: Tensor, event: str, stream_name: str) -> None:
    if stream_name != HOST and event in _events:
        stream(stream_name).wait_event(_events[event])
