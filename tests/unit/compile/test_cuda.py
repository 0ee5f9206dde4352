"""A step on a GPU whose CPU branch came too late fails, whatever kind of program ran it; stand-ins for graph and events."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ftc.compile.cuda import CudaExecution, CudaProgram
from ftc.errors import EngineError


def program(late: bool, said: list[str]) -> Any:
    def check() -> None:
        said.append("checked")
        if late:
            raise EngineError("the CPU did not answer question 3 in time", where="CPU branch")

    made = CudaProgram.__new__(CudaProgram)
    made._graph = SimpleNamespace(replay=lambda: said.append("queued"))  # type: ignore[assignment]
    made._logits = SimpleNamespace()  # type: ignore[assignment]
    done = SimpleNamespace(record=lambda: said.append("marked"), synchronize=lambda: said.append("ended"))
    made._done = done  # type: ignore[assignment]
    made._branch = SimpleNamespace(check=check)
    return made


class Chunk:
    logits = None

    def __init__(self, said: list[str]) -> None:
        self.advance = lambda: said.append("queued")


@pytest.mark.parametrize("segments", [1, 3])
@pytest.mark.parametrize("late", [False, True])
def test_a_late_answer_fails_the_step(segments: int, late: bool) -> None:
    said: list[str] = []
    step = CudaExecution(program(late, said), segments, None if segments == 1 else Chunk(said))
    if late:
        with pytest.raises(EngineError, match="question 3"):
            step.run()
    else:
        step.run()
    assert said == ["queued"] * segments + ["marked", "ended", "checked"], "it is checked once, after its end"


def test_without_a_cpu_branch_nothing_waits() -> None:
    said: list[str] = []
    made = program(True, said)
    made._branch = None
    CudaExecution(made, 1, None).run()
    assert said == ["queued", "marked"]
