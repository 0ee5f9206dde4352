"""Calls the CPU kernels of native/ on torch tensors: allocates outputs and passes pointers, strides and dtype codes."""

from __future__ import annotations

import contextlib
import importlib
import struct
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ftc.errors import TargetError

_lib: Any = None
_ffi: Any = None
try:
    # torch is imported above: its libgomp is then the one that the library binds to, and both share one thread pool.
    _module = importlib.import_module("ftc._native")
    _lib, _ffi = _module.lib, _module.ffi
except ImportError as error:
    _reason = str(error)

ISAS = ("scalar", "avx2", "avx512", "avx512_bf16")
ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "relu2": 2}
SCORES = {"softmax": 0, "sigmoid": 1, "sqrt_softplus": 2}
GROUP_SCORES = {"max": 0, "top2_sum": 1}
_CODES = {torch.float32: 0, torch.bfloat16: 1}


class _Missing:
    """Stands for the library where it could not be loaded: any use of it says so."""

    def __getattr__(self, name: str) -> Any:
        raise TargetError(
            "the native CPU kernels are not built on this machine",
            value=_reason,
            hint="install a C++ compiler (g++ or clang++) and install ftc again",
        )


def available() -> bool:
    """Whether the native library is there and loads."""
    return not isinstance(_lib, _Missing)


if _lib is None:
    _lib = _Missing()


# Where outputs come from; a recorder puts its own here, to keep what it recorded alive.
_empty: Callable[..., Tensor] = torch.empty


