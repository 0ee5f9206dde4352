"""Routing as torch reference: scores, biases and choices against the reference library's routers and by hand."""

from __future__ import annotations

import pytest
import torch
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssConfig, GptOssTopKRouter
from transformers.models.phimoe.modeling_phimoe import sparsemixer

from ftc.ops.router import route
from ftc.spec import Router

ROWS = torch.tensor([40], dtype=torch.int32)


@pytest.mark.parametrize("tolerance", [0.01, 0.2, 1.0])
def test_sparse_mixer(tolerance: float) -> None:
    logits = torch.randn(40, 16)
    logits[1] = -logits[1].abs()  # a best below zero
    ids, weights = route(logits, Router(2, score="sparse_mixer", epsilon=tolerance), None, ROWS)
    expected, chosen = sparsemixer(logits, tolerance, training=False)
    assert torch.equal(ids.long(), chosen)
    torch.testing.assert_close(weights, expected)


def test_a_bias_on_the_logits_takes_part_in_the_weights() -> None:
    reference = GptOssTopKRouter(GptOssConfig(num_local_experts=8, num_experts_per_tok=3, hidden_size=12))
    torch.nn.init.normal_(reference.weight)
    torch.nn.init.normal_(reference.bias)
    x = torch.randn(40, 12)
    with torch.no_grad():
        _, expected, chosen = reference(x)
        logits = torch.nn.functional.linear(x, reference.weight, reference.bias)
    ids, weights = route(logits, Router(3, choose_first=True, renormalize=False), None, ROWS)
    assert torch.equal(ids.long(), chosen)
    torch.testing.assert_close(weights, expected)


def test_softcap_bounds_the_logits_before_they_are_scored() -> None:
    logits = 30 * torch.randn(40, 8)
    _, weights = route(logits, Router(2, score="sigmoid", renormalize=False, softcap=3.0), None, ROWS)
    expected = (3 * torch.tanh(logits / 3)).sigmoid().topk(2).values
    torch.testing.assert_close(weights, expected)
    assert not torch.allclose(weights, logits.sigmoid().topk(2).values)
