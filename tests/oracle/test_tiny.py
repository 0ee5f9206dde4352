"""Tiny checkpoints of every family against the reference library: logits and greedy tokens, however a text is fed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from ftc.spec.load import registry, spec_modules
from ftc.trace.inputs import Shape
from ftc.trace.regions import lay_out
from tests import tiny
from tests.padding import check_padding
from tests.rig import Line, Rig
from tests.zoo import FAMILIES

RELATIVE = 1e-4  # of the largest logit of the row
SHAPES = (Shape(2, 2), Shape(64, 1))
# One per set of primitives: delta by channel, latent attention, dense layers and grouped routing; state space, multipliers and
# shared experts; short convolutions; sinks and biased experts; windows, shared caches and inputs per layer. The
# embedded model (gated delta, gated attention) and test_odd.py (indexers, several streams) compile the rest; the full run all.
COMPILED = ("kimi_linear", "granitemoehybrid", "lfm2_moe", "gpt_oss", "gemma4_text_ple")
# A wrapper's text part is a family of its own here, and is run every way under that name.
UNWRAPPED = tuple(f for f in FAMILIES if f"{f}_text" not in FAMILIES)
# Between them every op that touches a pool.
PADDED = (
    "qwen3_5_moe_text", "deepseek_v32", "deepseek_v4", "kimi_linear", "minimax_m3_vl", "jamba", "nemotron_h", "minimax",
    "lfm2_moe", "gemma4_text_ple",
)  # fmt: skip


@cache
def known() -> dict[str, str]:
    return {family: module for family in FAMILIES if (module := registry().get(tiny.architecture(family)))}


def some(families: tuple[str, ...]) -> list[Any]:
    """All families, those that are not among `families` in the full run only."""
    return [pytest.param(f, marks=() if f in families else pytest.mark.full) for f in known()]


class Text(msgspec.Struct, frozen=True):
    """Prompt, greedy tokens and reference logits of each fed token; `other` is a second text with its logits."""

    folder: Path
    prompt: list[int]
    greedy: list[int]
    logits: torch.Tensor
    other: list[int]
    other_logits: torch.Tensor
    min_gap: float

    @property
    def fed(self) -> list[int]:
        return self.prompt + self.greedy[:-1]


@pytest.fixture(scope="module")
def text_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Text]:
    @cache
    def make(family: str) -> Text:
        folder = tmp_path_factory.mktemp(family)
        model = tiny.write(family, folder)
        found = tiny.oracle(model)
        other = [(7 * t + 3) % tiny.VOCAB for t in reversed(found.prompt[5:])]
        logits = model(input_ids=torch.tensor([other]), use_cache=False).logits[0].float()
        return Text(folder, found.prompt, found.greedy, found.logits, other, logits, found.min_gap)

    return make


def check(ours: torch.Tensor, theirs: torch.Tensor, what: str) -> None:
    assert ours.shape == theirs.shape, what
    error = float(((ours - theirs).abs().amax(-1) / theirs.abs().amax(-1)).max())
    assert error < RELATIVE, f"{what}: relative error {error:.1e}"


def follow(rig: Rig, line: Line, text: Text, first: torch.Tensor) -> list[int]:
    """Feeds the greedy tokens one by one, checks each row, and returns what was chosen."""
    chosen, start = [int(first.argmax())], len(text.prompt)
    for n, token in enumerate(text.greedy[:-1]):
        row = rig.decode([line], [token])
        check(row, text.logits[start + n : start + n + 1], f"after token {n}")
        chosen.append(int(row.argmax()))
    return chosen


def check_every_way(rig: Rig, text: Text) -> None:
    """The whole prompt followed by the greedy tokens, the prompt in chunks of 7, and token by token beside another text."""
    assert text.min_gap > 20 * RELATIVE, "the reference's own choice is too close to compare tokens"
    for size in (None, 7):
        line = rig.sequence()
        logits = rig.prompt(line, text.prompt, size, every=True)
        check(logits, text.logits[: len(text.prompt)], f"chunks of {size}")
        if size is None:
            assert follow(rig, line, text, logits[-1]) == text.greedy
        rig.release(line)
    one, two = rig.sequence(), rig.sequence()
    for n, token in enumerate(text.prompt):
        if n < len(text.other):
            rows = rig.decode([two, one], [text.other[n], token])
            check(rows[:1], text.other_logits[n : n + 1], f"other text, token {n}")
        else:
            rows = rig.decode([one], [token])
        check(rows[-1:], text.logits[n : n + 1], f"token by token, token {n}")
        if n == len(text.other) - 1:
            rig.release(two)
    rig.release(one)


def test_every_spec_file_has_a_tiny_family() -> None:
    used = set(known().values())
    without = [m for m in spec_modules() if m not in used and importlib.import_module(m).ARCHITECTURES]
    assert not without, f"tests/zoo has no family for {', '.join(without)}"


@pytest.mark.parametrize("family", some(UNWRAPPED))
def test_uncompiled(text_of: Callable[[str], Text], family: str) -> None:
    text = text_of(family)
    check_every_way(Rig(text.folder, torch.float32, sequences=2, context=128), text)


@pytest.mark.parametrize("family", list(known()))
def test_the_other_layout_on_disk(text_of: Callable[[str], Text], tmp_path: Path, family: str) -> None:
    text = text_of(family)
    tiny.write(family, tmp_path, layout="runtime")
    rig = Rig(tmp_path, torch.float32, sequences=1, context=128)
    check(rig.prompt(rig.sequence(), text.fed, None, every=True), text.logits, "whole prompt")


@pytest.mark.parametrize("family", some(PADDED))
def test_padding_changes_nothing(text_of: Callable[[str], Text], family: str) -> None:
    check_padding(Rig(text_of(family).folder, torch.float32, sequences=4, context=128))


@pytest.mark.parametrize("family", some(COMPILED))
def test_compiled(text_of: Callable[[str], Text], family: str) -> None:
    text = text_of(family)
    rig = Rig(text.folder, torch.float32, compiled=True, sequences=2, context=128, shapes=SHAPES)
    assert (rig.programs.compiled, rig.programs.loaded) == (0, len(SHAPES) * len(lay_out(rig.model).kinds))
    check_every_way(rig, text)
