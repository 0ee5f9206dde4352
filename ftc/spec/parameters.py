"""Every parameter a spec needs: path, shape and precision, in the order regions take them."""

from __future__ import annotations

import msgspec

from ftc.spec.ffn import MoE
from ftc.spec.model import Block, Branch, HyperConnections, Model
from ftc.spec.parameter import Parameter, Precision, norm_parameters


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
    own += norm_parameters("final_norm", model.final_norm, model.hidden)
    own += norm_parameters("embedding_norm", model.embedding.norm, model.hidden)
    if model.embedding.per_layer is not None:
        own += model.embedding.per_layer.parameters(model.hidden, model.per_layer_inputs)
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
        own += norm_parameters(f"{branch.name}.norm", branch.norm, model.hidden)
        own += [msgspec.structs.replace(p, path=f"{branch.name}.{p.path}") for p in branch.body.parameters(model.hidden)]
        own += norm_parameters(f"{branch.name}.post_norm", branch.post_norm, model.hidden)
        if branch.gate is not None:
            own.append(Parameter(f"{branch.name}.residual_gate", (model.hidden,), "float32"))
        if isinstance(model.residual, HyperConnections):
            own += _hyper(branch.name, model.residual, model.hidden, collapse=False)
    if block.scalar:
        own.append(Parameter("scalar", (1,)))
    return own


def expert_record(model: Model, branch: Branch) -> ExpertRecord:
    """The record class of a MoE branch."""
    assert isinstance(branch.body, MoE)
    e = branch.body.experts
    return ExpertRecord(f"{branch.name}.experts", e.count, e.width, e.latent or model.hidden, e.activation.gated)


def _hyper(path: str, residual: HyperConnections, hidden: int, *, collapse: bool) -> list[Parameter]:
    n = residual.streams
    outs, scales = (n, 1) if collapse else (2 * n + n * n, 3)
    return [
        Parameter(f"{path}.streams", (outs, n * hidden), "float32"),
        Parameter(f"{path}.streams_base", (outs,), "float32"),
        Parameter(f"{path}.streams_scale", (scales,), "float32"),
    ]


__all__ = ["ExpertRecord", "Parameter", "Precision", "block_parameters", "expert_record", "model_parameters"]
