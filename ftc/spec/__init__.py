"""The vocabulary a model is written in: frozen data, no torch."""
from __future__ import annotations

from ftc.spec.cache import CacheGroup, CacheUse
from ftc.spec.chat import Chat, JsonInTags, Reasoning, XmlFunctions
from ftc.spec.config import Config
from ftc.spec.ffn import MLP, Activation, Experts, GeGLU, Groups, MoE, ReLU2, Router, SharedExpert, SwiGLU
from ftc.spec.mixer import Attention, Gate, GatedDelta, Indexer
from ftc.spec.model import Block, Branch, Embedding, Head, HyperConnections, Model, PlainResidual, pre_norm
from ftc.spec.norm import GatedRMSNorm, LayerNorm, RMSNorm
from ftc.spec.rope import Linear, Rope, WavelengthBands, Yarn
from ftc.spec.weights import Skip, WeightRules, concat, either, reshape, rows, stack, tensor, transpose

__all__ = [
    "MLP",
    "Activation",
    "Attention",
    "Block",
    "Branch",
    "CacheGroup",
    "CacheUse",
    "Chat",
    "Config",
    "Embedding",
    "Experts",
    "Gate",
    "GatedDelta",
    "GatedRMSNorm",
    "GeGLU",
    "Groups",
    "Head",
    "HyperConnections",
    "Indexer",
    "JsonInTags",
    "LayerNorm",
    "Linear",
    "MoE",
    "Model",
    "PlainResidual",
    "RMSNorm",
    "ReLU2",
    "Reasoning",
    "Rope",
    "Router",
    "SharedExpert",
    "Skip",
    "SwiGLU",
    "WavelengthBands",
    "WeightRules",
    "XmlFunctions",
    "Yarn",
    "concat",
    "either",
    "pre_norm",
    "reshape",
    "rows",
    "stack",
    "tensor",
    "transpose",
]
