"""Routed experts in parts: rows from slots, rows from the CPU through a mailbox, and the one sum that joins them."""

from __future__ import annotations

import torch
from torch import Tensor

from ftc.ops.activation import gated, pointwise
from ftc.ops.experts import experts_op
from ftc.ops.op import Op
from ftc.ops.slots import CPU, FRESH, HIT

# contract of the mailbox, pinned host memory: x [n, H] float32, ids [m] int32 (-1: not for the CPU), rows [m, H] float32,
# note [8] int32: ordinal, rows, top_k, number of routes for the CPU, and where flags are used instead of a host function the
# numbers of the question asked last, of the one answered last and of the first that was given up (0 none). n and m are the
# largest that any program needs.
NOTE_ELEMENTS = 8
ORDINAL, ROWS, TOP_K, ROUTES, ASKED, ANSWERED, LATE = range(7)

_ACTIVATION = "str activation, float limit, float alpha"
_BIASES = "Tensor? gate_bias, Tensor? up_bias, Tensor? down_bias"


def expert_rows(
    x: Tensor,
    places: Tensor,
    ids: Tensor,
    mine: Tensor,
    gate: Tensor | None,
    up: Tensor,
    down: Tensor,
    activation: str,
    limit: float,
    alpha: float,
    gate_bias: Tensor | None,
    up_bias: Tensor | None,
    down_bias: Tensor | None,
) -> Tensor:
    """x [N, H], places (row of gate, up, down), ids (row of the biases) and mine [N, K] -> [N, K, H] float32, NaN elsewhere."""

    def linear(h: Tensor, w: Tensor, bias: Tensor | None, expert: int) -> Tensor:
        y = h @ w.float()
        return y if bias is None else y + bias[expert].float()

    out = torch.full((*places.shape, x.shape[1]), float("nan"), dtype=torch.float32, device=x.device)
    for place in places[mine].unique().tolist():
        t, k = (mine & (places == place)).nonzero(as_tuple=True)
        e, wide = int(ids[t[0], k[0]]), x[t].float()
        h = linear(wide, up[place].T, up_bias, e)
        if gate is None:
            h = pointwise(h, activation, alpha)
        else:
            h = gated(linear(wide, gate[place].T, gate_bias, e), h, activation, limit, alpha)
        out[t, k] = linear(h, down[place], down_bias, e)
    return out


def _slot_reference(
    x: Tensor,
    slots: Tensor,
    kinds: Tensor,
    ids: Tensor,
    kind: int,
    state: Tensor,
    gate: Tensor | None,
    up: Tensor,
    down: Tensor,
    *rest: object,
) -> Tensor:
    return expert_rows(x, slots, ids, kinds == kind, gate, up, down, *rest)  # type: ignore[arg-type]


def _rows_fake(x: Tensor, slots: Tensor, *_: object) -> Tensor:
    return x.new_empty((*slots.shape, x.shape[1]), dtype=torch.float32)


# contract: gate, up, down [S, I, H] views of the slots. The rows whose kind is `kind`; the others are unspecified.
slot_experts = Op(
    "slot_experts",
    "(Tensor x, Tensor slots, Tensor kinds, Tensor ids, int kind, Tensor(a!) state, Tensor? gate, Tensor up, Tensor down,"
    f" {_ACTIVATION}, {_BIASES}) -> Tensor",
    _slot_reference,
    _rows_fake,
)


def _submit_reference(
    x: Tensor,
    ids: Tensor,
    kinds: Tensor,
    ordinal: Tensor,
    rows: Tensor,
    state: Tensor,
    mail_x: Tensor,
    mail_ids: Tensor,
    mail_note: Tensor,
) -> None:
    live, k = int(rows), ids.shape[1]
    mine = torch.where(kinds[:live] == CPU, ids[:live], -1).flatten()
    mail_x[:live] = x[:live].float()
    mail_ids[: live * k] = mine
    told = (int(ordinal), live, k, int((mine >= 0).sum()))
    mail_note[:4] = torch.tensor(told, dtype=torch.int32)


# contract: writes what the CPU needs for the routes of kind CPU into the mailbox.
cpu_submit = Op(
    "cpu_submit",
    "(Tensor x, Tensor ids, Tensor kinds, Tensor ordinal, Tensor rows, Tensor(a!) state, Tensor mail_x, Tensor mail_ids,"
    " Tensor mail_note) -> ()",
    _submit_reference,
    lambda *_: None,
)


