"""The doubly stochastic mixture of residual streams, by Sinkhorn iterations."""

from __future__ import annotations

from torch import Tensor

from ftc.ops.op import Op

# contract: logits [N, n, n] float32 -> [N, n, n] float32: softmax over the last dimension plus eps, then columns divided by
# their sums, then iterations - 1 times rows and columns; every sum plus eps.
# A word of its own: n is 4, so a compiler unrolls the sums and puts each iteration into the next one's terms, and with 5
# iterations it was still at it after 5 minutes.


def _reference(logits: Tensor, iterations: int, eps: float) -> Tensor:
    mixture = logits.softmax(-1) + eps
    mixture = mixture / (mixture.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        mixture = mixture / (mixture.sum(-1, keepdim=True) + eps)
        mixture = mixture / (mixture.sum(-2, keepdim=True) + eps)
    return mixture


def _fake(logits: Tensor, iterations: int, eps: float) -> Tensor:
    return logits.new_empty(logits.shape)


doubly_stochastic = Op(
    "doubly_stochastic", "(Tensor logits, int iterations, float eps) -> Tensor", _reference, _fake
)