class Tape:
    """Kernel calls recorded once, replayed in one call. While `recording`, calls of this module run and are recorded.

    Every pointer is fixed: the tensors of a step must be static and stay alive; outputs of the kernels are kept here.
    """

    def __init__(self) -> None:
        self._tape = _lib.ftc_tape_new()
        self._kinds: dict[str, bytes] = {}
        self.kept: list[Tensor] = []
        self.calls = 0

    def __del__(self) -> None:
        _lib.ftc_tape_free(self._tape)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        global _lib, _empty
        before = _lib, _empty
        _lib, _empty = _Recorder(self, _lib), self.empty
        try:
            yield
        finally:
            _lib, _empty = before

    def empty(self, *size: Any, **options: Any) -> Tensor:
        """torch.empty whose result lives as long as the tape."""
        return self.keep(torch.empty(*size, **options))

    def keep(self, tensor: Tensor) -> Tensor:
        self.kept.append(tensor)
        return tensor

    def add(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Records a call of an op of the library."""
        kinds = self._kinds.get(name)
        if kinds is None:
            kinds = self._kinds[name] = _ffi.string(_real().ftc_tape_kinds(name.encode()))
        format = "".join("d" if k == ord("f") else "q" for k in kinds)
        values = [float(a) if f == "d" else int(a) for f, a in zip(format, arguments, strict=True)]
        slots = struct.pack(format, *values)
        if _real().ftc_tape_op(self._tape, name.encode(), _ffi.cast("void *", _ffi.from_buffer(slots)), len(values)):
            raise TargetError("this op cannot be recorded", value=name)
        self.calls += 1

    def add_kernel(self, function: int, pointers: list[int]) -> None:
        """Records a call of a compiled kernel: the address of a void function of pointers."""
        slots = struct.pack(f"{len(pointers)}q", *pointers)
        if _real().ftc_tape_kernel(self._tape, function, _ffi.cast("void *", _ffi.from_buffer(slots)), len(pointers)):
            raise TargetError("a kernel with so many arguments cannot be recorded", value=len(pointers))
        self.calls += 1

    def run(self) -> None:
        """Replays everything in order. Raises TargetError naming the call where one fails."""
        failed = _real().ftc_tape_run(self._tape)
        if failed:
            raise TargetError("a recorded call failed", value=failed - 1)


class _Recorder:
    """Stands in for the library while a tape records: each op runs and is written down."""

    def __init__(self, tape: Tape, lib: Any) -> None:
        self.tape, self.lib = tape, lib

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.lib, name)

        def call(*arguments: Any) -> Any:
            self.tape.add(name, arguments)
            return function(*arguments)

        return call


def _real() -> Any:
    return _lib.lib if isinstance(_lib, _Recorder) else _lib


def isa() -> str:
    """The instruction set that the kernels use now, one of `ISAS`; at first the best one of this CPU."""
    return ISAS[_lib.ftc_isa()]


def set_isa(name: str) -> None:
    """Use another instruction set from the next call on. Raises TargetError where the CPU lacks it."""
    if name not in ISAS or _lib.ftc_set_isa(ISAS.index(name)):
        raise TargetError("this CPU does not run that instruction set", where="isa", value=name)


def threads() -> int:
    """Threads of a call; at first the number of CPUs in the process's affinity mask."""
    return _lib.ftc_threads()


def set_threads(count: int) -> None:
    """Use `count` threads (at least 1) from the next call on. Results do not depend on it."""
    _lib.ftc_set_threads(count)


def read_bandwidth(size: int, seconds: float) -> float:
    """Bytes per second that the threads read from a buffer of `size` bytes; best pass within about `seconds`."""
    return _lib.ftc_read_bandwidth(size, seconds)


def _code(tensor: Tensor) -> int:
    code = _CODES.get(tensor.dtype)
    if code is None:
        raise TargetError("the native kernels take float32 and bfloat16", value=tensor.dtype)
    return code


def _optional(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def linear(
    x: Tensor, w: Tensor, bias: Tensor | None = None, out_dtype: torch.dtype | None = None, rows: Tensor | None = None
) -> Tensor:
    """x [N, in] times w [out, in] transposed, plus bias [out] -> [N, out] of `out_dtype` (x's by default).

    x and w are float32 or bfloat16 in any mix, with contiguous rows; sums are float32 and round once. `rows`: int32
    scalar, rows from there on are padding and their output is undefined.
    """
    n, width = x.shape
    outs = w.shape[0]
    out = _empty((n, outs), dtype=out_dtype or x.dtype)
    _lib.ftc_linear(
        x.data_ptr(), _code(x), x.stride(0), w.data_ptr(), _code(w), w.stride(0), _optional(bias),
        0 if bias is None else _code(bias), out.data_ptr(), _code(out), n, outs, width, _optional(rows),
    )  # fmt: skip
    return out


def experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate: Tensor | None,
    up: Tensor,
    down: Tensor,
    ordinal: Tensor,
    experts: int,
    activation: str = "silu",
    limit: float = 0.0,
    alpha: float = 0.0,
    rows: Tensor | None = None,
    gate_bias: Tensor | None = None,
    up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
) -> Tensor:
    """Routed experts of x [N, H]: sum over k of weights[t, k] * expert ids[t, k] -> [N, H] of x's dtype.

    ids int32 and weights float32 are contiguous [N, K]. gate (None: ungated), up and down are views
    [ordinals * experts, I, H] of one bank, each [I, H] contiguous; `ordinal` (int32 scalar) picks the layer. Ids
    outside [0, experts) add nothing. Biases of the layer, [experts, I] or [experts, H], are contiguous and of the bank's
    dtype. Sums are float32; up to 8 rows the activations in between are float32 too.
    """
    n, hidden = x.shape
    out = _empty((n, hidden), dtype=x.dtype)
    _lib.ftc_experts(
        x.data_ptr(), _code(x), x.stride(0), ids.data_ptr(), weights.data_ptr(), _optional(gate),
        0 if gate is None else gate.stride(0), up.data_ptr(), up.stride(0), down.data_ptr(), down.stride(0), _code(up),
        ordinal.data_ptr(), experts, ACTIVATIONS[activation], limit, alpha, out.data_ptr(), n, ids.shape[1], hidden,
        up.shape[1], _optional(rows), _optional(gate_bias), _optional(up_bias), _optional(down_bias),
    )  # fmt: skip
    return out


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pool: Tensor,
    state: Tensor,
    ordinal: Tensor,
    pages: Tensor,
    offsets: Tensor,
    lengths: Tensor,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """Causal attention of q [N, nh, d] over the paged pool, after k [N, nkv, d] and v [N, nkv, dv] are written to it.

    pool [pages, layers, page_tokens, nkv * (d + dv)]; pages int32 [S, P]; offsets int32 [S + 1], rows of the sequences;
    lengths int32 [S], tokens already in the pool. Rows of q, k, v may be strided, heads may not. Rows that need a page
    outside [0, state[0]) come out NaN and add to state[1]. Returns [N, nh, dv] of q's dtype; padding is undefined.
    """
    n, heads, head_dim = q.shape
    kv_heads, value_dim = v.shape[1], v.shape[2]
    _, layers, page_tokens, _ = pool.shape
    out = _empty((n, heads, value_dim), dtype=q.dtype)
    _lib.ftc_attention(
        q.data_ptr(), q.stride(0), k.data_ptr(), k.stride(0), v.data_ptr(), v.stride(0), _code(q), pool.data_ptr(),
        _code(pool), state.data_ptr(), ordinal.data_ptr(), pages.data_ptr(), offsets.data_ptr(), lengths.data_ptr(),
        lengths.shape[0], pages.shape[1], layers, page_tokens, heads, kv_heads, head_dim, value_dim, scale, window,
        softcap, _optional(sinks), 0 if sinks is None else _code(sinks), out.data_ptr(), n,
    )  # fmt: skip
    return out


def causal_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    pool: Tensor,
    state: Tensor,
    ordinal: Tensor,
    state_in: Tensor,
    state_out: Tensor,
    offsets: Tensor,
    silu: bool,
) -> Tensor:
    """Depthwise causal convolution of x [N, C] with weight [C, width] over each sequence -> [N, C] of x's dtype.

    pool [slots, layers, C, width - 1] holds the last inputs, newest last. state_in and state_out int32 [S]: slot read
    (-1: zeros) and slot written (-1: none); slots outside [0, state[0]) give NaN and add to state[1].
    """
    n, channels = x.shape
    out = _empty((n, channels), dtype=x.dtype)
    failed = _lib.ftc_causal_conv(
        x.data_ptr(), _code(x), x.stride(0), weight.data_ptr(), _code(weight), _optional(bias),
        0 if bias is None else _code(bias), pool.data_ptr(), _code(pool), state.data_ptr(), ordinal.data_ptr(),
        state_in.data_ptr(), state_out.data_ptr(), offsets.data_ptr(), state_in.shape[0], pool.shape[1], channels,
        weight.shape[1], silu, out.data_ptr(),
    )  # fmt: skip
    if failed:
        raise TargetError("the native convolution has at most 16 taps", where="weight", value=weight.shape[1])
    return out


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    pool: Tensor,
    state: Tensor,
    ordinal: Tensor,
    state_in: Tensor,
    state_out: Tensor,
    offsets: Tensor,
    scale: float,
    normalize: bool,
) -> Tensor:
    """Gated delta rule of q, k [N, hk, dk] and v [N, hv, dv] over each sequence -> [N, hv, dv] of v's dtype.

    g float32 [N, hv] or [N, hv, dk] is the log decay, beta float32 [N, hv]; both contiguous. pool float32
    [slots, layers, hv, dk, dv]. Slots as in `causal_conv`. `normalize`: q and k are l2-normalised first.
    """
    n, key_heads, key_dim = k.shape
    value_heads, value_dim = v.shape[1], v.shape[2]
    out = _empty((n, value_heads, value_dim), dtype=v.dtype)
    _lib.ftc_delta_rule(
        q.data_ptr(), q.stride(0), k.data_ptr(), k.stride(0), v.data_ptr(), v.stride(0), _code(v), g.data_ptr(),
        g.dim() == 3, beta.data_ptr(), pool.data_ptr(), state.data_ptr(), ordinal.data_ptr(), state_in.data_ptr(),
        state_out.data_ptr(), offsets.data_ptr(), state_in.shape[0], pool.shape[1], key_heads, value_heads, key_dim,
        value_dim, scale, normalize, out.data_ptr(),
    )  # fmt: skip
    return out


