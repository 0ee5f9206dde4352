"""The code that Inductor makes of a region: pools and banks go through it untouched, and stateful ops keep their order."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import fx

from ftc.ops import native
from ftc.trace.graph import input_name, op_name
from tests.rig import Rig
from tests.unit.compile.conftest import SHAPES, Written

ALLOCATIONS = ("empty_strided_cpu", "empty_strided", "empty", "zeros", "full")


def body(code: str) -> ast.FunctionDef:
    """The function of the wrapper that runs the region; what stands around it is for benchmarks."""
    (found,) = [n for n in ast.walk(ast.parse(code)) if isinstance(n, ast.FunctionDef) and n.name == "call"]
    return found


def calls(code: str) -> Iterator[tuple[str, ast.Call]]:
    """(dotted name, call) of all calls in the wrapper, in the order they stand."""
    found = [n for n in ast.walk(body(code)) if isinstance(n, ast.Call)]
    for node in sorted(found, key=lambda n: (n.lineno, n.col_offset)):
        yield ast.unparse(node.func), node


def inputs(written: Written) -> list[tuple[str, torch.Tensor]]:
    """Region inputs in order: `arg{i}_1` of the wrapper."""
    nodes = [n for n in written.graph.graph.nodes if n.op == "placeholder"]
    return [(input_name(n), n.meta["val"]) for n in nodes]


def large(written: Written) -> dict[str, str]:
    """Wrapper argument -> input name, of pools and bank matrices."""
    return {f"arg{i}_1": name for i, (name, _) in enumerate(inputs(written)) if name.startswith(("pool.", "bank."))}


def stateful(graph: fx.GraphModule) -> list[tuple[str, str]]:
    """(op, pool) of each op that touches a pool, in the graph's order."""
    found = []
    for node in graph.graph.nodes:
        pools = [input_name(a) for a in node.all_input_nodes if input_name(a).startswith("pool.")]
        if node.op == "call_function" and pools:
            found.append((op_name(node).split(".")[1], pools[0]))
    return found


def test_every_region_was_compiled_and_has_pools_somewhere(made: tuple[Rig, list[Written]]) -> None:
    assert len(made[1]) == len(SHAPES) * 4  # embed, two kinds of layer, head
    used = {name for written in made[1] for name in large(written).values()}
    assert used == {"pool.kv", "pool.conv", "pool.delta", "bank.gate", "bank.up", "bank.down"}


def test_nothing_as_large_as_a_pool_is_allocated(made: tuple[Rig, list[Written]]) -> None:
    least = min(t.numel() for w in made[1] for name, t in inputs(w) if name.startswith(("pool.", "bank.")))
    seen = 0
    for written in made[1]:
        for name, call in calls(written.code):
            if name.split(".")[-1] in ALLOCATIONS and call.args and isinstance(call.args[0], ast.Tuple):
                size = math.prod(ast.literal_eval(call.args[0]))
                seen += 1
                assert size < least, f"{ast.unparse(call)} in\n{written.code}"
    assert seen > 10, "the wrapper allocates by other names now: this test sees nothing"


def test_pools_and_banks_are_only_handed_to_ops(made: tuple[Rig, list[Written]]) -> None:
    for written in made[1]:
        names = large(written)
        tree = body(written.code)
        handed = {
            id(n)
            for call in ast.walk(tree)
            if isinstance(call, ast.Call) and "ops.ftc." in ast.unparse(call.func)
            for part in (*call.args, *(k.value for k in call.keywords))
            for n in ast.walk(part)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load):
                assert id(node) in handed, f"{names[node.id]} is read on line {node.lineno} of\n{written.code}"
        missing = [a for a in names if a not in written.code]
        assert not missing, f"the wrapper names its arguments otherwise: {missing}"


def test_stateful_ops_run_in_the_order_of_the_graph(made: tuple[Rig, list[Written]]) -> None:
    seen = 0
    for written in made[1]:
        names = large(written)
        found = []
        for name, call in calls(written.code):
            if "ops.ftc." not in name:
                continue
            pools = [names[a.id] for a in call.args if isinstance(a, ast.Name) and names.get(a.id, "").startswith("pool.")]
            if pools:
                found.append((name.split("ops.ftc.")[1].split(".")[0], pools[0]))
        assert found == stateful(written.graph), written.code
        seen += len(found)
    assert seen == len(SHAPES) * 4  # attention twice, convolution, delta rule


class _Spy:
    """The native library, keeping the arguments of each call."""

    def __init__(self, library: Any) -> None:
        self._library, self.seen = library, []  # type: ignore[var-annotated]

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._library, name)

        def call(*arguments: Any) -> Any:
            self.seen.append((name, arguments))
            return real(*arguments)

        return call


@pytest.mark.skipif(not native.available(), reason="no C++ compiler: the native library is not built")
def test_kernels_are_given_the_very_memory_of_pools_and_banks(compiled: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    captured = compiled.programs.decode(1).captured
    kept, captured[:] = list(captured), [None] * len(captured)  # a replay calls the kernels from its tape, unseen
    spy = _Spy(native._lib)
    monkeypatch.setattr(native, "_lib", spy)
    line = compiled.sequence()
    compiled.chunk(line, [3, 1, 4, 1, 5])
    compiled.decode([line], [9])
    compiled.release(line)
    captured[:] = kept
    pools = {name: (data.data_ptr(), state.data_ptr()) for name, (data, state) in compiled.pools.tensors.items()}
    bank = tuple(t.data_ptr() for t in compiled.opened.bank.values())
    for kernel, pointers, count in (
        ("ftc_attention", pools["kv"], 8), ("ftc_causal_conv", pools["conv"], 4), ("ftc_delta_rule", pools["delta"], 4),
        ("ftc_experts", bank, 4),
    ):  # fmt: skip
        given = [arguments for name, arguments in spy.seen if name == kernel]
        assert len(given) == count, kernel
        assert all(p in arguments for arguments in given for p in pointers), kernel
