"""Brings compiled regions into a running engine: a thread that loads what is stored and watches the child that makes the rest.

Importing Inductor takes seconds, so it happens in this thread, never on the way to the first token.
"""

from __future__ import annotations

import contextlib
import queue
import subprocess
import sys
import threading
from typing import Literal

import msgspec

from ftc import settings
from ftc.compile.job import Job, Plan
from ftc.compile.program import Region
from ftc.compile.worker import Told
from ftc.errors import ArtefactError
from ftc.log import logger
from ftc.trace.inputs import Shape

_log = logger("compile")

State = Literal["eager", "compiling", "compiled"]


class Loader:
    """`ready` yields (shape, region name, callable) as they come. Counts: `loaded` from artefacts, `compiled` by the child."""

    def __init__(self, job: Job) -> None:
        self._plan = Plan(job)
        self.ready: queue.SimpleQueue[tuple[Shape, str, Region]] = queue.SimpleQueue()
        self.loaded = self.compiled = 0
        self.state: State = "compiling"
        self._child: subprocess.Popen[bytes] | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="ftc-loader", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        """Waits until the last region is there or the reason why not is logged."""
        self._thread.join()

    def stop(self) -> None:
        """Ends the child, if one runs; what it had not finished is made next time."""
        self._stopping = True
        if self._child is not None and self._child.poll() is None:
            self._child.terminate()

    def _run(self) -> None:
        try:
            missing = self._load(dict.fromkeys(self._plan.job.shapes))
            if missing and not self._stopping:
                self._compile(missing)
            self.state = "eager" if self._stopping else "compiled"
        except Exception as e:
            # the uncompiled regions serve on; the reason must not be lost
            _log.error("no compiled programs: %s", e)
            self.state = "eager"
        _log.info("programs: %d regions loaded, %d of them compiled now", self.loaded, self.compiled)

    def _load(self, wanted: dict[Shape, set[str] | None]) -> dict[Shape, set[str] | None]:
        """Loads what is stored of `wanted` (None: every region of the shape); returns what is missing."""
        # where the child compiled: with another folder, loading would run the C++ compiler again for every region
        settings.export(TORCHINDUCTOR_CACHE_DIR=str(self._plan.store.inductor_dir))
        from ftc.compile.inductor import load_compiled

        missing: dict[Shape, set[str] | None] = {}
        for shape, regions in wanted.items():
            graphs = self._plan.stored_graphs(shape)
            if graphs is None:
                if regions is None:
                    _log.info("%s is not stored: %s", shape, self._plan.store.explain("lowered", self._plan.lowered(shape)))
                missing[shape] = None
                continue
            left = set()
            for region in graphs if regions is None else regions:
                factors = self._plan.kernels(shape, region, graphs[region])
                path = self._plan.store.find("kernels", factors)
                if path is None:
                    left.add(region)
                    if regions is None:
                        _log.info("%s %s: %s", shape, region, self._plan.store.explain("kernels", factors))
                    continue
                try:
                    self.ready.put((shape, region, load_compiled(path)))
                    self.loaded += 1
                except Exception as e:
                    _log.warning("%s %s cannot be loaded and will be made again: %s", shape, region, e)
                    self._plan.store.discard("kernels", factors)
                    left.add(region)
            if left:
                missing[shape] = left
        return missing

    def _compile(self, missing: dict[Shape, set[str] | None]) -> None:
        environment = settings.environment(OMP_NUM_THREADS="1")
        command = [sys.executable, "-m", "ftc.compile.worker"]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        self._child = child
        assert child.stdin is not None and child.stdout is not None
        # a pipe is broken where the child has ended already: its exit status is reported below
        with contextlib.suppress(BrokenPipeError), child.stdin as job:
            job.write(msgspec.json.encode(self._plan.job) + b"\n")
        decoder = msgspec.json.Decoder(Told)
        with child.stdout as lines:
            for line in lines:
                if decoder.decode(line).path is None:
                    continue
                self.compiled += 1
                missing = self._load(missing)
        if child.wait() != 0 and not self._stopping:
            raise ArtefactError("the compiling child failed", value=child.returncode, hint="its own message is above.")
        # regions that only had to be traced anew: their compiled form was stored already
        if not self._stopping and (missing := self._load(missing)):
            raise ArtefactError("the compiling child left regions out", value=", ".join(map(str, missing)))
