"""Whether a tied model's stored head is used: where it differs from the embedding, as the reference library does."""

from __future__ import annotations

import msgspec
import torch

from ftc.log import logger
from ftc.spec.model import Model
from ftc.spec.weights import as_source, bind, names
from ftc.weights.checkpoint import Checkpoint
from ftc.weights.pieces import Piece, whole
from ftc.weights.reader import STORED, Reader

COMPARED_BYTES = 16 << 20

_log = logger("weights")


def settle_head(model: Model, checkpoint: Checkpoint) -> Model:
    """`model`, or the same with a head of its own where it is tied but a different head is stored.

    Reads both tensors as far as they are equal; nothing where the checkpoint holds no head or the model is untied.
    """
    if not model.head.tied:
        return model
    found = []
    for path in ("embedding", "head"):
        rule = model.weights.rules.get(path)
        stored = {} if rule is None else {
            n: checkpoint.tensors[n]
            for prefix in model.weights.prefixes
            for n in names(bind(as_source(rule), prefix, None), 0)
            if n in checkpoint.tensors
        }  # fmt: skip
        if len(stored) != 1:
            return model  # no head, or one that is made of several tensors: the embedding serves
        found.append(next(iter(stored.values())))
    embedding, head = found
    alike = head.shape == embedding.shape and head.dtype == embedding.dtype
    if alike and _equal(checkpoint, embedding.name, head.name):
        return model
    _log.warning("%s: %s differs from the embedding it is tied to; the stored head is used.", head.file, head.name)
    return msgspec.structs.replace(model, head=msgspec.structs.replace(model.head, tied=False))


def _equal(checkpoint: Checkpoint, one: str, other: str) -> bool:
    tensor = checkpoint.tensors[one]
    if tensor.dtype not in STORED:
        return True  # refused with its dtype by the manifest
    dtype, view = STORED[tensor.dtype], whole(tensor.shape)
    rows = tensor.shape[0]
    many = max(1, COMPARED_BYTES * rows // max(tensor.size_bytes, 1))
    with Reader(checkpoint) as reader:
        for k in range(0, rows, many):
            part = view.sliced(0, k, min(many, rows - k))
            read = [torch.empty(part.shape, dtype=dtype) for _ in range(2)]
            for name, out in zip((one, other), read, strict=True):
                reader.fill_piece(Piece(name, part, (0,) * len(part.shape)), out)
            if not torch.equal(*read):
                return False
    return True
