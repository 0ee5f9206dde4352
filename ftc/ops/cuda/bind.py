"""Adds the kernels of a GPU to the words, and says which GPU it is."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ftc.errors import TargetError
from ftc.ops import attention as attention_words
from ftc.ops import copy as copy_words
from ftc.ops import linear as linear_words
from ftc.ops import routed as routed_words
from ftc.ops import router as router_words
from ftc.ops import slots as slot_words
from ftc.ops.cuda import attention, copy, routed, router, slots, streams
from ftc.target import Target, cuda_target

_OLDEST = (8, 0)


def bind(threads: int) -> Target:
    """Adds the kernels (once) and returns the target that passes see. Raises TargetError without a GPU of sm_80 or later."""
    if not torch.cuda.is_available():
        raise TargetError("this machine has no GPU that torch can use", hint="check the driver, or serve on the CPU")
    capability = torch.cuda.get_device_capability()
    if capability < _OLDEST:
        raise TargetError("the GPU is too old: sm_80 is the first that is served", value=f"sm_{capability[0]}{capability[1]}")
    register()
    return cuda_target(f"sm_{capability[0]}{capability[1]}", threads)


def register() -> None:
    """Adds the kernels (once); passes may bind graphs to them on any machine."""
    if "triton" in slot_words.slot_map.kernels:
        return
    for word, kernel in (
        (slot_words.slot_map, slots.slot_map),
        (slot_words.layer_map, slots.layer_map),
        (slot_words.layer_ready, slots.layer_ready),
        (slot_words.layer_release, slots.layer_release),
        (copy_words.slot_fill, copy.slot_fill),
        (copy_words.event_record, streams.event_record),
        (copy_words.event_wait, streams.event_wait),
        (routed_words.slot_experts, routed.slot_experts),
        (routed_words.cpu_submit, routed.cpu_submit),
        (routed_words.cpu_run, routed.cpu_run),
        (routed_words.combine, routed.combine),
    ):
        word.add_kernel("triton", kernel)
    attention_words.attention.add_kernel("triton", attention.attention, attention.supports)
    router_words.route_op.add_kernel("triton", router.route, router.supports)
    linear_words.linear_op.add_kernel("library", _linear)


def _linear(x: Tensor, w: Tensor, bias: Tensor | None, dtype: torch.dtype, rows: Tensor) -> Tensor:
    if x.dtype == w.dtype == dtype:
        return F.linear(x, w, bias)
    if x.dtype != w.dtype:
        w = w.to(torch.float32)
        x = x.to(torch.float32)
    y = torch.mm(x, w.T, out_dtype=dtype) if x.dtype != dtype and dtype == torch.float32 else torch.mm(x, w.T)
    return (y if bias is None else y + bias).to(dtype)
