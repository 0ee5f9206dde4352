"""The embedded model against the reference library: logits, greedy tokens, routing, in every way a prompt can be run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.rig import Rig

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

RELATIVE = 1e-4  # of the largest logit of the row
CLOSE = 1e-3  # where the reference's best two are nearer than this, either token is right
MODES = [pytest.param(False, id="eager"), pytest.param(True, id="compiled")]
CHUNKS = [pytest.param(7, id="chunks of 7"), pytest.param(64, id="chunks of 64"), pytest.param(None, id="whole")]

MakeRig = Callable[[str, bool], Rig]


@pytest.fixture(scope="module")
def golden(demo: Path) -> list[dict[str, Any]]:
    return json.loads((demo / "golden.json").read_text(encoding="utf-8"))["cases"]


@pytest.fixture(scope="module")
def reference(demo: Path, golden: list[dict[str, Any]]) -> Iterator[dict[str, torch.Tensor]]:
    """Case name -> logits [prompt + output - 1, vocab] of the reference library in float32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(demo, dtype=torch.float32).eval()
    with torch.no_grad():
        yield {c["name"]: model(torch.tensor([_ids(c)]), use_cache=False).logits[0] for c in golden}


def _ids(case: dict[str, Any]) -> list[int]:
    return case["prompt_ids"] + case["output_ids"][:-1]


def _error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float(((ours - theirs).abs().amax(-1) / theirs.abs().amax(-1)).max())


def _check_tokens(case: dict[str, Any], out: list[int], theirs: torch.Tensor) -> int:
    """Raises where a token differs though the reference's choice was clear; returns how many close calls were met."""
    rows = theirs[len(case["prompt_ids"]) - 1 :]
    for n, (ours, wanted) in enumerate(zip(out, case["output_ids"], strict=True)):
        if ours != wanted:
            best = rows[n].topk(2)
            assert float(best.values[0] - best.values[1]) < CLOSE, f"{case['name']}: token {n} is {ours}, not {wanted}"
            assert ours in best.indices.tolist(), f"{case['name']}: token {n} is {ours}"
            return 1  # from here on the texts differ
    return 0


@pytest.mark.parametrize("compiled", MODES)
@pytest.mark.parametrize("chunk", CHUNKS)
def test_float32_logits_and_greedy_tokens(
    demo_rig: MakeRig, golden: list[dict[str, Any]], reference: dict[str, torch.Tensor], compiled: bool, chunk: int | None
) -> None:
    rig, worst, close = demo_rig("float32", compiled), 0.0, 0
    for case in golden:
        theirs = reference[case["name"]]
        line = rig.sequence()
        logits = rig.prompt(line, case["prompt_ids"], chunk, every=True)
        worst = max(worst, _error(logits, theirs[: len(logits)]))
        out = [int(logits[-1].argmax())]
        while len(out) < len(case["output_ids"]):
            row = rig.decode([line], [out[-1]])
            worst = max(worst, _error(row, theirs[line.computed - 1 : line.computed]))
            out.append(int(row.argmax()))
        rig.release(line)
        close += _check_tokens(case, out, theirs)
    print(f"{len(golden)} prompts: largest relative error {worst:.1e}, close calls decided the other way: {close}")
    assert worst < RELATIVE


@pytest.mark.parametrize("compiled", MODES)
def test_float32_in_a_batch_as_alone(
    demo_rig: MakeRig, golden: list[dict[str, Any]], reference: dict[str, torch.Tensor], compiled: bool
) -> None:
    """Five prompts in one batch, each leaving when it is done, so that batch sizes 5 to 1 are met."""
    rig, cases = demo_rig("float32", compiled), golden[:5]
    lines = {c["name"]: rig.sequence() for c in cases}
    outs = {c["name"]: [int(rig.prompt(lines[c["name"]], c["prompt_ids"], 64).argmax())] for c in cases}
    live = list(cases)
    while live := [c for c in live if len(outs[c["name"]]) < len(c["output_ids"])]:
        rows = rig.decode([lines[c["name"]] for c in live], [outs[c["name"]][-1] for c in live])
        for c, row in zip(live, rows, strict=True):
            line = lines[c["name"]]
            assert _error(row[None], reference[c["name"]][line.computed - 1 : line.computed]) < RELATIVE
            outs[c["name"]].append(int(row.argmax()))
    for c in cases:
        _check_tokens(c, outs[c["name"]], reference[c["name"]])
        rig.release(lines[c["name"]])


@pytest.mark.parametrize("compiled", MODES)
def test_bfloat16_agrees_when_teacher_forced(
    demo_rig: MakeRig, golden: list[dict[str, Any]], compiled: bool
) -> None:
    rig, right, total = demo_rig("bfloat16", compiled), 0, 0
    for case in golden:
        line = rig.sequence()
        logits = rig.prompt(line, _ids(case), None, every=True)[len(case["prompt_ids"]) - 1 :]
        rig.release(line)
        right += sum(int(row.argmax()) == token for row, token in zip(logits, case["output_ids"], strict=True))
        total += len(case["output_ids"])
    print(f"top-1 agreement {right}/{total} = {right / total:.2%}")
    assert right / total >= 0.99


def test_routing_equals_the_reference(demo: Path, demo_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layer's experts and weights for two whole texts, as the reference library recorded them."""
    import numpy

    from ftc.ops import router

    stored = numpy.load(demo / "routing.npz")
    rig, seen = demo_rig("float32", False), []
    route = router.route_op._eager

    def record(*arguments: Any) -> Any:
        ids, weights = route(*arguments)
        seen.append((ids.clone(), weights.clone()))
        return ids, weights

    monkeypatch.setattr(router.route_op, "_eager", record)
    for name in ("story", "weather_call"):
        ids, experts, weights = (stored[f"{name}_{part}"] for part in ("ids", "experts", "weights"))
        seen.clear()
        line = rig.sequence()
        rig.chunk(line, ids.tolist())
        rig.release(line)
        for layer, (got, share) in enumerate(seen):
            wanted = torch.from_numpy(experts[layer].astype("int64"))
            n = wanted.shape[0]
            assert torch.equal(got[:n].long().sort(-1).values, wanted.sort(-1).values), f"{name}: layer {layer}"
            by_id = torch.zeros(n, 32).scatter_(1, got[:n].long(), share[:n])
            ref = torch.zeros(n, 32).scatter_(1, wanted, torch.from_numpy(weights[layer].astype("float32")))
            assert (by_id - ref).abs().max() < 2e-3, f"{name}: layer {layer}"
