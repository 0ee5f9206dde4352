"""Where boxes and lines of a layered drawing go: layers by longest path, few crossings, long lines straight."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

Point = tuple[float, float]

GAP_X, GAP_Y, LINE = 22.0, 34.0, 16.0
_SWEEPS = 12
# how much a line wants to be straight, by how many of its ends are bends: what is long should not wind
_STRAIGHT = (1.0, 3.0, 12.0)


class Edge(msgspec.Struct, frozen=True):
    """A line from one box to another, by index; `weight` is how much it wants to be straight and short."""

    source: int
    target: int
    weight: float = 1.0


class Placed(msgspec.Struct, frozen=True):
    """Left upper corners of the boxes, the bends of each edge from bottom to top centre, and the size of it all."""

    corners: list[Point]
    routes: list[list[Point]]
    width: float
    height: float


class _Item:
    """A box, or a bend where an edge passes a layer."""

    def __init__(self, layer: int, width: float, height: float, is_bend: bool) -> None:
        self.layer, self.width, self.height, self.is_bend = layer, width, height, is_bend
        self.x = self.y = 0.0
        self.bends: list[_Item] = []  # of the same edge, where this is one
        self.above: list[tuple[_Item, float]] = []
        self.below: list[tuple[_Item, float]] = []


def place(sizes: Sequence[tuple[float, float]], edges: Sequence[Edge]) -> Placed:
    """Places boxes of `sizes` (width, height); edges must lead from lower to higher index. Deterministic."""
    levels = _levels(len(sizes), edges)
    items = [_Item(level, w, h, False) for level, (w, h) in zip(levels, sizes, strict=True)]
    layers: list[list[_Item]] = [[] for _ in range(max(levels, default=-1) + 1)]
    for item in items:
        layers[item.layer].append(item)
    chains = [_chain(e, items, layers) for e in edges]
    _order(layers)
    _spread(layers)
    heights = _stack(layers)
    left = min((i.x - i.width / 2 for layer in layers for i in layer), default=0.0)
    right = max((i.x + i.width / 2 for layer in layers for i in layer), default=0.0)
    for layer in layers:
        for item in layer:
            item.x -= left
    routes = [_route(chain, layers) for chain in chains]
    return Placed([(i.x - i.width / 2, i.y) for i in items], routes, right - left, heights)


def _levels(count: int, edges: Sequence[Edge]) -> list[int]:
    """Longest path from above; then what has more below than above it moves down to where it is used."""
    above: list[list[int]] = [[] for _ in range(count)]
    below: list[list[int]] = [[] for _ in range(count)]
    for e in edges:
        above[e.target].append(e.source)
        below[e.source].append(e.target)
    level = [0] * count
    for i in range(count):
        level[i] = max((level[a] + 1 for a in above[i]), default=0)
    for i in reversed(range(count)):
        if below[i] and len(below[i]) > len(above[i]):
            level[i] = min(level[b] for b in below[i]) - 1
    return level


def _chain(edge: Edge, items: list[_Item], layers: list[list[_Item]]) -> list[_Item]:
    """The edge as neighbours in adjacent layers, with a bend in each layer that it passes."""
    first, last = items[edge.source], items[edge.target]
    chain = [first]
    for level in range(first.layer + 1, last.layer):
        bend = _Item(level, LINE, 0.0, True)
        layers[level].append(bend)
        chain.append(bend)
    for bend in chain[1:]:
        bend.bends = chain[1:]
    chain.append(last)
    for upper, lower in zip(chain, chain[1:], strict=False):
        strength = edge.weight * _STRAIGHT[upper.is_bend + lower.is_bend]
        upper.below.append((lower, strength))
        lower.above.append((upper, strength))
    return chain


def _order(layers: list[list[_Item]]) -> None:
    """Sorts each layer by the mean place of its neighbours, down and up, and keeps the order with the fewest crossings."""
    best, fewest = [list(layer) for layer in layers], _crossings(layers)
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for layer in layers[1:] if down else layers[-2::-1]:
            place = {id(i): n for other in layers for n, i in enumerate(other)}
            near = {id(i): [place[id(o)] for o, _ in (i.above if down else i.below)] for i in layer}
            # what has no neighbour there keeps its place
            means = {id(i): sum(near[id(i)]) / len(near[id(i)]) if near[id(i)] else place[id(i)] for i in layer}
            layer.sort(key=lambda i, means=means: means[id(i)])  # type: ignore[misc]
        found = _crossings(layers)
        if found < fewest:
            best, fewest = [list(layer) for layer in layers], found
    for layer, order in zip(layers, best, strict=True):
        layer[:] = order


def _crossings(layers: list[list[_Item]]) -> int:
    total = 0
    for upper, lower in zip(layers, layers[1:], strict=False):
        place = {id(i): n for n, i in enumerate(lower)}
        ends = [end for i in upper for end in sorted(place[id(o)] for o, _ in i.below)]
        total += sum(a > b for n, a in enumerate(ends) for b in ends[n + 1 :])
    return total


def _spread(layers: list[list[_Item]]) -> None:
    """Centres, by turns below and above what they hang on, never nearer to their neighbours than the gap."""
    for layer in layers:
        _settle(layer, [0.0] * len(layer), [1.0] * len(layer))
    for sweep in range(4 * _SWEEPS):
        last = sweep >= 2 * _SWEEPS
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            wanted, weights = [], []
            for item in layer:
                near = item.above + item.below if last else item.above if sweep % 2 == 0 else item.below
                total = sum(w for _, w in near)
                if last and item.bends:
                    wanted.append(sum(b.x for b in item.bends) / len(item.bends))
                else:
                    wanted.append(sum(o.x * w for o, w in near) / total if total else item.x)
                weights.append(total or 0.1)
            _settle(layer, wanted, weights)


def _settle(layer: list[_Item], wanted: list[float], weights: list[float]) -> None:
    """The places nearest to `wanted` (least squares) that keep order and gaps: neighbours that would collide move as one."""
    offsets, at = [], 0.0
    for n, item in enumerate(layer):
        if n:
            before = layer[n - 1]
            gap = LINE / 2 if item.is_bend and before.is_bend else GAP_X
            at += (before.width + item.width) / 2 + gap
        offsets.append(at)
    groups: list[list[float]] = []  # [weighted sum, weight, how many]
    for want, offset, weight in zip(wanted, offsets, weights, strict=True):
        groups.append([(want - offset) * weight, weight, 1])
        while len(groups) > 1 and groups[-2][0] / groups[-2][1] > groups[-1][0] / groups[-1][1]:
            total, weight_sum, many = groups.pop()
            groups[-1] = [groups[-1][0] + total, groups[-1][1] + weight_sum, groups[-1][2] + many]
    index = 0
    for total, weight_sum, many in groups:
        for _ in range(int(many)):
            layer[index].x = total / weight_sum + offsets[index]
            index += 1


def _stack(layers: list[list[_Item]]) -> float:
    """Tops of the layers, each below the tallest box of the one above; returns the height of it all."""
    top = 0.0
    for layer in layers:
        tall = max((i.height for i in layer), default=0.0)
        for item in layer:
            item.y = top
            # a bend runs straight through its layer
            item.height = tall if item.is_bend else item.height
        top += tall + GAP_Y
    return max(0.0, top - GAP_Y)


def _route(chain: list[_Item], layers: list[list[_Item]]) -> list[Point]:
    points = [(_port(chain[0], chain[1], chain[0].below), chain[0].y + chain[0].height)]
    for bend in chain[1:-1]:
        points += [(bend.x, bend.y), (bend.x, bend.y + bend.height)]
    return [*points, (_port(chain[-1], chain[-2], chain[-1].above), chain[-1].y)]


def _port(item: _Item, other: _Item, near: list[tuple[_Item, float]]) -> float:
    """Where on its edge a box meets the line to `other`: lines in the order of where they come from."""
    order = sorted((o for o, _ in near), key=lambda o: o.x)
    room = min(18.0, item.width / (len(order) + 1))
    return item.x + (order.index(other) - (len(order) - 1) / 2) * room
