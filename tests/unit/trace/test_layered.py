"""Placing boxes and lines: nothing overlaps, lines go down and around boxes, and the drawing does not change by itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ftc.trace.layered import Edge, place


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[tuple[float, float]], list[Edge]]:
    count = draw(st.integers(1, 24))
    sizes = [(draw(st.floats(10, 300)), draw(st.floats(10, 90))) for _ in range(count)]
    pairs = draw(st.sets(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=40))
    return sizes, [Edge(a, b) for a, b in sorted(pairs) if a < b]


@given(graphs())
def test_boxes_do_not_overlap_and_lie_inside(graph: tuple[list[tuple[float, float]], list[Edge]]) -> None:
    sizes, edges = graph
    placed = place(sizes, edges)
    boxes = [(x, y, x + w, y + h) for (x, y), (w, h) in zip(placed.corners, sizes, strict=True)]
    for i, (left, top, right, bottom) in enumerate(boxes):
        assert left >= -1e-6 and right <= placed.width + 1e-6 and top >= 0 and bottom <= placed.height + 1e-6
        for other in boxes[i + 1 :]:
            apart = other[0] >= right or left >= other[2] or other[1] >= bottom or top >= other[3]
            assert apart, (boxes[i], other)


@given(graphs())
def test_lines_lead_down_from_box_to_box_and_cross_none(graph: tuple[list[tuple[float, float]], list[Edge]]) -> None:
    sizes, edges = graph
    placed = place(sizes, edges)
    for edge, route in zip(edges, placed.routes, strict=True):
        (ax, ay), (aw, ah) = placed.corners[edge.source], sizes[edge.source]
        (bx, by), (bw, _) = placed.corners[edge.target], sizes[edge.target]
        assert ax <= route[0][0] <= ax + aw and abs(route[0][1] - ay - ah) < 1e-6
        assert bx <= route[-1][0] <= bx + bw and abs(route[-1][1] - by) < 1e-6
        assert all(lower[1] >= upper[1] for upper, lower in zip(route, route[1:], strict=False))
        # where it passes a layer it runs straight down, and no box of that layer is in its way
        for x, y in route[1:-1]:
            for (left, top), (w, h) in zip(placed.corners, sizes, strict=True):
                assert not (left < x < left + w and top < y < top + h)


def test_crossings_that_can_be_avoided_are() -> None:
    sizes = [(50.0, 20.0)] * 6
    placed = place(sizes, [Edge(0, 5), Edge(1, 4), Edge(2, 3)])
    above, below = ([placed.corners[i][0] for i in side] for side in ((0, 1, 2), (5, 4, 3)))
    assert [sorted(above).index(x) for x in above] == [sorted(below).index(x) for x in below]


def test_a_heavy_chain_is_a_straight_line() -> None:
    sizes = [(60.0, 20.0), *[(200.0, 20.0)] * 6, (60.0, 20.0)]
    edges = [Edge(0, 7, 40.0), *(Edge(i, i + 1) for i in range(7))]
    (route, *_) = place(sizes, edges).routes
    bends = [x for x, _ in route[1:-1]]
    assert max(bends) - min(bends) < 4
    assert place(sizes, edges) == place(sizes, edges)


def test_what_has_no_input_stands_above_its_first_use() -> None:
    sizes = [(50.0, 20.0)] * 5
    tops = [y for _, y in place(sizes, [Edge(0, 1), Edge(1, 2), Edge(2, 4), Edge(3, 4)]).corners]
    assert tops[3] == tops[2]
