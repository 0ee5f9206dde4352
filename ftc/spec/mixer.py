"""The token mixers a block may have. Each struct brings its facts: parameters, cache groups, constants, checks, costs."""

from __future__ import annotations

from ftc.spec.attention import Attention, Gate, Indexer
from ftc.spec.delta import GatedDelta

Mixer = Attention | GatedDelta

__all__ = ["Attention", "Gate", "GatedDelta", "Indexer", "Mixer"]
