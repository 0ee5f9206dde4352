"""Dialects of config keys: how families write rope, layer patterns and sizes in `config.json`."""

from __future__ import annotations

import math
from typing import Any, Literal

from ftc.spec import Config, Linear, PairFactors, Proportional, Rope, WavelengthBands, Yarn


def text_part(c: Config) -> Config:
    """The language model's part of a config: itself, or what a multimodal wrapper holds."""
    return c.get("text_config", c)


def head_dim(c: Config) -> int:
    """head_dim, or hidden_size / num_attention_heads where the file leaves it out."""
    given = c.get("head_dim")
    if given is not None:
        return given
    if c.hidden_size % c.num_attention_heads:
        raise c.refuse(
            "num_attention_heads",
            f"heads do not divide hidden_size {c.hidden_size}",
            "give head_dim, or a number of heads that divides hidden_size",
        )
    return c.hidden_size // c.num_attention_heads


ROPES = ("default", "dynamic", "linear", "llama3", "longrope", "proportional", "yarn")


def rope(
    c: Config,
    dim: int | None = None,
    kind: str = "",
    pairing: Literal["half_split", "interleaved"] = "half_split",
    theta: float = 10000.0,
    share: float = 1.0,
) -> Rope:
    """Rope from either spelling: `rope_parameters`, or flat `rope_theta` with `rope_scaling`.

    `kind` is the kind of layer, for files that give each kind its own. A file may give the turned part as a share or in
    elements. `theta` and the `share` of a head that turns are what a file means that does not say.
    """
    dim = head_dim(c) if dim is None else dim
    given = c.get("rope_parameters") or c.get("rope_scaling") or Config({}, "config.json: rope_parameters")
    given = given.get(kind, given)
    theta = given.get("rope_theta", c.get("rope_theta", theta))
    partial = given.get("partial_rotary_factor", c.get("partial_rotary_factor", share))
    turned = c.get("rotary_dim") or int(dim * partial)
    scaled = given.first("rope_type", "type", default="default")
    context = given.get("original_max_position_embeddings", c.get("max_position_embeddings"))
    match scaled:
        case "default" | "mrope":
            scaling = None
        case "dynamic":
            # without alpha it begins behind the context the file gives, where nothing is served
            scaling, theta = None, theta * given.get("alpha", 1.0) ** (turned / (turned - 2))
        case "linear":
            scaling = Linear(given.factor)
        case "proportional":  # of the whole head: the part that does not turn is inside it
            turned, scaling = dim, Proportional(partial, given.get("factor", 1.0))
        case "llama3":
            scaling = WavelengthBands(given.factor, given.low_freq_factor, given.high_freq_factor, context)
        case "yarn":
            scaling = Yarn(
                given.factor,
                context,
                given.get("beta_fast", 32.0),
                given.get("beta_slow", 1.0),
                given.get("truncate", True),
                given.get("attention_factor", _yarn_amplitude(given)),
            )
        case "longrope":
            # the factors for contexts up to the original length; specs limit their context to it
            scaling = PairFactors(tuple(given.short_factor), given.get("short_mscale") or _stretch(given, c))
        case _:
            raise given.unknown("type" if given.get("rope_type") is None else "rope_type", "unknown rope type", ROPES)
    # an odd share of a head is spread over as many, and the last pair takes one element more
    odd = turned % 2 == 1 and turned < dim
    return Rope(theta, turned + odd, pairing=pairing, scaling=scaling, spread=turned if odd else None)


def _stretch(given: Config, c: Config) -> float:
    """Factor on cos and sin of per-pair factors: as the file says, or by how much longer the context is."""
    original = given.original_max_position_embeddings
    factor = given.get("factor") or c.max_position_embeddings / original
    grown = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return given.get("attention_factor", grown)


def _yarn_amplitude(given: Config) -> float | None:
    """Files that name both of two strengths mean their ratio; None is the usual 0.1 ln(factor) + 1."""
    own, whole = given.get("mscale"), given.get("mscale_all_dim")
    return yarn_strength(given.factor, own) / yarn_strength(given.factor, whole) if own and whole else None


def yarn_strength(factor: float, mscale: float) -> float:
    """What attention is strengthened by in a context `factor` times longer."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def end_tokens(c: Config) -> tuple[int, ...]:
    """End-of-sequence ids: a number, a list, or none."""
    given = c.get("eos_token_id")
    return () if given is None else tuple(given) if isinstance(given, list) else (given,)


KINDS = {"mamba": "linear_attention", "attention": "full_attention"}


def per_layer(c: Config, key: str) -> list[Any] | None:
    """The list under `key`, which must have an entry for each layer; None where the file has none."""
    given = c.get(key)
    if given is None:
        return None
    count = c.get("num_hidden_layers", len(given) if isinstance(given, list) else 0)
    if not isinstance(given, list) or len(given) != count:
        have = f"{len(given)} entries" if isinstance(given, list) else "no list"
        raise c.refuse(key, f"{have} for {count} layers", "give one entry for each layer, or leave the key out")
    return given


def layer_kinds(c: Config, full_every: int | None = None, other: str = "sliding_attention") -> list[str]:
    """The kind of each layer under the newer names, whichever names and key the file uses.

    With `full_every`, kinds are "full_attention" and `other`, and every `full_every`-th layer is full attention where the
    file has no list.
    """
    key = "layers_block_type" if c.get("layer_types") is None and c.get("layers_block_type") is not None else "layer_types"
    if full_every is not None and c.get(key) is None:
        return ["full_attention" if (i + 1) % full_every == 0 else other for i in range(c.num_hidden_layers)]
    found = [KINDS.get(kind, kind) for kind in per_layer(c, key) or c.first(key, "layers_block_type")]
    unknown = [kind for kind in found if full_every is not None and kind not in ("full_attention", other)]
    if unknown:
        raise c.refuse(key, f"unknown kind of layer: {unknown[0]}", f"known: full_attention, {other}")
    return found


def window(c: Config, kind: str) -> int:
    """The window of a layer of that kind; 0 is none."""
    return c.sliding_window if kind == "sliding_attention" else 0


def step_limits(c: Config) -> tuple[float, float] | None:
    """Bounds of a state-space step, None where the file's bounds are no bounds (infinity has several spellings)."""
    low, high = c.get("time_step_limit") or (0.0, None)
    unbounded = not isinstance(high, (int, float)) or high > 1e30
    return None if low == 0.0 and unbounded else (float(low), 3e38 if unbounded else float(high))
