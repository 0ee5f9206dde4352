"""The CPU's side of the mailbox: a native thread that answers, and what it tells of its speed."""

from __future__ import annotations

import importlib

import torch
from torch import Tensor

from ftc.errors import EngineError, TargetError
from ftc.ops import native
from ftc.ops.routed import ANSWERED, ASKED, LATE, ORDINAL, ROUTES, ROWS


class Worker:
    """Answers questions in a mailbox from the bank, with the native kernels' threads. `stop` before its memory goes."""

    def __init__(
        self, mail: dict[str, Tensor], bank: dict[str, Tensor], experts: int, activation: str, limit: float, alpha: float
    ) -> None:
        """`mail`: "x", "ids", "rows", "note" as ftc.ops.routed has them; `bank`: matrix name -> view. Both outlive this.

        Returns when the thread is warm: it has run the largest question on the first layer, as its first call takes longest.
        """
        if not native.available():
            raise TargetError("the CPU branch needs the native kernels", hint="install a C++ compiler and install ftc again")
        self._kept = (mail, bank)
        gate, up, down = bank.get("gate"), bank["up"], bank["down"]
        self._times = torch.empty((4096, 2), dtype=torch.int64)
        self._handle = native._lib.ftc_worker_new(
            mail["x"].data_ptr(), mail["ids"].data_ptr(), mail["rows"].data_ptr(), mail["note"].data_ptr(),
            0 if gate is None else gate.data_ptr(), 0 if gate is None else gate.stride(0), up.data_ptr(), up.stride(0),
            down.data_ptr(), down.stride(0), native._code(up), experts, native.ACTIVATIONS[activation], limit, alpha,
            up.shape[2], up.shape[1], mail["ids"].shape[0],
        )  # fmt: skip

    def begin(self) -> None:
        """A step is in flight: the thread polls without sleeping."""
        native._lib.ftc_worker_active(self._handle, 1)

    def end(self) -> None:
        native._lib.ftc_worker_active(self._handle, 0)

    def check(self) -> None:
        """After a step that the GPU has ended. Raises EngineError if a question of it got no answer in time: its rows are NaN.

        It raises again until ExpertCache.take_late clears it.
        """
        note = self._kept[0]["note"].tolist()
        if note[LATE]:
            raise EngineError(
                f"the CPU did not answer question {note[LATE]} in time (last asked {note[ASKED]}, last answered"
                f" {note[ANSWERED]}: layer {note[ORDINAL]}, {note[ROWS]} rows, {note[ROUTES]} expert rows)",
                where="CPU branch", hint="leave the server's CPUs free of other work, or give it more expert slots",
            )  # fmt: skip

    def times(self) -> list[tuple[int, float]]:
        """(routes, seconds) of the answers since the last call."""
        count = native._lib.ftc_worker_times(self._handle, _pointer(self._times), self._times.shape[0])
        return [(n, ns * 1e-9) for n, ns in self._times[: min(count, self._times.shape[0])].tolist()]

    def stop(self) -> None:
        if self._handle:
            native._lib.ftc_worker_free(self._handle)
            self._handle = 0


def _pointer(t: Tensor) -> object:
    return importlib.import_module("ftc._native").ffi.cast("int64_t *", t.data_ptr())
