"""The trace as one HTML page that needs nothing else: the schedule, each region after each pass, what each pass changed."""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Sequence
from html import escape

import msgspec

from ftc.trace.drawing import draw
from ftc.trace.picture import Picture, changes


class Stage(msgspec.Struct, frozen=True):
    """What there was after one pass ("trace": before any). `schedule` is segments of (region, block), None for no block.

    `is_cut`: the segments were made by a pass, so that they mean something.
    """

    name: str
    doc: str
    pictures: dict[str, Picture]
    schedule: tuple[tuple[tuple[str, int | None], ...], ...]
    is_cut: bool = False


def page(title: str, facts: Sequence[tuple[str, str]], stages: Sequence[Stage], selected: str, region: str) -> str:
    """The page as text. It opens on the stage `selected` and on `region`; `facts` are shown below the title."""
    drawings: list[str] = []
    texts: list[str] = []
    nodes: list[dict[str, dict[str, object]]] = []
    known: dict[Picture, int] = {}
    regions = {}
    # a pass may bring regions of its own: what is not there yet has no view
    for name in dict.fromkeys(name for stage in stages for name in stage.pictures):
        views: list[dict[str, object] | None] = []
        before: Picture | None = None
        for stage in stages:
            now = stage.pictures.get(name)
            if now is None:
                views.append(None)
                continue
            if now not in known:
                known[now] = len(drawings)
                drawings.append(draw(now))
                texts.append(now.text)
                nodes.append({n.name: _facts(n.name, now) for n in now.nodes})
            new, gone = ((), ()) if before is None else changes(before, now)
            views.append({"view": known[now], "changed": new, "gone": gone})
            before = now
        regions[name] = views
    data = {
        "stages": [{"name": s.name, "doc": s.doc, "schedule": s.schedule, "cut": s.is_cut} for s in stages],
        "regions": regions,
        "nodes": nodes,
        "selected": [s.name for s in stages].index(selected),
        "region": region,
    }
    # "</" would end the element that holds it
    held = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    shown = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts)
    parts = "".join(f'<template id="drawing-{i}">{d}</template>' for i, d in enumerate(drawings))
    parts += "".join(f'<template id="text-{i}"><pre>{escape(t)}</pre></template>' for i, t in enumerate(texts))
    result = _asset("page.html")
    for mark, text in (
        ("TITLE", escape(title)),
        ("FACTS", shown),
        ("STYLE", _asset("page.css")),
        ("PARTS", parts),
        ("DATA", held),
        ("SCRIPT", _asset("page.js")),
    ):
        result = result.replace(f"<!--{mark}-->", text)
    return result


def _facts(name: str, picture: Picture) -> dict[str, object]:
    node = next(n for n in picture.nodes if n.name == name)
    users = [n.name for n in picture.nodes if name in n.inputs]
    return msgspec.to_builtins(node) | {"users": users}


def _asset(name: str) -> str:
    return importlib.resources.files("ftc.trace").joinpath(name).read_text(encoding="utf-8")


def changed_nodes(before: Stage, after: Stage) -> dict[str, int]:
    """How many nodes of each region a pass added, changed or took out; none in regions that are new."""
    counts = {}
    for name, now in after.pictures.items():
        new, gone = changes(before.pictures.get(name, now), now)
        counts[name] = len(new) + len(gone)
    return counts
