"""Records regions as FX graphs over fake tensors: no weights, no memory, only shapes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from ftc.ops.op import tracing
from ftc.spec.model import Model
from ftc.spec.parameters import block_parameters, expert_record, model_parameters
from ftc.trace.graph import named_copy
from ftc.trace.inputs import Shape, Step
from ftc.trace.interpret import constants, region_function
from ftc.trace.regions import Call, Kind, lay_out

# Pools, banks and page tables reach ops untouched, so graphs and compiled code do not depend on their sizes: every trace
# uses this stand-in for pages, slots, layers and record strides, and one artefact serves any memory plan and any depth.
STAND_IN = 16


@dataclass(frozen=True)
class Spec:
    """Shape, strides and type of one region input."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def empty(self) -> Tensor:
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype)

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


@dataclass
class Traced:
    """Regions by name as graphs, and the schedule that calls them."""

    shape: Shape
    kinds: dict[str, Kind]
    regions: dict[str, fx.GraphModule]
    schedule: list[Call]


def trace(model: Model, shape: Shape, dtype: torch.dtype) -> Traced:
    """All regions of `model` for one shape, and the schedule."""
    layout = lay_out(model)
    regions = {
        name: trace_region(model, kind, input_specs(model, kind, shape, dtype))
        for name, kind in layout.kinds.items()
    }
    return Traced(shape, dict(layout.kinds), regions, list(layout.schedule))


def trace_region(model: Model, kind: Kind, specs: list[Spec]) -> fx.GraphModule:
    """One region as an FX graph of aten and ftc words; placeholders carry their input's name in `meta["input"]`."""
    # device constants are made by the trace itself, so the mode must also cover tensors the function creates
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
        arguments = [s.empty() for s in specs]
    with mode, tracing(), torch.no_grad():
        graph = make_fx(region_function(model, kind), tracing_mode="fake", pre_dispatch=True)(*arguments)
    graph.graph.eliminate_dead_code()
    # a fresh module: make_fx's own class does not pickle once compiled
    return named_copy(graph.graph, kind.inputs)


def input_specs(model: Model, kind: Kind, shape: Shape, dtype: torch.dtype) -> list[Spec]:
    """Shape and type of each input of a region, in order; sizes of pools and tables are stand-ins."""
    table = _outer(model, dtype) if kind.block is None else _inner(model, kind, dtype)
    table |= {f"step.{name}": _dense(t.shape, t.dtype) for name, t in Step(shape, STAND_IN).tensors().items()}
    for c in model.carry():
        table[f"carry.{c.name}"] = _dense((shape.rows, *c.shape), dtype if c.dtype == "run" else getattr(torch, c.dtype))
    return [table[name] for name in kind.inputs]


def _outer(model: Model, dtype: torch.dtype) -> dict[str, Spec]:
    return {f"w.{p.path}": _dense(p.shape, _precision(p.precision, dtype)) for p in model_parameters(model)}


def _inner(model: Model, kind: Kind, dtype: torch.dtype) -> dict[str, Spec]:
    assert kind.block is not None
    table = {f"w.{p.path}": _dense(p.shape, _precision(p.precision, dtype)) for p in block_parameters(model, kind.block)}
    table |= {f"const.{k}": _dense(t.shape, t.dtype) for k, t in constants(kind.block).items()}
    for name, (group, _) in model.cache_groups().items():
        shape = (STAND_IN,) * (3 if group.per == "token" else 2)
        table[f"pool.{name}"] = _dense((*shape, *group.shape), _precision(group.dtype, dtype))
        table[f"state.{name}"] = _dense((4,), torch.int32)
    table |= {n: _dense((), torch.int32) for n in kind.inputs if n.startswith("ord.")}
    moes = model.moe_branches
    if moes:
        record = expert_record(model, moes[0][1])
        bank = (STAND_IN * record.count, record.width, record.hidden)
        view = Spec(bank, (record.elements, record.hidden, 1), dtype)
        table |= {f"bank.{m}": view for m in record.matrices}
    return table


def _precision(precision: str, dtype: torch.dtype) -> torch.dtype:
    return dtype if precision == "run" else getattr(torch, precision)


def _dense(shape: tuple[int, ...], dtype: torch.dtype) -> Spec:
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return Spec(tuple(shape), tuple(reversed(stride)), dtype)
