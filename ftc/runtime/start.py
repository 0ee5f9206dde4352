"""From a checkpoint folder to an engine that can say Hello: weights, caches in what memory is left, programs, one trial run."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch

from ftc import log
from ftc.compile.programs import Programs
from ftc.engine.link import Link
from ftc.engine.messages import VERSION, Hello
from ftc.runtime.engine import Engine, warm_up
from ftc.runtime.open import open_model
from ftc.runtime.plan import cache_budget, plan
from ftc.runtime.pools import Pools
from ftc.runtime.scheduler import Scheduler
from ftc.text.tokenizer import Tokenizer

ProgressSink = Callable[[str, int, int], None]

_log = log.logger("engine")


class Options(msgspec.Struct, frozen=True):
    """What an engine is started with. `context` None is as long as the model and memory allow; `cache` keeps artefacts."""

    model: Path
    spec: Path | None = None
    dtype: str = "bfloat16"
    context: int | None = None
    max_running: int = 8
    max_queued: int = 256
    cache: Path | None = None


def start(link: Link, options: Options, progress: ProgressSink) -> tuple[Engine, Programs]:
    """Loads everything. Raises FtcError naming the file, flag or number that makes it impossible."""
    stages = log.Stages("start", _log)
    dtype = getattr(torch, options.dtype)
    with stages("read weights"):
        opened = open_model(options.model, options.spec, dtype, options.cache, progress)
        model, target = opened.model, opened.target
    with stages("reserve caches"):
        progress("warm up", 0, 0)
        room = plan(model, dtype, cache_budget(), options.max_running, options.context)
        if room.context_tokens < (options.context or model.context_tokens):
            _log.warning("The context is %d tokens: memory allows no more.", room.context_tokens)
        pools = Pools(model.cache_groups(), dtype, room)
    with stages("warm up"):
        programs = opened.programs(pools.tensors, room.pages_per_sequence)
        warm_up(Scheduler(programs, pools, room, model.vocab, 0))
    hello = Hello(
        version=VERSION,
        model=model.name,
        vocab_size=model.vocab,
        vocab_hash=Tokenizer.load(options.model).hash,
        context_tokens=room.context_tokens,
        max_running=room.max_running,
        max_queued=options.max_queued,
        pid=os.getpid(),
        dtype=options.dtype,
        target=f"{target.kind} {target.isa}, {target.threads} threads",
    )
    # What is loaded stays: the collector need not look at it again and again.
    gc.collect()
    gc.freeze()
    _log.info("%s", stages.summary())
    return Engine(link, Scheduler(programs, pools, room, model.vocab, options.max_queued), hello), programs
