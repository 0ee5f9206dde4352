"""Binds words to this machine: native kernels where the library is there, and what a call outside a trace runs."""

from __future__ import annotations

from typing import Any

import torch

from ftc.ops import attention, experts, linear, native, recurrent, router, sample
from ftc.ops.op import prefer
from ftc.target import Target, cpu_target


def bind(threads: int) -> Target:
    """Adds native kernels (once), sets the thread pool to `threads`, and returns the target passes see."""
    available = register()
    if available:
        native.set_threads(threads)
    torch.set_num_threads(threads)
    prefer(*(("native",) if available else ()))
    return cpu_target(threads, available)


def register() -> bool:
    """Adds native kernels (once), so that graphs can be bound to them; False where the library is not there."""
    if not native.available():
        return False
    if "native" in linear.linear_op.kernels:
        return True
    linear.linear_op.add_kernel("native", native.linear)
    experts.experts_op.add_kernel("native", native.experts)
    router.route_op.add_kernel("native", native.route, lambda *a: a[3] in native.SCORES)
    recurrent.causal_conv.add_kernel("native", native.causal_conv)
    recurrent.delta_rule.add_kernel("native", native.delta_rule)
    sample.sample.add_kernel("native", native.sample)
    attention.attention.add_kernel("native", _attention, lambda *a: a[13] is None)
    return True


def _attention(*arguments: Any) -> torch.Tensor:
    # the native kernel attends to everything in the window; a selection goes to the reference (see `supports`)
    return native.attention(*arguments[:13])
