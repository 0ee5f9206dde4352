"""The token mixers a block may have; each struct brings its facts: parameters, cache groups, constants, checks, costs."""

from __future__ import annotations

from ftc.spec.attention import Attention, Gate
from ftc.spec.compressed import CompressedAttention, Compressor
from ftc.spec.conv import ShortConv
from ftc.spec.delta import GatedDelta
from ftc.spec.indexer import Indexer
from ftc.spec.latent import LatentAttention
from ftc.spec.scan import DecayAttention, SelectiveScan, StateSpace

Mixer = Attention | LatentAttention | CompressedAttention | GatedDelta | StateSpace | SelectiveScan | DecayAttention | ShortConv

__all__ = [
    "Attention",
    "CompressedAttention",
    "Compressor",
    "DecayAttention",
    "Gate",
    "GatedDelta",
    "Indexer",
    "LatentAttention",
    "Mixer",
    "SelectiveScan",
    "ShortConv",
    "StateSpace",
]
