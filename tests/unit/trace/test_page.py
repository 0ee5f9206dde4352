"""The HTML page: whole in itself, whatever names there are in it."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

from ftc.trace.page import Stage, page
from ftc.trace.picture import Node, Picture, Role

EVIL = "</script><b>&\"'"


class Reader(HTMLParser):
    """Collects elements, what they refer to, and the text of scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.scripts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href", "data", "action", "srcset")]

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "script":
            self.scripts.append(data)


def stages() -> list[Stage]:
    def shown(kernel: str) -> Picture:
        role: Role = "kernel" if kernel else "word"
        nodes = (
            Node("x", "carry", "residual", "input", "f32 1", "float32[1]"),
            Node("w", "weight", EVIL, "input", "f32 1", "float32[1]"),
            Node("y", role, "linear", "ftc.linear", "f32 1", "float32[1]", ("x", "w"), EVIL, "", kernel),
            Node("output", "output", "residual", "return", "", "", ("y",)),
        )
        return Picture(nodes, EVIL)

    schedule = ((("layer0", 0), ("layer0", 1)),)
    return [
        Stage("trace", "Before.", {"layer0": shown("")}, schedule),
        Stage("bind", EVIL, {"layer0": shown("native"), "fetch": shown("")}, schedule),
        Stage("mark", "Cut.", {"layer0": shown("native"), "fetch": shown("")}, tuple((c,) for c in schedule[0]), True),
    ]


def read(text: str) -> tuple[Reader, dict]:
    reader = Reader()
    reader.feed(text)
    return reader, json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])  # type: ignore[index]


def test_it_refers_to_nothing_outside_and_escapes_what_it_shows() -> None:
    text = page(EVIL, [("step", EVIL)], stages(), "bind", "layer0")
    reader, data = read(text)
    assert reader.references == [] and "url(" not in text and "@import" not in text
    assert reader.tags.count("script") == 2 and "b" not in reader.tags
    assert "default-src 'none'" in text
    assert not re.search(r"<!--[A-Z]+-->", text)
    assert data["nodes"][0]["w"]["label"] == EVIL


def test_what_each_pass_changed_is_in_it() -> None:
    _, data = read(page("m", [], stages(), "mark", "layer0"))
    assert data["selected"] == 2
    assert [view["changed"] for view in data["regions"]["layer0"]] == [[], ["y"], []]
    views = [view["view"] for view in data["regions"]["layer0"]]
    assert views[0] != views[1] == views[2], "a stage that changed nothing shares its drawing"
    assert data["regions"]["fetch"][0] is None, "a region that a pass brought is not there before it"
    assert [s["cut"] for s in data["stages"]] == [False, False, True]
    assert data["nodes"][0]["x"]["users"] == ["y"]
