"""How references reach a paged cache: which rows belong to a sequence, where its entries lie, what a row may see."""

from __future__ import annotations

import torch
from torch import Tensor


def sequences(offsets: Tensor) -> list[tuple[int, int, int]]:
    """(sequence, first row, end row) of those that have rows."""
    at = offsets.tolist()
    return [(s, a, b) for s, (a, b) in enumerate(zip(at, at[1:], strict=False)) if b > a]


def write_rows(pool: Tensor, state: Tensor, layer: int, pages: Tensor, start: int, rows: Tensor) -> bool:
    """Writes rows [n, elements] at positions start.. of one sequence; False (and a fault) where a page is not live."""
    size = pool.shape[2]
    position = torch.arange(start, start + rows.shape[0], device=pool.device)
    page = pages[position // size].long()
    if bool(((page < 0) | (page >= state[0])).any()):
        state[1] += 1
        return False
    pool[page, layer, position % size] = rows.to(pool.dtype)
    return True


def read_rows(pool: Tensor, layer: int, pages: Tensor, length: int, first: int = 0) -> Tensor:
    """Entries first .. length - 1 of one sequence, [length - first, elements] float32."""
    size = pool.shape[2]
    page = first // size
    rows = pool[pages[page : -(-length // size)].long(), layer].flatten(0, 1)
    return rows[first - page * size : length - page * size].float()


def read_at(pool: Tensor, layer: int, pages: Tensor, positions: Tensor) -> Tensor:
    """Entries of one sequence at `positions` [...], [..., elements] float32; a position below 0 gives any entry."""
    at, size = positions.clamp(min=0).long(), pool.shape[2]
    return pool[pages[at // size].long(), layer, at % size].float()


def in_blocks(start: int, total: int, selected: Tensor, block: int) -> Tensor:
    """Which of `total` tokens lie in the blocks `selected` [rows, G, K] (-1: none), [G, total - start, total] bool."""
    count = -(-total // block)
    chosen = torch.zeros((*selected.shape[:2], count + 1), dtype=torch.bool, device=selected.device)
    chosen.scatter_(2, torch.where(selected < 0, count, selected).long(), True)
    return chosen[..., :count].repeat_interleave(block, 2)[..., :total].transpose(0, 1)


def visible(
    start: int, total: int, window: int, selected: Tensor | None, device: torch.device, first: int = 0
) -> Tensor:
    """Which of the tokens first .. total - 1 the rows at positions start.. may attend to, [total - start, total - first].

    Up to itself; of those the last `window` where it is above 0, and the `selected` [rows, K] where given (-1: none).
    """
    at = torch.arange(start, total, device=device)[:, None]
    key = torch.arange(first, total, device=device)[None]
    seen = key <= at
    if window > 0:
        seen &= key > at - window
    if selected is not None:
        chosen = torch.zeros((total - start, total + 1), dtype=torch.bool, device=device)
        chosen.scatter_(1, torch.where(selected < 0, total, selected).long(), True)
        seen &= chosen[:, first:total]
    return seen


def write_entries(pool: Tensor, state: Tensor, layer: int, pages: Tensor, start: int, rows: Tensor, rate: int) -> bool:
    """Of rows [n, elements] at positions start.., those that end a window of `rate` tokens, each into one entry.

    An entry fills the cache rows of as many of its window's last tokens as it takes, all in one page.
    """
    last = torch.arange(start, start + rows.shape[0], device=pool.device)
    ends = (last + 1) % rate == 0
    page, slot, places = _entry_places(pool, pages, last[ends], rows.shape[1])
    if bool(((page < 0) | (page >= state[0])).any()):
        state[1] += 1
        return False
    places[page, layer, slot] = rows[ends].unflatten(-1, places.shape[3:]).to(pool.dtype)
    return True


def read_entries(pool: Tensor, layer: int, pages: Tensor, numbers: Tensor, rate: int, elements: int) -> Tensor:
    """Entries of the windows `numbers` [...], [..., elements] float32; a number below 0 gives any entry."""
    last = (numbers.clamp(min=0).long() + 1) * rate - 1
    page, slot, places = _entry_places(pool, pages, last, elements)
    return places[page, layer, slot].flatten(-2).float()


def _entry_places(pool: Tensor, pages: Tensor, last: Tensor, elements: int) -> tuple[Tensor, Tensor, Tensor]:
    """(page, place in it) of the entries of windows whose last tokens are at `last`, and the pool seen as places."""
    size, kept = pool.shape[2], elements // pool.shape[3]
    return pages[last // size].long(), last % size // kept, pool.unflatten(2, (size // kept, kept))
