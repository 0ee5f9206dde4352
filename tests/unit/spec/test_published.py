"""Real configs against the parameter counts that their makers publish; the files keep only keys that shape the model."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from ftc.spec.load import build_model
from ftc.spec.size import measure

CONFIGS = Path(__file__).parents[2] / "data" / "configs"
CLOSE = 0.02


class Published(msgspec.Struct, frozen=True):
    """Billions, as published. Makers count differently: what `total` and `active` leave out is "embedding", "head" or both."""

    total: float
    active: float
    total_without: tuple[str, ...] = ()
    active_without: tuple[str, ...] = ("embedding",)


PUBLISHED = {
    "qwen3.6-35b-a3b": Published(35, 3),
    "deepseek-v4-flash": Published(284, 13),
    "glm-5.2": Published(744, 40, active_without=("embedding", "head")),
    "gpt-oss-120b": Published(116.83, 5.13),
    "minimax-m2": Published(230, 10, active_without=("embedding", "head")),
    "kimi-linear-48b-a3b": Published(48, 3, total_without=("embedding",)),
}


def distance(ours: float, published: float) -> float:
    """How far apart, beyond what the published number was rounded by, relative to it."""
    rounding = 0.005 if published != int(published) else 0.5 if published < 20 else 0
    return max(abs(ours - published) - rounding, 0) / published


def test_every_config_has_a_published_count() -> None:
    assert {p.stem for p in CONFIGS.glob("*.json")} == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_as_published(name: str) -> None:
    size = measure(build_model(json.loads((CONFIGS / f"{name}.json").read_text(encoding="utf-8"))))
    parts = {"embedding": size.embedding_parameters, "head": size.head_parameters}
    p = PUBLISHED[name]
    total = (size.parameters - sum(parts[w] for w in p.total_without)) / 1e9
    active = (size.active_parameters - sum(parts[w] for w in p.active_without)) / 1e9
    assert distance(total, p.total) < CLOSE, f"{total:.2f} G in all"
    assert distance(active, p.active) < CLOSE, f"{active:.3f} G active"
