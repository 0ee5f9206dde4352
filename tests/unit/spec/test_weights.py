"""Source expressions before any checkpoint is there: filling marks in, listing names, choosing a layout."""

from __future__ import annotations

from ftc.spec import concat, either, reshape, rows, stack, tensor, transpose
from ftc.spec.weights import Either, bind, names, settle

EACH, WHOLE = stack("{p}l.{i}.e.{e}.up"), rows("{p}l.{i}.up", 0, 4, dim=1)
RULE = transpose(either(EACH, WHOLE))


def test_bind_fills_the_marks_everywhere() -> None:
    rule = concat(reshape("{p}a.{i}", 2, 2), transpose(rows("{p}b.{i}", 0, 2)), either("{p}c.{i}", "d"))
    assert list(names(bind(rule, "x.", 7), 0)) == ["x.a.7", "x.b.7", "x.c.7", "d"]
    assert list(names(bind(rule, "", None), 0)) == ["a.{i}", "b.{i}", "c.{i}", "d"]


def test_a_stack_reads_one_tensor_an_expert() -> None:
    assert list(names(bind(RULE, "m.", 3), 2)) == ["m.l.3.e.0.up", "m.l.3.e.1.up", "m.l.3.up"]


def test_settle_takes_the_first_complete_option() -> None:
    bound = bind(RULE, "", 0)
    per_expert, stacked = {"l.0.e.0.up", "l.0.e.1.up"}, {"l.0.up"}
    assert settle(bound, per_expert.__contains__, 2) == transpose(stack("l.0.e.{e}.up"))
    assert settle(bound, stacked.__contains__, 2) == transpose(rows("l.0.up", 0, 4, dim=1))
    assert settle(bound, (per_expert | stacked).__contains__, 2) == transpose(stack("l.0.e.{e}.up"))


def test_settle_takes_the_most_complete_option_where_none_is() -> None:
    bound = either(concat("a", "b"), concat("c", "d", "e"))
    assert settle(bound, {"a", "c", "d"}.__contains__, 0) == concat("c", "d", "e")
    assert settle(bound, set().__contains__, 0) == concat("a", "b")


def test_settle_reaches_into_every_kind_of_source() -> None:
    inner = either("x", "y")
    settled = settle(concat(reshape(rows(stack(inner), 0, 1), 2), inner), {"y"}.__contains__, 2)
    assert settled == concat(reshape(rows(stack("y"), 0, 1), 2), "y")
    assert not any(isinstance(part, Either) for part in settled.parts)
    assert settle(tensor("z"), set().__contains__, 0) == tensor("z")
