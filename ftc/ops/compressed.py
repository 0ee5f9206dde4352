"""Compressed attention: windows of tokens pooled into entries, and attention to recent tokens and entries together."""

from __future__ import annotations

import torch
from torch import Tensor

from ftc.ops.op import Op
from ftc.ops.paged import read_entries, read_rows, sequences, visible, write_entries, write_rows
from ftc.ops.recurrent import slots_of

# Entry w of a sequence summarises its tokens w * rate .. (w + 1) * rate - 1 and exists once they are there. It lies in the
# cache rows of the window's last tokens: see ops.paged.write_entries.


def _pool_reference(
    kv: Tensor,
    gate: Tensor,
    places: Tensor,
    pool: Tensor,
    state: Tensor,
    ordinal: Tensor,
    state_in: Tensor,
    state_out: Tensor,
    offsets: Tensor,
    lengths: Tensor,
    overlap: bool,
) -> Tensor:
    layer, (rate, channels) = int(ordinal), places.shape
    held, dim = pool.shape[2], channels // 2 if overlap else channels
    out = torch.zeros((kv.shape[0], dim), dtype=torch.float32, device=kv.device)
    for s, a, b in sequences(offsets):
        slots = slots_of(state, state_in, state_out, s)
        if slots is None:
            out[a:b] = float("nan")
            continue
        source, target = slots
        old = pool[source, layer] if source >= 0 else torch.zeros_like(pool[0, layer])
        line = torch.cat((old, torch.cat((kv[a:b], gate[a:b]), -1).to(pool.dtype)))
        if target >= 0:
            pool[target, layer] = line[-held:]
        start = int(lengths[s])
        for row in range(a, b):
            at = start + row - a
            if (at + 1) % rate:
                continue
            end = held + row - a + 1  # rows of `line` up to this token; the window's are the last `rate` of them
            values, gates = line[end - rate : end].float().split(channels, -1)
            gates = gates + places
            if overlap:
                before, early = line[end - 2 * rate : end - rate].float().split(channels, -1)
                early = early + places if at >= rate else torch.full_like(early, float("-inf"))
                values = torch.cat((before[:, :dim], values[:, dim:]))
                gates = torch.cat((early[:, :dim], gates[:, dim:]))
            out[row] = (values * gates.softmax(0)).sum(0)
    return out


