"""The Triton kernels without a GPU: interpreted against their references, and compiled for every architecture served."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton")

ROOT = Path(__file__).resolve().parents[3]

KINDS = {"*": "*i32", "~": "*bf16", "^": "*fp32", "!": "*i64", ".": "fp32"}


def signature(text: str) -> dict[str, str]:
    """Arguments in order; the sign behind a name says what it points to, `.` is a float, without a sign it is an int."""
    return {w.rstrip("*~^!."): KINDS.get(w[-1], "i32") for w in text.split()}


TABLE = "state* owner* used* place*"
MAP = signature(f"ids* rows* ordinal* {TABLE} first* plan* costs* slots* kinds* routes top_k experts width")
LAYER = signature(f"ordinal* {TABLE} chosen* experts keep")
READY, RELEASE = signature("owner* used* place* chosen*"), signature("state* used* slots")
INNER = signature("x~ slots* kinds* ids* kind gate~ up~ h^ gate_bias~ up_bias~ top_k hidden width stride limit. alpha.")
OUTER = signature("h^ slots* kinds* ids* kind down~ out^ down_bias~ hidden width stride")
SUBMIT = signature("x~ ids* kinds* ordinal* rows* state* mail_x^ mail_ids* note* routes top_k hidden")
COMBINE = signature("weights^ kinds* hit^ fresh^ mail^ note* state* y~ top_k hidden patience")
FILL = signature("plan* bank! records! words bank_stride slot_stride")
PAGED = "state* ordinal* pages* offsets* lengths*"
WRITE = signature(f"k~ v~ pool~ {PAGED} table size k_stride v_stride page_stride layer_stride row_stride")
ATTEND = signature(f"q~ pool~ {PAGED} out~ table size q_stride page_stride layer_stride row_stride heads kv_heads scale. window"
                   " softcap.")  # fmt: skip
ROUTE = signature("logits^ bias^ ids* weights^ experts top_k epsilon. scale.")

# file, kernel, arguments, constants, warps
KERNELS: list[tuple[str, str, dict[str, str], dict[str, Any], int]] = [
    ("slots", "_map", MAP, {"CPU": True, "P": 16, "G": 64, "W": 64}, 8),
    ("slots", "_map", MAP, {"CPU": True, "P": 512, "G": 256, "W": 256}, 32),
    ("slots", "_layer", LAYER, {"E": 128, "G": 64, "W": 64}, 8),
    ("slots", "_ready", READY, {"E": 128}, 4),
    ("slots", "_release", RELEASE, {"BLOCK": 1024}, 4),
    ("copy", "_fill", FILL, {"BLOCK": 4096, "EVEN": True}, 16),
    ("copy", "_fill", FILL, {"BLOCK": 4096, "EVEN": False}, 16),
    ("routed", "_inner", INNER,
     {"ACT": 0, "GATED": True, "BIASED": False, "LIMITED": False, "ALPHA": False, "BN": 4, "BK": 512, "EVEN": True}, 4),
    ("routed", "_inner", INNER,
     {"ACT": 0, "GATED": True, "BIASED": True, "LIMITED": True, "ALPHA": True, "BN": 4, "BK": 512, "EVEN": False}, 4),
    ("routed", "_outer", OUTER, {"BIASED": False, "BI": 32, "BH": 64, "EVEN": True}, 4),
    ("attention", "_write", WRITE, {"KEYS": 512, "VALUES": 512, "BLOCK": 512}, 4),
    ("attention", "_attend", ATTEND,
     {"D": 128, "DV": 128, "BD": 128, "BV": 128, "G": 16, "T": 64, "SOFTCAP": False, "IEEE": False}, 4),
    ("router", "_route", ROUTE, {"E": 128, "K": 8, "SOFTMAX": True, "BIASED": False, "RENORMALIZE": True}, 4),
    ("routed", "_submit", SUBMIT, {"P": 64, "BLOCK": 1024, "FLAG": True}, 8),
    ("routed", "_combine", COMBINE, {"BLOCK": 1024, "P": 8, "MAIL": True, "FLAG": True, "PARTS": True}, 4),
]  # fmt: skip


def test_interpreted_they_equal_their_references() -> None:
    # in a process of its own: the variable is read when kernels are defined
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.ops.cuda_cases"], cwd=ROOT, env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all kernels equal" in done.stdout


@pytest.mark.parametrize("capability", [80, 86, 89, 90, 120])
@pytest.mark.parametrize(("file", "name", "arguments", "constants", "warps"), KERNELS)
def test_compiled_for(
    file: str, name: str, arguments: dict[str, str], constants: dict[str, Any], warps: int, capability: int
) -> None:
    import importlib

    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(importlib.import_module(f"ftc.ops.cuda.{file}"), name)
    names = list(arguments)
    wide = [n for n, kind in arguments.items() if kind.startswith("*") or "stride" in n]
    aligned = {(names.index(n),): [["tt.divisibility", 16]] for n in wide}
    source = ASTSource(kernel, {**arguments, **dict.fromkeys(constants, "constexpr")}, constants, aligned)
    options = {"num_warps": warps, "enable_fp_fusion": True}
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    ptx = made.asm["ptx"]
    assert made.asm["cubin"]
    if name == "_fill" and constants["EVEN"]:
        assert "ld.global.v2.b64" in ptx, "copies must load 16 bytes at a time"
    if name == "_submit":
        # a question is asked once, by one thread, with the number that this thread has stored
        assert re.search(r"setp.eq.u32 (\w+), t, 0;.*@\1 st\.release\.sys\.global", ptx)
        counter = ptx[ptx.rindex("ld.global.b32") : ptx.rindex("st.global.b32")]
        assert "bar.sync" in counter, "a warp may load the number that the first thread has stored"
    if name == "_combine":
        assert "ld.acquire.sys.global" in ptx


def test_a_wait_is_bounded_by_its_work() -> None:
    from ftc.ops.cuda.routed import patience_ns

    assert 1e9 <= patience_ns(64, 4096) < 1.5e9, "a decode step of 8 rows"
    # 4096 expert rows of 3 * 2048 * 768 weights at 10 Gflop/s
    assert 1e9 + 4096 * 6 * 2048 * 768 / 10 < patience_ns(4096, 2048) < 10e9, "the layer of a chunk"
