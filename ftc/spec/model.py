"""The root of a spec: embedding, blocks of residual branches, head, caches, weights and chat dialect."""

from __future__ import annotations

from typing import Literal

import msgspec

from ftc.spec.cache import CacheGroup, CacheUse
from ftc.spec.chat import Chat
from ftc.spec.ffn import FFN, MoE
from ftc.spec.mixer import Mixer
from ftc.spec.norm import Norm
from ftc.spec.per_layer import PerLayerInput, PerLayerTable
from ftc.spec.weights import WeightRules


class ResidualGate(msgspec.Struct, frozen=True):
    """Learned mixture per channel in place of the sum: with b = sigmoid(w / temperature), a * stream + b * branch,

    where a = sqrt(max((1 - b) (1 + b), floor)), so that a^2 + b^2 is 1.
    """

    temperature: float
    floor: float = 1e-3


class Branch(msgspec.Struct, frozen=True):
    """One residual branch: stream_scale * stream + scale * post_norm(body(norm(stream))).

    `keeps` "normed": norm(stream) stands in place of the stream in the sum. `late`: the result waits for the block's other
    branches and is added after them.
    """

    name: str
    body: Mixer | FFN
    norm: Norm | None
    post_norm: Norm | None = None
    scale: float = 1.0
    stream_scale: float = 1.0
    keeps: Literal["stream", "normed"] = "stream"
    gate: ResidualGate | None = None
    late: bool = False


class Block(msgspec.Struct, frozen=True):
    """One layer: its branches in order; `scalar` multiplies the stream after them by one learned number."""

    branches: tuple[Branch, ...]
    scalar: bool = False


def pre_norm(norm: Norm, mixer: Mixer, ffn: FFN) -> Block:
    """The usual block: x + mixer(norm(x)), then x + ffn(norm(x))."""
    return Block((Branch("mixer", mixer, norm), Branch("ffn", ffn, norm)))


def post_norm(norm: Norm, mixer: Mixer, ffn: FFN) -> Block:
    """x + norm(mixer(x)), then x + norm(ffn(x))."""
    return Block((Branch("mixer", mixer, None, norm), Branch("ffn", ffn, None, norm)))


def sandwich_norm(norm: Norm, mixer: Mixer, ffn: FFN) -> Block:
    """x + norm(mixer(norm(x))), then x + norm(ffn(norm(x))): four norms of one kind, each with its own weight."""
    return Block((Branch("mixer", mixer, norm, norm), Branch("ffn", ffn, norm, norm)))


class PlainResidual(msgspec.Struct, frozen=True, tag="plain"):
    """One residual stream."""


class HyperConnections(msgspec.Struct, frozen=True, tag="hyper_connections"):
    """Several residual streams, read and mixed by small learned maps kept doubly stochastic by Sinkhorn iterations."""

    streams: int
    iterations: int = 20
    eps: float = 1e-6
    norm_eps: float = 1e-6


class Embedding(msgspec.Struct, frozen=True):
    """Rows of the table, times `scale`, then `norm`. `per_layer`: a second table from which every layer takes its part."""

    scale: float = 1.0
    norm: Norm | None = None
    per_layer: PerLayerTable | None = None


class Head(msgspec.Struct, frozen=True):
    """Final projection; `tied` reads the embedding. logits = softcap(scale * W x)."""

    tied: bool = False
    scale: float = 1.0
    softcap: float = 0.0
    bias: bool = False


class Extra(msgspec.Struct, frozen=True):
    """Parts that a file declares besides the model and that are not served: `layers` layers that guess a further token.

    Each joins the stream with the next token's embedding by a projection [hidden, 2 hidden], between norms of both, and
    runs `blocks` and a norm; embedding and head are the model's own.
    """

    name: str
    layers: int
    blocks: tuple[Block, ...]


class CarryTensor(msgspec.Struct, frozen=True):
    """One tensor that regions hand on, [rows, *shape]. "run" is the type the model runs in."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "run"


class Model(msgspec.Struct, frozen=True):
    """A whole model as data. `context_tokens` is the longest sequence it was made for."""

    name: str
    hidden: int
    vocab: int
    context_tokens: int
    blocks: tuple[Block, ...]
    final_norm: Norm
    weights: WeightRules
    embedding: Embedding = Embedding()
    head: Head = Head()
    residual: PlainResidual | HyperConnections = PlainResidual()
    chat: Chat = Chat()
    end_tokens: tuple[int, ...] = ()
    extra: tuple[Extra, ...] = ()

    @property
    def moe_branches(self) -> list[tuple[int, Branch]]:
        """(block number, branch) of each MoE, in order: its position here is the MoE ordinal."""
        return [(i, b) for i, block in enumerate(self.blocks) for b in block.branches if isinstance(b.body, MoE)]

    @property
    def per_layer_inputs(self) -> int:
        """How many branches take a part of the table per layer."""
        return sum(isinstance(b.body, PerLayerInput) for block in self.blocks for b in block.branches)

    def cache_uses(self) -> list[dict[str, tuple[CacheUse, ...]]]:
        """Per block: branch name -> its places in the cache groups, in the order the mixer lists them."""
        counts: dict[str, int] = {}
        result = []
        for block in self.blocks:
            uses: dict[str, tuple[CacheUse, ...]] = {}
            for branch in block.branches:
                if isinstance(branch.body, FFN):
                    continue
                own = []
                reads = getattr(branch.body, "shares_cache", False)
                for group in branch.body.groups():
                    counts[group.name] = counts.get(group.name, 0) + (not reads)
                    own.append(CacheUse(group, counts[group.name] - 1))
                uses[branch.name] = tuple(own)
            result.append(uses)
        return result

    def cache_groups(self) -> dict[str, tuple[CacheGroup, int]]:
        """Group name -> (group, how many layers use it)."""
        result: dict[str, tuple[CacheGroup, int]] = {}
        for uses in self.cache_uses():
            for use in (u for own in uses.values() for u in own):
                result[use.group.name] = (use.group, use.index + 1)
        return result

    def carry(self) -> tuple[CarryTensor, ...]:
        """What regions hand on: the residual stream(s), and the indices where a layer shares them."""
        streams = (self.residual.streams,) if isinstance(self.residual, HyperConnections) else ()
        own = [CarryTensor("residual", (*streams, self.hidden))]
        indexers = [i for block in self.blocks for b in block.branches if (i := getattr(b.body, "indexer", None))]
        if indexers:
            own.append(CarryTensor("indices", (indexers[0].top_k,), "int32"))
        if self.embedding.per_layer is not None:
            own.append(CarryTensor("per_layer", (self.per_layer_inputs, self.embedding.per_layer.width)))
        return tuple(own)


