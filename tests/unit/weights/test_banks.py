"""Banks: where records begin, how matrices lie in them, and what the padding holds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ftc.spec import Config
from ftc.spec.load import read_model
from ftc.spec.parameters import ExpertRecord
from ftc.weights.banks import RECORD_BYTES, Bank, empty_bank
from ftc.weights.memory import HUGE_BYTES


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_records(gated: bool, dtype: torch.dtype) -> None:
    bank = Bank(ExpertRecord("ffn.experts", 5, 7, 24, gated), 3, dtype)
    matrices = ("gate", "up", "down") if gated else ("up", "down")
    assert bank.rows == 15 and bank.record_elements == len(matrices) * 7 * 24
    assert bank.record_bytes % RECORD_BYTES == 0 and bank.record_bytes == bank.row_stride * dtype.itemsize
    assert bank.record_bytes - bank.record_elements * dtype.itemsize < RECORD_BYTES
    assert bank.elements.data_ptr() % HUGE_BYTES == 0 and bank.elements.nbytes == bank.size_bytes
    views = bank.views()
    assert tuple(views) == matrices
    for k, view in enumerate(views.values()):
        assert view.shape == (15, 7, 24) and view.stride() == (bank.row_stride, 24, 1)
        assert view.data_ptr() == bank.elements.data_ptr() + k * 7 * 24 * dtype.itemsize
        view.fill_(k + 1)
    rows = bank.elements.view(15, bank.row_stride)
    counted = [(rows == k + 1).sum().item() for k in range(len(matrices))]
    assert counted == [15 * 7 * 24] * len(matrices)
    assert (rows[:, bank.record_elements :] == 0).all()


def test_views_share_the_one_buffer_which_outlives_the_bank() -> None:
    bank = Bank(ExpertRecord("ffn.experts", 2, 4, 8, True), 1, torch.float32)
    up = bank.views()["up"]
    bank.views()["up"][1, 2, 3] = 5
    assert up[1, 2, 3] == 5
    del bank
    assert up.sum() == 5


def test_bank_of_a_model(demo: Path) -> None:
    bank = empty_bank(read_model(demo), torch.bfloat16)
    assert bank is not None and (bank.ordinals, bank.experts, bank.width, bank.hidden) == (8, 32, 64, 256)
    assert bank.record_bytes == 3 * 64 * 256 * 2


def test_dense_models_have_none() -> None:
    from ftc_models import llama

    config = Config({
        "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 6, "vocab_size": 16,
        "max_position_embeddings": 32, "rms_norm_eps": 1e-6,
    })  # fmt: skip
    assert empty_bank(llama.model(config), torch.bfloat16) is None
