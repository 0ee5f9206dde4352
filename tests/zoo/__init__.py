"""Tiny configs of every family that has a spec, as data for `tests.tiny`: hidden 64, vocabulary 256, a few layers.

Each config has every kind of layer of its family at least once.
"""

from __future__ import annotations

from tests.zoo import z1, z2, z3
from tests.zoo.pieces import VOCAB, Tiny

FAMILIES: dict[str, Tiny] = {**z1.FAMILIES, **z2.FAMILIES, **z3.FAMILIES}

__all__ = ["FAMILIES", "VOCAB", "Tiny"]