def route(
    logits: Tensor,
    bias: Tensor | None,
    top_k: int,
    score: str,
    choose_first: bool,
    groups: int,
    groups_taken: int,
    group_score: str,
    renormalize: bool,
    epsilon: float,
    scale: float,
    rows: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The top_k experts of each row of float32 logits [N, E] -> (ids int32 [N, K], weights float32 [N, K]).

    Ordered by the choice score (score plus bias [E]), ties to the lower id; `choose_first` chooses on the logits and
    scores only the K chosen. Weights come from scores without bias.
    """
    n, experts = logits.shape
    ids = _empty((n, top_k), dtype=torch.int32)
    weights = _empty((n, top_k), dtype=torch.float32)
    _lib.ftc_route(
        logits.data_ptr(), logits.stride(0), _optional(bias), n, experts, top_k, SCORES[score], choose_first, groups,
        groups_taken, GROUP_SCORES[group_score], renormalize, epsilon, scale, ids.data_ptr(), weights.data_ptr(),
        _optional(rows),
    )  # fmt: skip
    return ids, weights


def sample(
    logits: Tensor,
    mask: Tensor | None,
    forced: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    presence: Tensor,
    frequency: Tensor,
    repetition: Tensor,
    seed: Tensor,
    position: Tensor,
    counts: Tensor | None,
    seen: Tensor | None,
) -> Tensor:
    """One token per row of float32 logits [S, V], which may be overwritten -> int32 [S]; -1 when all is masked out.

    mask int32 [S, ceil(V / 32)] (bit set: allowed), forced int32 [S] (-1: none), top_k int32, seed and position int64,
    the others float32 [S]; counts int32 [S, V], seen uint8 [S, V]. top_p counts within the top_k; the draw depends on
    the logits, seed and position only.
    """
    count, vocab = logits.shape
    tokens = _empty(count, dtype=torch.int32)
    _lib.ftc_sample(
        logits.data_ptr(), count, vocab, _optional(mask), forced.data_ptr(), temperature.data_ptr(), top_k.data_ptr(),
        top_p.data_ptr(), min_p.data_ptr(), presence.data_ptr(), frequency.data_ptr(), repetition.data_ptr(),
        seed.data_ptr(), position.data_ptr(), _optional(counts), _optional(seen), tokens.data_ptr(),
    )  # fmt: skip
    return tokens
