"""A block under way: its inputs by name, the carry as branches change it, and what every branch needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ftc.ops.linear import linear
from ftc.ops.norm import norm
from ftc.spec.model import Block, Model
from ftc.spec.norm import Norm

Inputs = dict[str, Tensor]
Watch = Callable[[str, Tensor], None]

_watch: Watch | None = None


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """While entered, `watch` is told of what norms, linears and branches of an uncompiled block read and give."""
    global _watch
    before, _watch = _watch, watch
    try:
        yield
    finally:
        _watch = before


def seen(path: str, value: Tensor) -> Tensor:
    """`value`, after telling whoever watches."""
    if _watch is not None:
        _watch(path, value)
    return value


class Layer:
    """One block over its inputs. Branch code reads weights as `BRANCH.PATH` and may change `carry`."""

    def __init__(self, model: Model, block: Block, x: Inputs) -> None:
        self.model, self.block, self.x = model, block, x
        self.rows = x["step.rows"]
        self.carry = {c.name: x[f"carry.{c.name}"] for c in model.carry()}
        self.bank = {name.removeprefix("bank."): t for name, t in x.items() if name.startswith("bank.")}

    def weight(self, path: str) -> Tensor:
        return self.x[f"w.{path}"]

    def optional(self, path: str) -> Tensor | None:
        return self.x.get(f"w.{path}")

    def norm(self, path: str, spec: Norm | None, x: Tensor) -> Tensor:
        """`x` through the norm whose weight is at `path`; as it is where there is none."""
        return x if spec is None else seen(path, norm(x, spec, self.optional(path), self.optional(f"{path}_bias")))

    def linear(self, x: Tensor, path: str, dtype: torch.dtype | None = None) -> Tensor:
        """`x` through the linear at `path`, with its bias where it has one."""
        seen(f"input of {path}", x)
        return seen(path, linear(x, self.weight(path), self.rows, self.optional(f"{path}_bias"), dtype))

    def pool(self, branch: str, group: str) -> tuple[Tensor, Tensor, Tensor]:
        """Pool, its state and this branch's ordinal in it: what every stateful op takes."""
        return self.x[f"pool.{group}"], self.x[f"state.{group}"], self.x[f"ord.{branch}.{group}"]

    def step(self, *names: str) -> tuple[Tensor, ...]:
        return tuple(self.x[f"step.{n}"] for n in names)
