"""Feed-forward parts: dense, routed experts, the router and the shared expert."""

from __future__ import annotations

from typing import Literal

import msgspec

from ftc.errors import SpecError
from ftc.spec.parameter import Parameter, require_positive


class Activation(msgspec.Struct, frozen=True):
    """act(gate) * up where `gated`, else act(up).

    `limit` > 0 clamps: gate <= limit, -limit <= up <= limit. `alpha` > 0: gate * sigmoid(alpha * gate) * (up + 1).
    """

    kind: Literal["silu", "gelu_tanh", "relu2"] = "silu"
    gated: bool = True
    limit: float = 0.0
    alpha: float = 0.0

    @property
    def inputs(self) -> int:
        """How many widths the projection before it has."""
        return 2 if self.gated else 1

    def describe(self) -> str:
        return f"gated {self.kind}" if self.gated else self.kind


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

    def parameters(self, hidden: int) -> list[Parameter]:
        inner = self.activation.inputs * self.width
        own = [Parameter("gate_up", (inner, hidden), linear=True), Parameter("down", (hidden, self.width), linear=True)]
        if self.bias:
            own += [Parameter("gate_up_bias", (inner,)), Parameter("down_bias", (hidden,))]
        return own

    def check(self, where: str) -> None:
        require_positive(where, width=self.width)

    def describe(self) -> str:
        return f"dense, width {self.width}, {self.activation.describe()}"


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

    @property
    def choices(self) -> int:
        """Ids the router chooses from: experts, then identities."""
        return self.experts.count + self.experts.identity

    def parameters(self, hidden: int) -> list[Parameter]:
        """Dense parameters; the experts' own matrices are records of the bank."""
        own = [Parameter("router", (self.choices, hidden), linear=True)]
        if self.router.bias:
            own.append(Parameter("router_bias", (self.choices,), "float32"))
        if self.shared is not None:
            own += [
                Parameter("shared_gate_up", (self.shared.activation.inputs * self.shared.width, hidden), linear=True),
                Parameter("shared_down", (hidden, self.shared.width), linear=True),
            ]
            if self.shared.gate != "none":
                own.append(Parameter("shared_gate", (1, hidden), linear=True))
        return own

    def check(self, where: str) -> None:
        require_positive(where, experts=self.experts.count, width=self.experts.width, top_k=self.router.top_k)
        if self.router.top_k > self.choices:
            raise SpecError(f"takes more than the {self.choices} experts", where=f"{where}: top_k", value=self.router.top_k)
        groups = self.router.groups
        if groups is not None and (self.choices % groups.count or not 0 < groups.taken <= groups.count):
            raise SpecError(
                f"{self.choices} experts do not fall into such groups",
                where=f"{where}: groups",
                value=(groups.count, groups.taken),
            )

    def describe(self) -> str:
        e = self.experts
        text = f"{e.count} experts of width {e.width}, top {self.router.top_k} by {self.router.score}"
        text += f", {e.activation.describe()}"
        if e.identity:
            text += f", {e.identity} identity experts"
        if self.shared is not None:
            text += f", shared expert of width {self.shared.width}" + (" with a gate" if self.shared.gate != "none" else "")
        return text


FFN = MLP | MoE
