"""Feed-forward parts: dense, routed experts, the router and the shared expert."""

from __future__ import annotations

from typing import Literal

import msgspec


class Activation(msgspec.Struct, frozen=True):
    """act(gate) * up where `gated`, else act(up).

    `limit` > 0 clamps: gate <= limit, -limit <= up <= limit. `alpha` > 0: gate * sigmoid(alpha * gate) * (up + 1).
    """

    kind: Literal["silu", "gelu_tanh", "relu2"] = "silu"
    gated: bool = True
    limit: float = 0.0
    alpha: float = 0.0


def SwiGLU(limit: float = 0.0, alpha: float = 0.0) -> Activation:
    return Activation("silu", True, limit, alpha)


def GeGLU() -> Activation:
    return Activation("gelu_tanh", True)


def ReLU2() -> Activation:
    return Activation("relu2", False)


class MLP(msgspec.Struct, frozen=True, tag="mlp"):
    """Dense feed-forward of the given inner width."""

    width: int
    activation: Activation = Activation()
    bias: bool = False


class Groups(msgspec.Struct, frozen=True):
    """Experts in `count` groups of which the best `taken` may be chosen from."""

    count: int
    taken: int
    score: Literal["max", "top2_sum"] = "top2_sum"


class Router(msgspec.Struct, frozen=True):
    """Scores over all experts in float32, top_k of them, their weights.

    `choose_first`: top-k on the logits, score over the chosen. `bias`: a learned correction added for the choice only
    (on the logits where choose_first). `renormalize`: divide by (sum + epsilon); then times `scale`.
    """

    top_k: int
    score: Literal["softmax", "sigmoid", "sqrt_softplus"] = "softmax"
    choose_first: bool = False
    bias: bool = False
    groups: Groups | None = None
    renormalize: bool = True
    epsilon: float = 0.0
    scale: float = 1.0


class Experts(msgspec.Struct, frozen=True):
    """`count` routed experts of inner `width`; `identity` more ids after them return their input."""

    count: int
    width: int
    activation: Activation = Activation()
    identity: int = 0


class SharedExpert(msgspec.Struct, frozen=True):
    """A dense expert every token takes; `gate` "sigmoid" multiplies it by sigmoid(w . x)."""

    width: int
    activation: Activation = Activation()
    gate: Literal["none", "sigmoid"] = "none"


class MoE(msgspec.Struct, frozen=True, tag="moe"):
    """Routed experts, with an optional shared expert added."""

    router: Router
    experts: Experts
    shared: SharedExpert | None = None


FFN = MLP | MoE
