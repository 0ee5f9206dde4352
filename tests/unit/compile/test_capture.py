"""A captured decode program replays what its regions do, bit for bit, and refuses what a tape cannot hold."""

from __future__ import annotations

import linecache
from types import SimpleNamespace

import pytest
import torch

from ftc.compile.inductor import Compiled, recordable
from ftc.errors import TargetError
from ftc.ops import native
from tests.rig import Rig


def _decode(rig: Rig, count: int, *, replay: bool) -> torch.Tensor:
    """Logits of six decode steps of `count` sequences, each after a prompt of its own."""
    lines = [rig.sequence() for _ in range(count)]
    for n, line in enumerate(lines):
        rig.chunk(line, [5 + n, 9, 3 * n + 1])
    program = rig.programs.decode(count)
    kept = list(program.captured)
    assert all(kept), "the program was not captured"
    if not replay:
        program.captured[:] = [None] * len(kept)
    rows = [rig.decode(lines, [7 * step + n for n in range(count)]) for step in range(6)]
    program.captured[:] = kept
    for line in lines:
        rig.release(line)
    return torch.stack(rows)


@pytest.mark.parametrize("count", [1, 2])
def test_replay_equals_the_regions(compiled: Rig, count: int) -> None:
    assert torch.equal(_decode(compiled, count, replay=True), _decode(compiled, count, replay=False))


def test_capturing_changes_no_pool(compiled: Rig) -> None:
    """The recording run has no live rows: nothing may be written and no fault counted."""
    from ftc.compile.capture import capture_program

    rig = compiled
    line = rig.sequence()
    rig.chunk(line, [1, 2, 3])
    before = {name: (pool.clone(), state.clone()) for name, (pool, state) in rig.pools.tensors.items()}
    program = rig.programs.decode(2)
    capture_program(program, program.regions)
    for name, (pool, state) in rig.pools.tensors.items():
        assert torch.equal(pool, before[name][0]) and torch.equal(state, before[name][1]), name
    rig.release(line)


def _region(*lines: str) -> Compiled:
    body = "\n".join(f"    {line}" for line in lines)
    names: dict[str, object] = {}
    source = f"def call(args):\n{body}\n"


    linecache.cache["<generated>"] = (len(source), None, source.splitlines(True), "<generated>")
    exec(compile(source, "<generated>", "exec"), names)
    return Compiled(None, SimpleNamespace(**names))  # type: ignore[arg-type]


def test_only_what_a_tape_holds_is_recordable() -> None:
    plain = ("arg0_1, = args", "args.clear()", "buf0 = empty_strided_cpu((1, 4), (4, 1), torch.float32)")
    assert recordable(_region(*plain, "cpp_fused_add_0(arg0_1, buf0)", "del arg0_1", "return (buf0, )"))
    assert recordable(_region(*plain, "buf1 = torch.ops.ftc.linear.native(buf0, arg0_1)", "buf2 = buf1[0]", "return (buf2, )"))
    for stranger in (
        "buf1 = torch.ops.aten.sort.default(buf0)",
        "buf1 = torch.ops.ftc.linear.default(buf0, arg0_1)",
        "extern_kernels.mm(buf0, arg0_1, out=buf0)",
        "buf0.copy_(arg0_1)",
    ):
        assert not recordable(_region(*plain, stranger, "return (buf0, )")), stranger
    assert not recordable(Compiled(None, None))


def test_a_tape_refuses_unknown_ops_and_wrong_arity() -> None:
    tape = native.Tape()
    with tape.recording():
        x, w = torch.ones(1, 4), torch.full((2, 4), 0.5)
        y = native.linear(x, w)
    x.mul_(3)
    tape.run()
    assert tape.calls == 1 and y.tolist() == [[6.0, 6.0]]
    with pytest.raises(TargetError, match="arguments"):
        tape.add_kernel(1, [0] * 100)
