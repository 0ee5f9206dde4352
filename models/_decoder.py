"""What most decoders have in common: the usual keys of attention, and the model around a list of blocks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ftc.spec import Attention, Block, Chat, Config, Head, JsonInTags, Model, Norm, Reasoning, Skip, WeightRules, XmlFunctions
from ftc_models._config import end_tokens, head_dim, rope

CHATML = Chat(stop=("<|im_end|>",), reasoning=Reasoning(), tools=(XmlFunctions(), JsonInTags()))


def gqa(c: Config, **changes: Any) -> Attention:
    """Grouped-query attention from the usual keys; `changes` are laid over its fields."""
    bias = c.get("attention_bias", False)
    fields: dict[str, Any] = dict(
        heads=c.num_attention_heads,
        kv_heads=c.get("num_key_value_heads", c.num_attention_heads),
        head_dim=head_dim(c),
        qkv_bias=bias,
        out_bias=bias,
    )
    if "rope" not in changes:
        fields["rope"] = rope(c)
    return Attention(**(fields | changes))


def decoder(
    c: Config,
    name: str,
    blocks: Iterable[Block],
    norm: Norm,
    rules: dict,
    *,
    skip: tuple[Skip, ...] = (),
    prefixes: tuple[str, ...] = ("model.",),
    tied: bool = False,
    **fields: Any,
) -> Model:
    """The model around `blocks`; `norm` is the final one, `tied` what a file means that does not say."""
    fields.setdefault("head", Head(tied=c.get("tie_word_embeddings", tied)))
    return Model(
        name=name,
        hidden=c.hidden_size,
        vocab=c.vocab_size,
        context_tokens=fields.pop("context_tokens", None) or c.max_position_embeddings,
        blocks=tuple(blocks),
        final_norm=norm,
        weights=WeightRules(rules, skip=skip, prefixes=prefixes),
        end_tokens=end_tokens(c),
        **fields,
    )
