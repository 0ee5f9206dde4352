"""Dialects of config keys: how families write rope, layer patterns and sizes in `config.json`."""

from __future__ import annotations

from ftc.spec import Config, Linear, Rope, WavelengthBands, Yarn


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


def rope(c: Config, dim: int | None = None) -> Rope:
    """Rope from either spelling: `rope_parameters`, or flat `rope_theta` with `rope_scaling`."""
    dim = head_dim(c) if dim is None else dim
    given = c.get("rope_parameters") or c.get("rope_scaling") or Config({}, "config.json: rope_parameters")
    theta = given.get("rope_theta", c.get("rope_theta", 10000.0))
    partial = given.get("partial_rotary_factor", c.get("partial_rotary_factor", 1.0))
    kind = given.first("rope_type", "type", default="default")
    context = given.get("original_max_position_embeddings", c.get("max_position_embeddings"))
    match kind:
        case "default" | "mrope":
            scaling = None
        case "linear":
            scaling = Linear(given.factor)
        case "llama3":
            scaling = WavelengthBands(given.factor, given.low_freq_factor, given.high_freq_factor, context)
        case "yarn":
            scaling = Yarn(
                given.factor,
                context,
                given.get("beta_fast", 32.0),
                given.get("beta_slow", 1.0),
                given.get("truncate", True),
                given.get("attention_factor"),
            )
        case _:
            raise given.refuse("rope_type", "unknown rope type", "known: default, linear, llama3, yarn")
    return Rope(theta, int(dim * partial), scaling=scaling)


def end_tokens(c: Config) -> tuple[int, ...]:
    """End-of-sequence ids: a number, a list, or none."""
    given = c.get("eos_token_id")
    return () if given is None else tuple(given) if isinstance(given, list) else (given,)
