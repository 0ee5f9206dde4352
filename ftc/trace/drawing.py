"""How a region's graph is drawn: chains of pointwise nodes as one box of rows, inputs as chips where they are used, as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

import msgspec

from ftc.trace.layered import Edge, Placed, Point, place
from ftc.trace.picture import Node, Picture

# sizes in pixels; a character of the monospaced font is 0.602 em wide in the widest of the usual ones
CHAR, SMALL_CHAR = 6.65, 6.05
ROW, CHIP, PAD = 21.0, 18.0, 10.0
WORD_WIDTH = 236.0
MARGIN = 28.0
# the way of the carry through a region is its backbone: it wants to be a straight line
BACKBONE = 40.0


class Line(msgspec.Struct, frozen=True):
    """A node within its box: chips line by line, each with its offset from the left, and its height."""

    node: Node
    chips: tuple[tuple[tuple[Node, float], ...], ...]
    width: float
    height: float


class Box(msgspec.Struct, frozen=True):
    """One or more lines that follow each other and have no other neighbours in between."""

    lines: tuple[Line, ...]

    @property
    def width(self) -> float:
        return max(line.width for line in self.lines)

    @property
    def height(self) -> float:
        return sum(line.height for line in self.lines)


def draw(picture: Picture) -> str:
    """The region as one `<svg>`: each node a `<g data-n="NAME">`, each line between boxes a path from `data-a` to `data-b`."""
    by_name = {n.name: n for n in picture.nodes}
    boxes = boxes_of(picture)
    ends = [(box.lines[0].node, box.lines[-1].node) for box in boxes]
    at = {last.name: i for i, (_, last) in enumerate(ends)}
    backbone = set(_backbone(picture))
    edges, names = [], []
    for i, (first, _) in enumerate(ends):
        for name in dict.fromkeys(first.inputs):
            if not by_name[name].is_chip:
                is_backbone = name in backbone and first.name in backbone
                edges.append(Edge(at[name], i, BACKBONE if is_backbone else 1.0))
                names.append((name, first.name, is_backbone))
    placed = place([(box.width, box.height) for box in boxes], edges)
    return "".join(_svg(boxes, placed, names))


def boxes_of(picture: Picture) -> list[Box]:
    """All nodes but chips, in program order of the first of each box."""
    by_name = {n.name: n for n in picture.nodes}
    users: dict[str, list[str]] = {n.name: [] for n in picture.nodes}
    for n in picture.nodes:
        for name in dict.fromkeys(n.inputs):
            users[name].append(n.name)
    stacks: list[list[Node]] = []
    stack_of: dict[str, list[Node]] = {}
    for n in picture.nodes:
        if n.is_chip:
            continue
        flows = [i for i in dict.fromkeys(n.inputs) if not by_name[i].is_chip]
        before = by_name[flows[0]] if len(flows) == 1 else None
        if before is not None and n.role == before.role == "aten" and users[before.name] == [n.name]:
            stack = stack_of[before.name]
        else:
            stack = []
            stacks.append(stack)
        stack.append(n)
        stack_of[n.name] = stack
    return [Box(tuple(_line(n, by_name) for n in stack)) for stack in stacks]


def _backbone(picture: Picture) -> Iterator[str]:
    """The nodes on the shortest way from the first carry to what the region returns."""
    came: dict[str, str | None] = {}
    by_name = {n.name: n for n in picture.nodes}
    users: dict[str, list[str]] = {n.name: [] for n in picture.nodes}
    for n in picture.nodes:
        for name in n.inputs:
            users[name].append(n.name)
    queue = [n.name for n in picture.nodes if n.role == "carry"][:1]
    came |= dict.fromkeys(queue)
    for name in queue:
        if by_name[name].role == "output":
            step: str | None = name
            while step is not None:
                yield step
                step = came[step]
            return
        for user in users[name]:
            if user not in came:
                came[user] = name
                queue.append(user)


def _line(node: Node, by_name: dict[str, Node]) -> Line:
    inputs = [by_name[i] for i in dict.fromkeys(node.inputs) if by_name[i].is_chip]
    label, kind = len(node.label) * CHAR, len(node.type) * SMALL_CHAR
    if node.role not in ("word", "kernel"):
        left, row = PAD + label + 8, []
        for chip in inputs:
            row.append((chip, left))
            left += _chip_width(chip) + 4
        return Line(node, (tuple(row),), left + 12 + kind + PAD, ROW)
    width = max(WORD_WIDTH, 2 * PAD + label + 24 + kind)
    rows: list[tuple[tuple[Node, float], ...]] = []
    row, left = [], PAD
    for chip in inputs:
        if row and left + _chip_width(chip) > width - PAD:
            rows.append(tuple(row))
            row, left = [], PAD
        row.append((chip, left))
        left += _chip_width(chip) + 4
    rows += [tuple(row)] if row else []
    width = max([width, *(r[-1][1] + _chip_width(r[-1][0]) + PAD for r in rows)])
    return Line(node, tuple(rows), width, 2 * ROW + len(rows) * (CHIP + 3) + 4)


def _chip_width(node: Node) -> float:
    return 20 + len(node.label) * SMALL_CHAR


def _svg(boxes: Sequence[Box], placed: Placed, names: Sequence[tuple[str, str, bool]]) -> Iterator[str]:
    width, height = placed.width + 2 * MARGIN, placed.height + 2 * MARGIN
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    # smaller than 0.72 of its size the text cannot be read: then it is scrolled
    yield f'<svg {size} role="group" style="--least: {0.72 * width:.0f}px">'
    for (a, b, is_backbone), route in zip(names, placed.routes, strict=True):
        kind = "e backbone" if is_backbone else "e"
        yield f'<path class="{kind}" data-a="{escape(a)}" data-b="{escape(b)}" d="{_curve(route)}"/>'
    for box, (x, y) in zip(boxes, placed.corners, strict=True):
        yield from _box(box, x + MARGIN, y + MARGIN)
    yield "</svg>"


def _curve(points: Sequence[Point]) -> str:
    """A smooth line that leaves and arrives vertically."""
    shifted = [(x + MARGIN, y + MARGIN) for x, y in points]
    text = f"M{shifted[0][0]:.1f} {shifted[0][1]:.1f}"
    for (x0, y0), (x1, y1) in zip(shifted, shifted[1:], strict=False):
        if abs(x0 - x1) < 0.5:
            text += f"L{x1:.1f} {y1:.1f}"
        else:
            middle = (y0 + y1) / 2
            text += f"C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}"
    return text


def _box(box: Box, x: float, y: float) -> Iterator[str]:
    role = box.lines[0].node.role
    yield f'<g class="box {role}" transform="translate({x:.1f} {y:.1f})">'
    yield f'<rect class="frame" width="{box.width:.1f}" height="{box.height:.1f}" rx="{_radius(role)}"/>'
    top = 0.0
    for line in box.lines:
        yield from _row(line, top, box.width)
        top += line.height
    yield "</g>"


def _radius(role: str) -> int:
    return 14 if role in ("carry", "output") else 6


def _row(line: Line, top: float, width: float) -> Iterator[str]:
    node, is_word = line.node, line.node.role in ("word", "kernel")
    yield _group(node, f' transform="translate(0 {top:.1f})"' if top else "")
    yield f'<rect class="hit" width="{width:.1f}" height="{line.height:.1f}" rx="{_radius(node.role)}"/>'
    baseline = 15.0
    yield f'<text class="label" x="{PAD}" y="{baseline}">{escape(node.label)}</text>'
    yield f'<text class="type" x="{width - PAD:.1f}" y="{baseline}">{escape(node.type)}</text>'
    if is_word:
        notes = " · ".join(part for part in (node.format, f"{node.kernel} kernel" if node.kernel else "no kernel yet") if part)
        yield f'<text class="note" x="{PAD}" y="{baseline + ROW - 3:.1f}">{escape(notes)}</text>'
    yield "</g>"
    chip_top = top + (2 * ROW - 2 if is_word else (ROW - CHIP) / 2)
    for row in line.chips:
        for chip, left in row:
            yield _group(chip, f' transform="translate({left:.1f} {chip_top:.1f})"', f"chip {chip.role}")
            yield f'<rect class="hit" width="{_chip_width(chip):.1f}" height="{CHIP}" rx="9"/><circle cx="9" cy="9" r="3.2"/>'
            yield f'<text x="16" y="12.6">{escape(chip.label)}</text></g>'
        chip_top += CHIP + 3


def _group(node: Node, more: str, kind: str = "n") -> str:
    parts = (node.op, node.label, node.value, node.format, node.kernel and f"{node.kernel} kernel")
    spoken = escape(", ".join(p for p in parts if p), quote=True)
    name = escape(node.name, quote=True)
    return f'<g class="{kind}" data-n="{name}" role="button" tabindex="-1" aria-label="{spoken}"{more}><title>{spoken}</title>'
