"""What an op is: a schema, a fake, a torch reference, and kernels that do the same faster on a target.

`ftc::name` is the abstract word with its reference; a kernel is the overload `ftc::name.variant` with the same schema.
Graphs are traced in abstract words and `choose_kernels` binds them. Called outside a trace, an op runs its best kernel at once.

Stateful ops take `Tensor(a!) state`, the small int32 tensor of the pool they touch: the only declared mutation, and what
keeps them in order. Pools themselves are passed undeclared, or functionalisation would copy them whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Kernel = Callable[..., Any]

_LIBRARY = torch.library.Library("ftc", "DEF")
OPS: dict[str, Op] = {}


class Op:
    """One word. `signature` is everything after the name: `(Tensor x, ...) -> Tensor`."""

    def __init__(self, name: str, signature: str, reference: Kernel, fake: Kernel) -> None:
        self.name, self.signature = name, signature
        self.kernels: dict[str, Kernel] = {"reference": reference}
        self.fake = fake
        self._limits: dict[str, Callable[..., bool]] = {}
        self._define(name, reference)
        self.word = getattr(torch.ops.ftc, name).default
        self._eager: Kernel = reference
        OPS[name] = self

    def add_kernel(self, variant: str, kernel: Kernel, supports: Callable[..., bool] | None = None) -> None:
        """Registers `ftc::name.variant`. `supports(*arguments)` says which calls it can take; None: all."""
        self.kernels[variant] = kernel
        if supports is not None:
            self._limits[variant] = supports
        self._define(f"{self.name}.{variant}", kernel)

    def supports(self, variant: str, arguments: tuple[Any, ...]) -> bool:
        """Whether a kernel takes these arguments (tensors, or graph nodes in their place)."""
        limit = self._limits.get(variant)
        return limit is None or limit(*arguments)

    def bound(self, variant: str) -> Any:
        """The torch overload of a kernel; the word itself for "reference"."""
        return self.word if variant == "reference" else getattr(getattr(torch.ops.ftc, self.name), variant)

    def prefer(self, variants: tuple[str, ...]) -> None:
        """What a call outside a trace runs: the first of `variants` that exists and takes the call, else the reference."""
        chosen = next((v for v in variants if v in self.kernels), "reference")
        kernel, limit, reference = self.kernels[chosen], self._limits.get(chosen), self.kernels["reference"]
        self._eager = kernel if limit is None else lambda *a: kernel(*a) if limit(*a) else reference(*a)

    def __call__(self, *args: Any) -> Any:
        return self.word(*args) if _tracing else self._eager(*args)

    def _define(self, name: str, kernel: Kernel) -> None:
        _LIBRARY.define(name + self.signature)
        _LIBRARY.impl(name, kernel, "CompositeExplicitAutograd")
        torch.library.register_fake(f"ftc::{name}", self.fake, lib=_LIBRARY)


_tracing = False


class tracing:
    """While entered, ops record themselves as words instead of running."""

    def __enter__(self) -> None:
        global _tracing
        self._before, _tracing = _tracing, True

    def __exit__(self, *_: object) -> None:
        global _tracing
        _tracing = self._before


def prefer(*variants: str) -> None:
    """Sets what every op runs outside a trace, e.g. prefer("native") or prefer("reference")."""
    for op in OPS.values():
        op.prefer(variants)