def _run_reference(
    state: Tensor,
    mail_x: Tensor,
    mail_ids: Tensor,
    mail_rows: Tensor,
    mail_note: Tensor,
    gate: Tensor | None,
    up: Tensor,
    down: Tensor,
    experts: int,
    activation: str,
    limit: float,
    alpha: float,
    gate_bias: Tensor | None,
    up_bias: Tensor | None,
    down_bias: Tensor | None,
    stream: str,
) -> None:
    ordinal, live, k, _ = mail_note[:4].tolist()
    ids = mail_ids[: live * k].view(live, k)
    rows = expert_rows(
        mail_x[:live], ordinal * experts + ids, ids, ids >= 0, gate, up, down, activation, limit, alpha, gate_bias, up_bias,
        down_bias,
    )  # fmt: skip
    mine = ids.flatten() >= 0
    mail_rows[: live * k][mine] = rows.flatten(0, 1)[mine]


# contract: computes the mailbox's routes from the bank on the CPU; their rows are mail_rows [token * top_k + k].
cpu_run = Op(
    "cpu_run",
    "(Tensor(a!) state, Tensor mail_x, Tensor mail_ids, Tensor mail_rows, Tensor mail_note, Tensor? gate, Tensor up,"
    f" Tensor down, int experts, {_ACTIVATION}, {_BIASES}, str stream) -> ()",
    _run_reference,
    lambda *_: None,
)


def _combine_reference(
    x: Tensor, weights: Tensor, kinds: Tensor, hit: Tensor | None, fresh: Tensor | None, mail_rows: Tensor | None,
    mail_note: Tensor | None, state: Tensor,
) -> Tensor:  # fmt: skip
    n, k = kinds.shape
    parts = torch.full((n, k, x.shape[1]), float("nan"), dtype=torch.float32, device=x.device)
    for kind, given in ((HIT, hit), (FRESH, fresh), (CPU, mail_rows)):
        if given is not None:
            mine = kinds == kind
            parts[mine] = given[: n * k].view(n, k, -1)[mine] if given.dim() == 2 else given[mine]
    total = torch.zeros_like(x, dtype=torch.float32)
    for j in range(k):
        used = kinds[:, j, None] > 0
        total = torch.where(used, total + weights[:, j, None] * parts[:, j], total)
    return total.to(x.dtype)


# contract: hit, fresh [N, K, H], mail_rows [m, H] float32 -> [N, H] of x's type: weighted rows added in k order, cast once.
combine = Op(
    "combine",
    "(Tensor x, Tensor weights, Tensor kinds, Tensor? hit, Tensor? fresh, Tensor? mail_rows, Tensor? mail_note,"
    " Tensor(a!) state) -> Tensor",
    _combine_reference,
    lambda x, *_: torch.empty_like(x),
)


def _layer_reference(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    state: Tensor,
    place: Tensor,
    ordinal: Tensor,
    experts: int,
    gate: Tensor | None,
    up: Tensor,
    down: Tensor,
    activation: str,
    limit: float,
    alpha: float,
    rows: Tensor,
    gate_bias: Tensor | None,
    up_bias: Tensor | None,
    down_bias: Tensor | None,
) -> Tensor:
    base = int(ordinal) * experts
    slots = place[base : base + experts].long()
    assert bool((slots >= 0).all()), "a layer runs before its experts have arrived"
    own = [None if w is None else w[slots] for w in (gate, up, down)]
    zero = torch.zeros_like(ordinal)
    return experts_op.kernels["reference"](
        x, ids, weights, *own, zero, experts, activation, limit, alpha, rows, gate_bias, up_bias, down_bias
    )


# contract: `experts` with the whole layer in slots: expert e is read from slot place[ordinal * experts + e].
layer_experts = Op(
    "layer_experts",
    "(Tensor x, Tensor ids, Tensor weights, Tensor(a!) state, Tensor place, Tensor ordinal, int experts, Tensor? gate,"
    f" Tensor up, Tensor down, {_ACTIVATION}, Tensor rows, {_BIASES}) -> Tensor",
    _layer_reference,
    lambda x, *_: torch.empty_like(x),
)


def _cpu_kinds_reference(ids: Tensor, experts: int, rows: Tensor) -> Tensor:
    kinds = torch.where((ids >= 0) & (ids < experts), CPU, 0).to(ids.dtype)
    kinds[int(rows) :] = 0
    return kinds


# contract: kinds [N, K] when all experts of a step are for the CPU.
cpu_kinds = Op("cpu_kinds", "(Tensor ids, int experts, Tensor rows) -> Tensor", _cpu_kinds_reference,
               lambda ids, *_: torch.empty_like(ids))  # fmt: skip
