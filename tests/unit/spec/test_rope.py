"""Rope frequencies against the reference library's own functions."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ftc.spec import Config
from ftc_models._config import rope

HEAD = {"head_dim": 32, "hidden_size": 64, "num_attention_heads": 2, "max_position_embeddings": 4096}


@pytest.mark.parametrize(
    "given",
    [
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 512},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
        {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 256, "beta_fast": 16.0,
         "beta_slow": 2.0, "truncate": False},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "attention_factor": 1.5},
    ],
)  # fmt: skip
@pytest.mark.parametrize("theta", [1e4, 5e5])
@pytest.mark.parametrize("flat", [False, True])
def test_scaled_frequencies(given: dict, theta: float, flat: bool) -> None:
    config = LlamaConfig(**HEAD, rope_parameters={**given, "rope_theta": theta})
    expected, amplitude = ROPE_INIT_FUNCTIONS[given["rope_type"]](config, "cpu")
    text = {**HEAD, "rope_theta": theta, "rope_scaling": given} if flat else config.to_dict()
    found = rope(Config(text))
    torch.testing.assert_close(torch.tensor(found.frequencies()), expected, rtol=1e-5, atol=0)
    assert found.amplitude() == pytest.approx(amplitude)


def test_plain_and_partial_frequencies() -> None:
    found = rope(Config({**HEAD, "rope_parameters": {"rope_theta": 100.0, "partial_rotary_factor": 0.25}}))
    assert found.dim == 8 and found.amplitude() == 1.0
    assert found.frequencies() == pytest.approx([1.0, 100**-0.25, 0.1, 100**-0.75])
