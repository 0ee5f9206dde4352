"""What a source expression copies from where to where: strided views of stored tensors, placed in the result."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from ftc.errors import CheckpointError
from ftc.spec.weights import Concat, Reshape, Slice, Source, Stack, Tensor, Transpose, bind

Shape = tuple[int, ...]


class View(msgspec.Struct, frozen=True):
    """A strided look at a contiguous array; strides and offset count elements."""

    shape: Shape
    strides: Shape
    offset: int = 0

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def span(self) -> int:
        """Elements from the first to the last one seen, both included; 0 for an empty view."""
        return sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)) + 1 if self.elements else 0

    def sliced(self, dim: int, start: int, size: int, step: int = 1) -> View:
        """`size` entries of `dim` from `start`, every `step`-th."""
        shape = (*self.shape[:dim], size, *self.shape[dim + 1 :])
        strides = (*self.strides[:dim], self.strides[dim] * step, *self.strides[dim + 1 :])
        return View(shape, strides, self.offset + start * self.strides[dim])

    def permuted(self, order: Sequence[int]) -> View:
        return View(tuple(self.shape[k] for k in order), tuple(self.strides[k] for k in order), self.offset)

    def reshaped(self, shape: Shape) -> View | None:
        """The same elements in row-major order under another shape, or None where that takes a copy."""
        if self.strides != contiguous(self.shape) and self.elements:
            return None
        return View(shape, contiguous(shape), self.offset)


def contiguous(shape: Shape) -> Shape:
    """Row-major strides."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def whole(shape: Shape) -> View:
    return View(shape, contiguous(shape))


class Piece(msgspec.Struct, frozen=True):
    """`view` of `leaf` fills the box of its own shape at `at`; a leaf is a stored tensor, or a result made first."""

    leaf: str | Pieces
    view: View
    at: Shape


class Pieces(msgspec.Struct, frozen=True):
    """Boxes that together fill an array of `shape` once."""

    shape: Shape
    items: tuple[Piece, ...]


def expand(source: Source, shapes: Mapping[str, Shape], experts: int) -> Pieces:
    """The pieces of a bound, settled source over tensors of the given shapes; `experts` is the length of every Stack.

    Raises CheckpointError naming the tensor where shapes do not go together.
    """
    match source:
        case Tensor(name=name):
            shape = shapes[name]
            return Pieces(shape, (Piece(name, whole(shape), (0,) * len(shape)),))
        case Concat(parts=parts, dim=dim):
            return _joined([expand(p, shapes, experts) for p in parts], dim)
        case Stack(part=part):
            own = [expand(bind(part, "{p}", None, e), shapes, experts) for e in range(experts)]
            return _joined([_lifted(p) for p in own], 0)
        case Slice(part=part, dim=dim, start=start, size=size, step=step):
            return _sliced(expand(part, shapes, experts), dim, start, size, step)
        case Transpose(part=part):
            return _transposed(expand(part, shapes, experts))
        case Reshape(part=part, shape=shape):
            return _reshaped(expand(part, shapes, experts), shape)
    raise TypeError(f"not a settled source expression: {source!r}")


def tensor_of(pieces: Pieces) -> str:
    """The name of the first stored tensor, for messages."""
    leaf = pieces.items[0].leaf
    return leaf if isinstance(leaf, str) else tensor_of(leaf)


def _joined(parts: list[Pieces], dim: int) -> Pieces:
    first = parts[0].shape
    items: list[Piece] = []
    at = 0
    for part in parts:
        shape = part.shape
        if (
            len(shape) != len(first)
            or not 0 <= dim < len(first)
            or any(a != b for k, (a, b) in enumerate(zip(shape, first, strict=True)) if k != dim)
        ):
            raise CheckpointError(
                f"cannot be joined along dimension {dim} with {tensor_of(parts[0])} of shape {list(first)}",
                where=tensor_of(part), value=list(shape),
            )  # fmt: skip
        items += [_moved(p, dim, at) for p in part.items] if at else part.items
        at += shape[dim]
    return Pieces((*first[:dim], at, *first[dim + 1 :]), tuple(items))


def _moved(piece: Piece, dim: int, by: int) -> Piece:
    at = (*piece.at[:dim], piece.at[dim] + by, *piece.at[dim + 1 :])
    return Piece(piece.leaf, piece.view, at)


def _lifted(part: Pieces) -> Pieces:
    items = tuple(
        Piece(p.leaf, View((1, *p.view.shape), (p.view.elements, *p.view.strides), p.view.offset), (0, *p.at))
        for p in part.items
    )
    return Pieces((1, *part.shape), items)


def _sliced(part: Pieces, dim: int, start: int, size: int, step: int) -> Pieces:
    shape = part.shape
    if not 0 <= dim < len(shape) or start < 0 or size < 1 or step < 1 or start + (size - 1) * step >= shape[dim]:
        raise CheckpointError(
            f"too small for {size} entries of dimension {dim} from {start}", where=tensor_of(part), value=list(shape)
        )
    items = []
    for piece in part.items:
        begin, length = piece.at[dim], piece.view.shape[dim]
        # Entry t of the result is entry start + t * step of the part: which of them lie in this piece?
        first = max(0, -(-(begin - start) // step))
        last = min(size, -(-(begin + length - start) // step))
        if first < last:
            view = piece.view.sliced(dim, start + first * step - begin, last - first, step)
            items.append(Piece(piece.leaf, view, (*piece.at[:dim], first, *piece.at[dim + 1 :])))
    return Pieces((*shape[:dim], size, *shape[dim + 1 :]), tuple(items))


def _transposed(part: Pieces) -> Pieces:
    n = len(part.shape)
    if n < 2:
        raise CheckpointError("has too few dimensions to be transposed", where=tensor_of(part), value=list(part.shape))
    order = (*range(n - 2), n - 1, n - 2)
    items = tuple(Piece(p.leaf, p.view.permuted(order), tuple(p.at[k] for k in order)) for p in part.items)
    return Pieces(tuple(part.shape[k] for k in order), items)


def _reshaped(part: Pieces, shape: Shape) -> Pieces:
    if math.prod(shape) != math.prod(part.shape):
        raise CheckpointError(f"cannot take the shape {list(shape)}", where=tensor_of(part), value=list(part.shape))
    zero = (0,) * len(shape)
    if len(part.items) == 1 and part.items[0].view.shape == part.shape:
        view = part.items[0].view.reshaped(shape)
        if view is not None:
            return Pieces(shape, (Piece(part.items[0].leaf, view, zero),))
    return Pieces(shape, (Piece(part, whole(shape), zero),))