def _pool_fake(kv: Tensor, gate: Tensor, places: Tensor, *rest: object) -> Tensor:
    return kv.new_empty((kv.shape[0], places.shape[1] // (2 if rest[-1] else 1)), dtype=torch.float32)


# contract: kv, gate [N, C]; places [rate, C] float32; pool [slots, layers, held, 2 C], [kv | gate] of the last `held` tokens,
# newest last -> [N, D] float32: in the row of a window's last token its entry, in other rows zeros.
# C is D, or 2 D with `overlap`: [for the next window | for the own one]. Slots as in ops.recurrent.
pool_windows = Op(
    "pool_windows",
    "(Tensor kv, Tensor gate, Tensor places, Tensor pool, Tensor(a!) state, Tensor ordinal, Tensor state_in,"
    " Tensor state_out, Tensor offsets, Tensor lengths, bool overlap) -> Tensor",
    _pool_reference,
    _pool_fake,
)


def _attend(q: Tensor, parts: list[tuple[Tensor, Tensor]], scale: float, sinks: Tensor) -> Tensor:
    """q [n, nh, d] over `parts`: keys that are the values too, [t, d] or [n, t, d] of each row's own, and seen [n, t]."""
    wide, forms = q.float(), ["td" if keys.dim() == 2 else "ntd" for keys, _ in parts]
    logits = [
        (torch.einsum(f"nhd,{form}->nht", wide, keys) * scale).masked_fill(~seen.unsqueeze(1), float("-inf"))
        for form, (keys, seen) in zip(forms, parts, strict=True)
    ]
    sink = sinks.float().view(1, -1, 1).expand(q.shape[0], -1, 1)
    weights = torch.cat((*logits, sink), -1).softmax(-1).split([*(p.shape[-1] for p in logits), 1], -1)
    values = [
        torch.einsum(f"nht,{form}->nhd", share, keys) for form, share, (keys, _) in zip(forms, weights, parts, strict=False)
    ]
    return torch.stack(values).sum(0).to(q.dtype)


def _recent(
    q: Tensor, pool: Tensor, layer: int, pages: Tensor, start: int, total: int, window: int
) -> tuple[Tensor, Tensor]:
    """The tokens that any of the rows at positions start.. can see in its window, and which of them each row sees."""
    first = max(0, start - window + 1)
    return read_rows(pool, layer, pages, total, first), visible(start, total, window, None, q.device, first)


def _window_reference(
    q: Tensor,
    shared: Tensor,
    pool: Tensor,
    state: Tensor,
    ordinal: Tensor,
    pages: Tensor,
    offsets: Tensor,
    lengths: Tensor,
    scale: float,
    window: int,
    sinks: Tensor,
) -> Tensor:
    layer, out = int(ordinal), torch.empty_like(q)
    for s, a, b in sequences(offsets):
        start, total = int(lengths[s]), int(lengths[s]) + b - a
        if not write_rows(pool, state, layer, pages[s], start, shared[a:b]):
            out[a:b] = float("nan")
            continue
        out[a:b] = _attend(q[a:b], [_recent(q, pool, layer, pages[s], start, total, window)], scale, sinks)
    return out


def _like_q(q: Tensor, *_: object) -> Tensor:
    return torch.empty_like(q)


# contract: q [N, nh, D], shared [N, D]: key and value of each new token -> [N, nh, D] of q's type. pool [pages, layers,
# page_tokens, D]; the rest as in ops.attention. sinks [nh] float32: one more logit in the denominator.
window_attention = Op(
    "window_attention",
    "(Tensor q, Tensor shared, Tensor pool, Tensor(a!) state, Tensor ordinal, Tensor pages, Tensor offsets, Tensor lengths,"
    " float scale, int window, Tensor sinks) -> Tensor",
    _window_reference,
    _like_q,
)


def _compressed_reference(
    q: Tensor,
    shared: Tensor,
    entry: Tensor,
    pool: Tensor,
    state: Tensor,
    ordinal: Tensor,
    entry_pool: Tensor,
    entry_state: Tensor,
    entry_ordinal: Tensor,
    pages: Tensor,
    offsets: Tensor,
    lengths: Tensor,
    scale: float,
    window: int,
    rate: int,
    sinks: Tensor,
    chosen: Tensor | None,
) -> Tensor:
    layer, entry_layer, out = int(ordinal), int(entry_ordinal), torch.empty_like(q)
    for s, a, b in sequences(offsets):
        start, total = int(lengths[s]), int(lengths[s]) + b - a
        written = write_rows(pool, state, layer, pages[s], start, shared[a:b])
        if not (write_entries(entry_pool, entry_state, entry_layer, pages[s], start, entry[a:b], rate) and written):
            out[a:b] = float("nan")
            continue
        ended = (torch.arange(start, total, device=q.device)[:, None] + 1) // rate
        numbers = torch.arange(total // rate, device=q.device)
        if chosen is None or chosen[a:b].numel() >= len(numbers):
            seen = numbers < ended
            if chosen is not None:
                picked = torch.zeros((b - a, len(numbers) + 1), dtype=torch.bool, device=q.device)
                picked.scatter_(1, torch.where(chosen[a:b] < 0, len(numbers), chosen[a:b]).long(), True)
                seen &= picked[:, :-1]
        else:  # few rows: only what they chose is read
            numbers = chosen[a:b]
            seen = (numbers >= 0) & (numbers < ended)
        entries = read_entries(entry_pool, entry_layer, pages[s], numbers, rate, q.shape[2])
        recent = _recent(q, pool, layer, pages[s], start, total, window)
        out[a:b] = _attend(q[a:b], [recent, (entries, seen)], scale, sinks)
    return out


# contract: as window_attention, and entry [N, D]: rows of a window's last token are written as its entry; a row attends to
# the last `window` tokens and to entries whose window has ended, of those the `chosen` [N, K] int32 (-1: none) where given.
# entry_pool [pages, layers, page_tokens, D / k], k the rows that an entry takes.
compressed_attention = Op(
    "compressed_attention",
    "(Tensor q, Tensor shared, Tensor entry, Tensor pool, Tensor(a!) state, Tensor ordinal, Tensor entry_pool,"
    " Tensor(b!) entry_state, Tensor entry_ordinal, Tensor pages, Tensor offsets, Tensor lengths, float scale, int window,"
    " int rate, Tensor sinks, Tensor? chosen) -> Tensor",
    _compressed_reference,
    _like_q,
)


def _choose_reference(
    q: Tensor,
    entry: Tensor,
    weights: Tensor,
    pool: Tensor,
    state: Tensor,
    ordinal: Tensor,
    pages: Tensor,
    offsets: Tensor,
    lengths: Tensor,
    top_k: int,
    rate: int,
) -> Tensor:
    layer = int(ordinal)
    out = torch.full((q.shape[0], top_k), -1, dtype=torch.int32, device=q.device)
    for s, a, b in sequences(offsets):
        start, total = int(lengths[s]), int(lengths[s]) + b - a
        if not write_entries(pool, state, layer, pages[s], start, entry[a:b], rate):
            continue
        numbers = torch.arange(total // rate, device=q.device)
        entries = read_entries(pool, layer, pages[s], numbers, rate, q.shape[2])
        score = torch.einsum("nhd,td->nht", q[a:b].float(), entries).relu()
        score = torch.einsum("nht,nh->nt", score, weights[a:b].float())
        ended = (torch.arange(start, total, device=q.device)[:, None] + 1) // rate
        best = score.masked_fill(numbers >= ended, float("-inf")).topk(min(top_k, len(numbers)), -1)
        out[a:b, : best.indices.shape[1]] = torch.where(best.values == float("-inf"), -1, best.indices).int()
    return out


def _choose_fake(q: Tensor, *rest: object) -> Tensor:
    top_k = rest[-2]
    assert isinstance(top_k, int)
    return q.new_empty((q.shape[0], top_k), dtype=torch.int32)


# contract: as choose_tokens, but of entries, one for every `rate` tokens -> their numbers [N, top_k] int32, -1: none.
choose_entries = Op(
    "choose_entries",
    "(Tensor q, Tensor entry, Tensor weights, Tensor pool, Tensor(a!) state, Tensor ordinal, Tensor pages, Tensor offsets,"
    " Tensor lengths, int top_k, int rate) -> Tensor",
    _choose_reference,
    _choose_fake,
)
