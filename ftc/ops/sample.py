"""Which token a row of logits becomes: penalties, mask, filters, and a draw that depends on seed and position alone.

## The exact function

All arithmetic on logits is float32; NaN counts as minus infinity, which no filter keeps and no draw takes. In this order:

1. `forced >= 0`: the token is `forced`; nothing else is looked at.
2. Penalties, over all tokens: where `seen` is set, a logit `l` becomes `l / repetition` if `l > 0`, else `l * repetition`; then
   `l -= frequency * count + presence * (count > 0)`.
3. Mask: a token is a candidate if bit `id % 32` of word `id // 32` of its mask row is set (no mask: all are)
   and its logit is above minus infinity. No candidate: the token is -1.
4. `temperature == 0`: the candidate with the greatest logit, the lowest id among equals.
5. Weights: `w = exp((l - l_max) / temperature)` with `l_max` the greatest candidate logit, so the best candidate has weight 1.
   Filters work on the *ranking*: candidates by descending logit, the lower id first among equals.
   top_k (when > 0) keeps the first `top_k`. top_p (when < 1) keeps the shortest prefix of what top_k left whose summed weight
   is >= top_p * (summed weight of all that top_k left), at least one. min_p (when > 0) keeps those with `w >= min_p`. Sums are
   float64.
6. Draw, over the kept tokens in order of their id: with `W` the float64 sum of their weights and `u` the uniform below, the
   token is the first one whose running float64 sum (itself included) is > u * W; if rounding leaves none, the last kept one.

The uniform is a counter-based hash of the 64 bits of `seed` and of `position`; integers are unsigned 64-bit and wrap:

    mix(z):  z += 0x9E3779B97F4A7C15;  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;  z = (z ^ z >> 27) * 0x94D049BB133111EB;
             z ^ z >> 31
    u(seed, position) = (mix(mix(seed) ^ position) >> 11) * 2**-53

`mix` is one output of the splitmix64 generator (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators").
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ftc.ops.op import Op

# contract: logits [S, V] float32 (a kernel may overwrite them); mask [S, ceil(V/32)] int32 or None; forced [S] int32, -1 is
# none; top_k [S] int32; temperature, top_p, min_p, presence, frequency, repetition [S] float32; seed, position [S] int64;
# counts [S, V] int32 or None, how often each token was generated; seen [S, V] uint8 or None, whether it occurs in prompt or
# output -> tokens [S] int32, -1 where every token is masked out.

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def uniform(seed: Tensor, position: Tensor) -> Tensor:
    """The uniforms [S] float64 in [0, 1) of int64 seeds [S] and positions [S], as the module's docstring defines them."""
    seeds, positions = (t.cpu().numpy().view(np.uint64) for t in (seed, position))
    bits = _mix(_mix(seeds) ^ positions)
    return torch.from_numpy((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53).to(seed.device)


def _reference(
    logits: Tensor,
    mask: Tensor | None,
    forced: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    presence: Tensor,
    frequency: Tensor,
    repetition: Tensor,
    seed: Tensor,
    position: Tensor,
    counts: Tensor | None,
    seen: Tensor | None,
) -> Tensor:
    scores = logits.float()
    if seen is not None:
        factor = repetition[:, None]
        scores = torch.where(seen.bool(), torch.where(scores > 0, scores / factor, scores * factor), scores)
    if counts is not None:
        scores = scores - (frequency[:, None] * counts + presence[:, None] * (counts > 0))
    allowed = scores > -torch.inf
    if mask is not None:
        allowed = allowed & _bits(mask, logits.shape[1])
    scores = scores.masked_fill(~allowed, -torch.inf)

    greedy = temperature == 0
    best = scores.amax(-1, keepdim=True)
    scaled = (scores - best) / torch.where(greedy, torch.ones_like(temperature), temperature)[:, None]
    # Rows without a candidate are NaN here; their token is settled below.
    scaled = scaled.masked_fill(~allowed, -torch.inf)
    drawn = _draw(_keep(scores, scaled, top_k, top_p, min_p), scaled, uniform(seed, position))

    tokens = torch.where(greedy, scores.argmax(-1), drawn)
    tokens = torch.where(allowed.any(-1), tokens, torch.full_like(tokens, -1))
    return torch.where(forced >= 0, forced, tokens.to(torch.int32))


def _mix(z: np.ndarray) -> np.ndarray:
    z = z + _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * _FACTORS[0]
    z = (z ^ (z >> np.uint64(27))) * _FACTORS[1]
    return z ^ (z >> np.uint64(31))


def _bits(mask: Tensor, vocab: int) -> Tensor:
    """The packed rows as [S, vocab] bool."""
    shifts = torch.arange(32, dtype=torch.int32, device=mask.device)
    return (mask[:, :, None] >> shifts & 1).flatten(1)[:, :vocab].bool()


def _keep(scores: Tensor, scaled: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Which tokens the filters leave, [S, V] bool."""
    order = torch.sort(scores, dim=-1, descending=True, stable=True).indices
    ranked = scaled.gather(-1, order)
    ranks = torch.arange(scaled.shape[1], device=scaled.device)
    kept = torch.isfinite(ranked)
    kept &= (top_k[:, None] <= 0) | (ranks < top_k[:, None])
    weights = ranked.exp().double().masked_fill(~kept, 0.0)
    before = weights.cumsum(-1) - weights
    kept &= (top_p[:, None] >= 1) | (ranks == 0) | (before < top_p[:, None].double() * weights.sum(-1, keepdim=True))
    kept &= weights >= min_p[:, None].double()
    return torch.zeros_like(kept).scatter(-1, order, kept)


def _draw(kept: Tensor, scaled: Tensor, uniforms: Tensor) -> Tensor:
    """The drawn ids [S] int64 over the kept tokens."""
    sums = scaled.exp().double().masked_fill(~kept, 0.0).cumsum(-1)
    passed = kept & (sums > uniforms[:, None] * sums[:, -1:])
    last = kept.shape[1] - 1 - kept.flip(-1).int().argmax(-1)
    return torch.where(passed.any(-1), passed.int().argmax(-1), last)


def _fake(logits: Tensor, *_: object) -> Tensor:
    return logits.new_empty(logits.shape[0], dtype=torch.int32)


sample = Op(
    "sample",
    "(Tensor logits, Tensor? mask, Tensor forced, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p,"
    " Tensor presence, Tensor frequency, Tensor repetition, Tensor seed, Tensor position, Tensor? counts, Tensor? seen)"
    " -> Tensor",
    _reference,
    _fake,
)
