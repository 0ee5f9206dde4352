"""Every parameter a spec needs: path, shape and precision, in the order regions take them."""

from __future__ import annotations

from typing import Literal

import msgspec

from ftc.spec.ffn import FFN, MLP, MoE
from ftc.spec.mixer import Attention, GatedDelta, Mixer
from ftc.spec.model import Block, Branch, HyperConnections, Model
from ftc.spec.norm import LayerNorm, Norm, RMSNorm

Precision = Literal["run", "float32"]


class Parameter(msgspec.Struct, frozen=True):
    """`path` within its block (or the model). "run": the type the model runs in; "float32": always float32.

    `linear`: a matrix [out, in] used by a linear, so a number format may apply.
    """

    path: str
    shape: tuple[int, ...]
    precision: Precision = "run"
    linear: bool = False


class ExpertRecord(msgspec.Struct, frozen=True):
    """The matrices of one expert of a MoE branch, each intermediate-major [width, hidden]; gate first if gated."""

    path: str
    count: int
    width: int
    hidden: int
    gated: bool

    @property
    def matrices(self) -> tuple[str, ...]:
        return ("gate", "up", "down") if self.gated else ("up", "down")

    @property
    def elements(self) -> int:
        """Elements of one record."""
        return len(self.matrices) * self.width * self.hidden


def model_parameters(model: Model) -> list[Parameter]:
    """Parameters outside the blocks: embedding, final norm, head."""
    own = [Parameter("embedding", (model.vocab, model.hidden), linear=model.head.tied)]
    own += _norm("final_norm", model.final_norm, model.hidden)
    if isinstance(model.residual, HyperConnections):
        own += _hyper("final", model.residual, model.hidden, collapse=True)
    if not model.head.tied:
        own.append(Parameter("head", (model.vocab, model.hidden), linear=True))
    if model.head.bias:
        own.append(Parameter("head_bias", (model.vocab,), "float32"))
    return own


def block_parameters(model: Model, block: Block) -> list[Parameter]:
    """Dense parameters of one block, paths like `mixer.qkv`; expert matrices are not among them."""
    own: list[Parameter] = []
    for branch in block.branches:
        if branch.norm is not None:
            own += _norm(f"{branch.name}.norm", branch.norm, model.hidden)
        own += [msgspec.structs.replace(p, path=f"{branch.name}.{p.path}") for p in _body(branch.body, model.hidden)]
        if branch.post_norm is not None:
            own += _norm(f"{branch.name}.post_norm", branch.post_norm, model.hidden)
        if isinstance(model.residual, HyperConnections):
            own += _hyper(branch.name, model.residual, model.hidden, collapse=False)
    return own


def expert_record(model: Model, branch: Branch) -> ExpertRecord:
    """The record class of a MoE branch."""
    assert isinstance(branch.body, MoE)
    experts = branch.body.experts
    return ExpertRecord(f"{branch.name}.experts", experts.count, experts.width, model.hidden, experts.activation.gated)


def _norm(path: str, norm: Norm, width: int) -> list[Parameter]:
    match norm:
        case RMSNorm(weight="none"):
            return []
        case RMSNorm():
            return [Parameter(f"{path}", (width,))]
        case LayerNorm():
            return [Parameter(path, (width,)), Parameter(f"{path}_bias", (width,))]


def _hyper(path: str, residual: HyperConnections, hidden: int, *, collapse: bool) -> list[Parameter]:
    n = residual.streams
    outs, scales = (n, 1) if collapse else (2 * n + n * n, 3)
    return [
        Parameter(f"{path}.streams", (outs, n * hidden), "float32"),
        Parameter(f"{path}.streams_base", (outs,), "float32"),
        Parameter(f"{path}.streams_scale", (scales,), "float32"),
    ]


def _body(body: Mixer | FFN, hidden: int) -> list[Parameter]:
    match body:
        case Attention():
            return _attention(body, hidden)
        case GatedDelta():
            return _gated_delta(body, hidden)
        case MLP(width=width, activation=activation):
            inner = (2 if activation.gated else 1) * width
            own = [Parameter("gate_up", (inner, hidden), linear=True), Parameter("down", (hidden, width), linear=True)]
            if body.bias:
                own += [Parameter("gate_up_bias", (inner,)), Parameter("down_bias", (hidden,))]
            return own
        case MoE():
            return _moe(body, hidden)


def _attention(a: Attention, hidden: int) -> list[Parameter]:
    own = [Parameter("qkv", (a.qkv_width, hidden), linear=True)]
    if a.qkv_bias:
        own.append(Parameter("qkv_bias", (a.qkv_width,)))
    if a.qk_norm is not None:
        wide = a.qk_norm.over == "projection"
        own += _norm("q_norm", a.qk_norm, a.heads * a.head_dim if wide else a.head_dim)
        own += _norm("k_norm", a.qk_norm, a.kv_heads * a.head_dim if wide else a.head_dim)
    if a.gate is not None and a.gate.source == "own":
        width = a.heads if a.gate.per == "head" else a.heads * a.v_dim
        own.append(Parameter("gate", (width, hidden), linear=True))
    if a.sinks:
        own.append(Parameter("sinks", (a.heads,), "float32"))
    if a.indexer is not None and a.indexer.mode == "full":
        i = a.indexer
        own += [
            Parameter("index_q", (i.heads * i.dim, hidden), linear=True),
            Parameter("index_k", (i.dim, hidden), linear=True),
            Parameter("index_weights", (i.heads, hidden), linear=True),
        ]
    own.append(Parameter("out", (hidden, a.heads * a.v_dim), linear=True))
    if a.out_bias:
        own.append(Parameter("out_bias", (hidden,)))
    return own


def _gated_delta(d: GatedDelta, hidden: int) -> list[Parameter]:
    decays = d.value_heads * (d.key_dim if d.decay_per == "channel" else 1)
    return [
        Parameter("in", (d.in_width, hidden), linear=True),
        Parameter("conv", (d.conv_channels, d.conv_width)),
        Parameter("log_decay", (d.value_heads,), "float32"),
        Parameter("decay_bias", (decays,), "float32"),
        Parameter("inner_norm", (d.value_dim,)),
        Parameter("out", (hidden, d.value_heads * d.value_dim), linear=True),
    ]


def _moe(m: MoE, hidden: int) -> list[Parameter]:
    own = [Parameter("router", (m.experts.count + m.experts.identity, hidden), linear=True)]
    if m.router.bias:
        own.append(Parameter("router_bias", (m.experts.count + m.experts.identity,), "float32"))
    if m.shared is not None:
        inner = (2 if m.shared.activation.gated else 1) * m.shared.width
        own += [
            Parameter("shared_gate_up", (inner, hidden), linear=True),
            Parameter("shared_down", (hidden, m.shared.width), linear=True),
        ]
        if m.shared.gate != "none":
            own.append(Parameter("shared_gate", (1, hidden), linear=True))
    return own
