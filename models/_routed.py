"""Routed layers as many families write them: which layers have experts, the sigmoid router with groups, extra layers."""

from __future__ import annotations

from ftc.spec import MLP, Block, Config, Experts, Extra, Groups, MoE, Router, SharedExpert, Skip, either
from ftc_models import _names
from ftc_models._config import per_layer

SCALES = ("routed_scaling_factor", "route_scale", "router_scaling_factor", "moe_routed_scaling_factor")


SCORES = {"sigmoid": "sigmoid", "softmax": "softmax", "sqrtsoftplus": "sqrt_softplus"}


def score(c: Config) -> str:
    """How the file says that experts are scored."""
    if c.scoring_func not in SCORES:
        raise c.unknown("scoring_func", "unknown score of experts", SCORES)
    return SCORES[c.scoring_func]


def sparse_layers(c: Config) -> list[bool]:
    """Which layers have experts: a list of kinds, or the number of dense layers before them."""
    kinds = per_layer(c, "mlp_layer_types")
    if kinds is not None:
        return [kind == "sparse" for kind in kinds]
    marked = per_layer(c, "moe_layer_freq") if isinstance(c.get("moe_layer_freq"), list) else None
    if marked is not None:
        return [bool(mark) for mark in marked]
    dense = c.first("first_k_dense_replace", "num_dense_layers", default=0)
    return [i >= dense for i in range(c.num_hidden_layers)]


def expert_count(c: Config) -> int:
    return c.first("n_routed_experts", "num_experts", "num_local_experts")


def groups(c: Config, score: str = "top2_sum") -> Groups | None:
    """The groups of experts, where there is more than one."""
    count = c.first("n_group", "num_expert_group", default=1)
    return Groups(count, c.topk_group, score) if count > 1 else None


def shared(c: Config) -> SharedExpert | None:
    """Shared experts are one expert as wide as all of them."""
    count = c.first("n_shared_experts", "num_shared_experts", default=0)
    return SharedExpert(count * c.moe_intermediate_size) if count else None


def sigmoid_moe(c: Config) -> MoE:
    """Experts chosen by sigmoid scores with a correction bias for the choice."""
    router = Router(
        top_k=c.first("num_experts_per_tok", "num_experts_per_token"),
        score="sigmoid",
        bias=True,
        groups=groups(c),
        renormalize=c.first("norm_topk_prob", "moe_renormalize", "route_norm", default=True),
        epsilon=1e-20,
        scale=c.first(*SCALES, default=1.0),
        precision="float32",
    )
    return MoE(router, Experts(expert_count(c), c.moe_intermediate_size), shared(c))


def ffns(c: Config, moe: MoE) -> list[MLP | MoE]:
    """The feed-forward part of each layer."""
    return [moe if sparse else MLP(c.intermediate_size) for sparse in sparse_layers(c)]


def moe_names(
    m: MoE,
    at: str = "{p}layers.{i}.mlp.",
    bias: str = "gate.e_score_correction_bias",
    matrices: tuple[str, str, str] = _names.GATE_UP_DOWN,
) -> dict:
    """Rules of experts, router, correction bias and shared experts under `at`, and of dense layers under `mlp`."""
    rules = _names.MLP | _names.experts(m.experts.width, at, matrices)
    if m.router.bias:
        rules["blocks.{i}.ffn.router_bias"] = at + bias
    return rules if m.shared is None else rules | _names.shared_expert(at + "shared_experts")


def one_of(*rules: dict) -> dict:
    """Rules of parameters that files keep in several places, or that layers of several kinds have."""
    found: dict = {}
    for own in rules:
        for path, rule in own.items():
            found.setdefault(path, {})[rule] = None
    return {path: either(*options) if len(options) > 1 else next(iter(options)) for path, options in found.items()}


def extra_layers(c: Config) -> tuple[Skip, ...]:
    """Multi-token prediction layers that files keep behind the model's own."""
    count = _declared(c, default=1)
    last = c.num_hidden_layers
    return tuple(Skip(f"*layers.{i}.*", "multi-token prediction layer") for i in range(last, last + count))


PREDICTORS = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers", "num_mtp_modules")


def predictors(c: Config, *blocks: Block) -> tuple[Extra, ...]:
    """The multi-token prediction layers that the file declares, each made of `blocks`."""
    count = _declared(c, default=0)
    return (Extra("multi-token prediction", count, blocks),) if count and blocks else ()


def _declared(c: Config, default: int) -> int:
    key = next((k for k in PREDICTORS if c.get(k) is not None), PREDICTORS[0])
    count = c.get(key, default)
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise c.refuse(key, "must be a whole number of layers", "leave the key out where the file has none")
    return count
