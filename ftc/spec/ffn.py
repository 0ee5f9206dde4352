"""Feed-forward parts: dense, routed experts, the router and the shared expert."""

from __future__ import annotations

from typing import Literal

import msgspec

from ftc.errors import SpecError
from ftc.spec.norm import Norm
from ftc.spec.parameter import Parameter, Precision, divisor_near, norm_parameters, require_positive
from ftc.spec.per_layer import PerLayerInput


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

    `choose_first`: top-k on the logits, score over the chosen. `bias`: a learned correction added for the choice only;
    `logit_bias`: one added to the logits. `renormalize`: divide by (sum + epsilon); then times `scale`. `softcap` > 0:
    logits are softcap * tanh(logits / softcap). `precision` is the router matrix's. The router reads norm(x), its logits
    are multiplied by `logit_scale`, its weights by a learned scale per expert where `expert_scale`. `weighs` "input": the
    weight multiplies what the expert reads instead of what it gives.

    `table` > 0: the experts of a token are looked up by its id in a table of so many rows; scores only weigh them.

    "sparse_mixer": each choice in turn is weighted by a softmax over the logits that lie within 2 * `epsilon` (relative)
    of the best one left (Liu et al. 2023); weights do not sum to 1.
    """

    top_k: int
    score: Literal["softmax", "sigmoid", "sqrt_softplus", "sparse_mixer"] = "softmax"
    choose_first: bool = False
    bias: bool = False
    logit_bias: bool = False
    groups: Groups | None = None
    renormalize: bool = True
    epsilon: float = 0.0
    scale: float = 1.0
    softcap: float = 0.0
    precision: Precision = "run"
    norm: Norm | None = None
    logit_scale: float = 1.0
    expert_scale: bool = False
    table: int = 0
    weighs: Literal["output", "input"] = "output"


class Experts(msgspec.Struct, frozen=True):
    """`count` routed experts of inner `width`; `identity` more ids after them return their input.

    `bias`: each projection of each expert adds one; they are dense parameters, not part of an expert's record.
    `latent` > 0: they work at this width, between two projections that all share. `norm` is over what they read,
    `each_norm` over what each gives, before it is weighted, `post_norm` over their sum.
    """

    count: int
    width: int
    activation: Activation = Activation()
    identity: int = 0
    bias: bool = False
    latent: int = 0
    norm: Norm | None = None
    each_norm: Norm | None = None
    post_norm: Norm | None = None


class SharedExpert(msgspec.Struct, frozen=True):
    """A dense expert every token takes, post_norm(expert(norm(x))); `gate` "sigmoid" multiplies it by sigmoid(w . x)."""

    width: int
    activation: Activation = Activation()
    gate: Literal["none", "sigmoid"] = "none"
    norm: Norm | None = None
    post_norm: Norm | None = None


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
        e = self.experts
        own = norm_parameters("router_norm", self.router.norm, hidden)
        own.append(Parameter("router", (self.choices, hidden), self.router.precision, linear=True))
        if self.router.logit_bias:
            own.append(Parameter("router_logit_bias", (self.choices,), self.router.precision))
        if self.router.bias:
            own.append(Parameter("router_bias", (self.choices,), "float32"))
        if self.router.table:
            own.append(Parameter("router_table", (self.router.table, self.router.top_k), "int32"))
        if self.router.expert_scale:
            own.append(Parameter("expert_scale", (self.choices,), "float32"))
        width = e.latent or hidden
        if e.latent:
            own += [Parameter("latent_in", (width, hidden), linear=True), Parameter("latent_out", (hidden, width), linear=True)]
        own += norm_parameters("experts_norm", e.norm, width)
        own += norm_parameters("each_norm", e.each_norm, width)
        own += norm_parameters("experts_post_norm", e.post_norm, hidden)
        if e.bias:
            own += [Parameter(f"expert_{m}_bias", (e.count, e.width)) for m in ("gate", "up")[not e.activation.gated :]]
            own.append(Parameter("expert_down_bias", (e.count, width)))
        if self.shared is not None:
            own += norm_parameters("shared_norm", self.shared.norm, hidden)
            own += norm_parameters("shared_post_norm", self.shared.post_norm, hidden)
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
            raise SpecError(
                f"takes more than the {self.choices} experts",
                where=f"{where}: top_k",
                value=self.router.top_k,
                hint=f"the nearest that would do is {self.choices}",
            )
        groups = self.router.groups
        if groups is not None and (self.choices % groups.count or not 0 < groups.taken <= groups.count):
            raise SpecError(
                f"{self.choices} experts do not fall into such groups",
                where=f"{where}: groups",
                value=(groups.count, groups.taken),
                hint=self._near_groups(groups),
            )
        if groups is not None and self.choices // groups.count * groups.taken < self.router.top_k:
            raise SpecError(
                f"{groups.taken} of the groups hold fewer experts than the {self.router.top_k} a token takes",
                where=f"{where}: groups",
                value=(groups.count, groups.taken),
                hint="take more groups, or fewer experts for each token",
            )
        r = self.router
        if r.score == "sparse_mixer" and (r.bias or r.choose_first or groups is not None):
            raise SpecError("a sparse mixer knows neither corrections nor groups", where=f"{where}: router", value=r.score)

    def _near_groups(self, groups: Groups) -> str:
        count = divisor_near(self.choices, groups.count)
        return f"the nearest that would do is {count} groups, of which {min(max(groups.taken, 1), count)} are taken"

    def describe(self) -> str:
        e = self.experts
        how = "token id" if self.router.table else self.router.score
        text = f"{e.count} experts of width {e.width}, top {self.router.top_k} by {how}"
        text += f", {e.activation.describe()}"
        if e.identity:
            text += f", {e.identity} identity experts"
        if e.latent:
            text += f" on a latent of {e.latent}"
        if self.shared is not None:
            text += f", shared expert of width {self.shared.width}" + (" with a gate" if self.shared.gate != "none" else "")
        return text


FFN = MLP | MoE | PerLayerInput
