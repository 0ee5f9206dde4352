"""The engine process: `python -m ftc.runtime --fd N --model FOLDER`, started and supervised by the server."""

from __future__ import annotations

import argparse
import faulthandler
import sys
import time
from pathlib import Path

from ftc import log, settings
from ftc.compile.artefact import Store
from ftc.engine.link import Link, attach
from ftc.engine.messages import Failed, Progress
from ftc.errors import FtcError

# Least time between two progress messages of one phase.
PROGRESS_S = 0.1


class _Teller:
    """Passes progress on, but not more often than anyone can see."""

    def __init__(self, link: Link) -> None:
        self._link, self._phase, self._at = link, "", 0.0

    def __call__(self, phase: str, done: int, total: int) -> None:
        now = time.monotonic()
        if phase != self._phase or done == total or now - self._at >= PROGRESS_S:
            self._phase, self._at = phase, now
            self._link.send([Progress(phase=phase, done=done, total=total)])


def main(arguments: list[str]) -> int:
    """Exit code 0 after 'stop' and when the server went away, 1 when the engine cannot start (Failed has told why)."""
    parser = argparse.ArgumentParser(prog="ftc.runtime")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--spec", type=Path)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--context", type=int)
    parser.add_argument("--max-running", type=int, default=8)
    parser.add_argument("--max-queued", type=int, default=256)
    parser.add_argument("--cache", type=Path)
    options = vars(parser.parse_args(arguments))
    faulthandler.enable()
    log.configure()
    link = attach(options.pop("fd"))
    teller = _Teller(link)
    try:
        teller("start", 0, 0)
        # Read when the libraries are imported: the one thread pool of all kernels, and where compiled regions lie.
        store = Store(options["cache"] or settings.cache_dir())
        settings.export(**settings.thread_pool(), TORCHINDUCTOR_CACHE_DIR=str(store.inductor_dir))
        from ftc.runtime.start import Options, start

        engine, programs = start(link, Options(**options), teller)
    except FtcError as error:
        link.send([Failed(text=str(error))])
        return 1
    except EOFError:
        return 0
    except Exception as error:
        log.logger("engine").exception("the engine cannot start")
        link.send([Failed(text=f"the engine cannot start: {type(error).__name__}: {error}")])
        return 1
    try:
        engine.serve()
    except EOFError:
        log.logger("engine").info("The server is gone.")
    finally:
        programs.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
