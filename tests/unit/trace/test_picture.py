"""What a drawing shows: every node once, chains as one box, what a pass changed; and that graph text tells calls apart."""

from __future__ import annotations

from xml.etree import ElementTree

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from ftc.trace.drawing import boxes_of, draw
from ftc.trace.graph import hash_of, named_copy
from ftc.trace.picture import changes, picture


def graph_of(function, names: tuple[str, ...], *tensors: torch.Tensor) -> torch.fx.GraphModule:
    return named_copy(make_fx(function, tracing_mode="fake", pre_dispatch=True)(*tensors).graph, names)


def small() -> torch.fx.GraphModule:
    def run(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor]:
        return (x + torch.sigmoid(torch.exp(x * w)).to(torch.bfloat16),)

    names = ("carry.residual", "w.mixer.norm")
    return graph_of(run, names, torch.zeros(2, 4, dtype=torch.bfloat16), torch.zeros(4))


def test_nodes_as_data() -> None:
    shown = picture(small(), ("carry.residual",))
    by_name = {n.name: n for n in shown.nodes}
    assert [n.role for n in shown.nodes] == ["carry", "weight", "aten", "aten", "aten", "aten", "aten", "output"]
    assert by_name["mul"].inputs == ("carry_residual", "w_mixer_norm")
    assert (by_name["exp"].op, by_name["exp"].type, by_name["exp"].value) == ("aten.exp", "f32 2×4", "float32[2, 4]")
    assert shown.nodes[-1].label == "residual"


def test_a_chain_is_one_box_and_an_input_is_a_chip() -> None:
    boxes = boxes_of(picture(small(), ("carry.residual",)))
    names = [[line.node.label.split()[0] for line in box.lines] for box in boxes]
    assert names == [["residual"], ["mul", "exp", "sigmoid", "to"], ["add"], ["residual"]]
    chips = [chip.label for line in boxes[1].lines for row in line.chips for chip, _ in row]
    assert chips == ["mixer.norm"]


def test_the_drawing_is_well_formed_and_holds_every_node() -> None:
    shown = picture(small(), ("carry.residual",))
    svg = ElementTree.fromstring(draw(shown))
    drawn = {g.get("data-n") for g in svg.iter() if g.get("data-n")}
    assert drawn == {n.name for n in shown.nodes}
    lines = {(p.get("data-a"), p.get("data-b")) for p in svg.iter() if p.get("data-a")}
    assert lines == {("carry_residual", "mul"), ("carry_residual", "add"), ("to", "add"), ("add", "output")}


def test_changes_are_new_different_and_gone_nodes() -> None:
    graph = small()
    before = picture(graph, ("carry.residual",))
    assert changes(before, picture(graph, ("carry.residual",))) == ((), ())
    by_name = {n.name: n for n in graph.graph.nodes}
    by_name["exp"].meta["kernel"] = "native"
    sigmoid = by_name["sigmoid"]
    with graph.graph.inserting_after(sigmoid):
        tanh = graph.graph.call_function(torch.ops.aten.tanh.default, (by_name["exp"],))
    sigmoid.replace_all_uses_with(tanh)
    graph.graph.erase_node(sigmoid)
    assert changes(before, picture(graph, ("carry.residual",))) == (("exp", "tanh_default", "to"), ("sigmoid",))


def test_calls_that_differ_in_a_keyword_only_are_told_apart() -> None:
    def hashed(approximate: str) -> str:
        return hash_of(graph_of(lambda x: (F.gelu(x, approximate=approximate),), ("carry.residual",), torch.zeros(2, 3)))

    assert hashed("none") != hashed("tanh") and hashed("tanh") == hashed("tanh")
