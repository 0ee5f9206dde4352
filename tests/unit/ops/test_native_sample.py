"""The sampler of the native library: an independent float64 reading of the same rules, and the statistics of its draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ftc.ops import native

pytestmark = pytest.mark.skipif(not native.available(), reason="no C++ compiler: the native library is not built")
MASK64 = (1 << 64) - 1


@pytest.fixture(params=list(native.ISAS[: native.ISAS.index(native.isa()) + 1]) if native.available() else [])
def isa(request):
    before = native.isa()
    native.set_isa(request.param)
    yield request.param
    native.set_isa(before)


def sample(logits, *, mask=None, forced=-1, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, presence=0.0,
           frequency=0.0, repetition=1.0, seed=0, position=0, counts=None, seen=None):  # fmt: skip
    """Scalars stand for every row."""
    rows = len(logits)

    def full(value, dtype):
        return value.to(dtype) if isinstance(value, torch.Tensor) else torch.full((rows,), value, dtype=dtype)

    floats = [full(v, torch.float32) for v in (temperature, top_p, min_p, presence, frequency, repetition)]
    return native.sample(
        logits.clone(), mask, full(forced, torch.int32), floats[0], full(top_k, torch.int32), *floats[1:],
        full(seed, torch.int64), full(position, torch.int64), counts, seen,
    ).tolist()  # fmt: skip


def uniform(seed: int, position: int) -> float:
    def mix(x: int) -> int:
        x = (x + 0x9E3779B97F4A7C15) & MASK64
        x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK64
        x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK64
        return x ^ x >> 31

    return (mix(mix(seed & MASK64) ^ (position & MASK64)) >> 11) * 2.0**-53


def kept_probabilities(logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    weights = np.exp((logits - logits.max()) / temperature)
    if top_k:
        order = order[:top_k]
    total = weights[order].sum()
    if top_p < 1:
        reached = np.cumsum(weights[order]) / total
        order = order[: int(np.searchsorted(reached, top_p - 1e-12)) + 1]
    out = np.zeros(len(logits))
    for i in order:
        if weights[i] >= min_p:
            out[i] = weights[i]
    return out / out.sum()


@pytest.mark.parametrize("temperature,top_k,top_p,min_p", [(1.0, 0, 1.0, 0.0), (0.7, 12, 1.0, 0.0), (1.5, 0, 0.9, 0.0),
                                                           (1.0, 0, 1.0, 0.07), (0.9, 40, 0.8, 0.02), (4.0, 0, 0.3, 0.0),
                                                           (1.0, 1, 1.0, 0.0), (1.0, 0, 1e-6, 0.0)])  # fmt: skip
def test_draws_follow_the_inverse_distribution(isa, temperature, top_k, top_p, min_p):
    logits, checked = torch.randn(60, 333) * 3, 0
    positions = torch.arange(60) * 7
    got = sample(logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=-123, position=positions)
    for row in range(60):
        p = kept_probabilities(logits[row].double().numpy(), temperature, top_k, top_p, min_p)
        edges, u = np.cumsum(p), uniform(-123, 7 * row)
        if np.abs(edges - u).min() < 1e-5:
            continue  # float32 exponentials may fall on either side
        checked += 1
        assert got[row] == int(np.searchsorted(edges, u, side="right"))
    assert checked > 50


def test_draws_fill_the_distribution(isa):
    logits = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log().repeat(4000, 1)
    drawn = np.bincount(sample(logits, position=torch.arange(4000), seed=5), minlength=4) / 4000
    assert np.abs(drawn - [0.1, 0.2, 0.3, 0.4]).max() < 0.03  # four deviations


def test_a_large_flat_vocabulary_is_cut_exactly(isa):
    logits = torch.zeros(3, 20_000)
    got = sample(logits, top_k=5, position=torch.arange(3), seed=1)
    assert all(0 <= token < 5 for token in got)  # ties keep the lower ids
    got = sample(logits, top_p=0.0101, position=torch.arange(3), seed=1)
    assert all(0 <= token < 203 for token in got)


def test_the_batch_changes_no_draw():
    logits, positions = torch.randn(9, 1000), torch.arange(9)
    together = sample(logits, top_p=0.9, position=positions, seed=3)
    alone = [sample(logits[i : i + 1], top_p=0.9, position=i, seed=3)[0] for i in range(9)]
    assert together == alone


def test_greedy_takes_the_lowest_of_the_largest(isa):
    logits = torch.randn(4, 97)
    logits[2, [5, 60]] = 9.0
    assert sample(logits, temperature=0.0, top_k=3, top_p=0.1) == logits.argmax(-1).tolist()
    assert sample(logits, temperature=0.0)[2] == 5


def test_mask_and_forced(isa):
    logits = torch.randn(3, 70)
    mask = torch.zeros(3, 3, dtype=torch.int32)
    mask[0, 1] = -(1 << 31)  # only token 63
    mask[1, 2] = (1 << 5) | (1 << 6)  # 69, and one beyond the vocabulary
    assert sample(logits, mask=mask) == [63, 69, -1]
    assert sample(logits, mask=mask, temperature=0.0) == [63, 69, -1]
    assert sample(logits, mask=mask, forced=torch.tensor([-1, 8, 0])) == [63, 8, 0]


def test_penalties(isa):
    logits = torch.tensor([[2.0, 1.9, -1.0, -1.05], [2.0, 1.9, 1.5, 0.0], [2.0, 1.9, 1.5, 0.0], [-1.0, -1.2, -9.0, -9.0]])
    seen = torch.tensor([[1, 0, 0, 0]] * 4, dtype=torch.uint8)
    counts = torch.tensor([[3, 0, 0, 0], [1, 0, 0, 0], [1, 2, 0, 0], [0, 0, 0, 0]], dtype=torch.int32)

    def greedy(**options):
        return sample(logits, temperature=0.0, seen=seen, counts=counts, **options)

    assert greedy() == [0, 0, 0, 0]
    assert greedy(repetition=1.1) == [1, 1, 1, 0]
    assert greedy(repetition=1.3) == [1, 1, 1, 1]
    assert greedy(presence=0.2) == [1, 1, 0, 0]
    assert greedy(frequency=0.3) == [1, 1, 0, 0]
    assert greedy(presence=0.2, frequency=0.3) == [1, 1, 0, 0]
    assert greedy(presence=0.6, frequency=0.3) == [1, 1, 2, 0]


def test_numbers_that_are_none_are_never_drawn(isa):
    logits = torch.full((3, 50), float("nan"))
    logits[0, 7] = 0.0
    logits[1, 9], logits[1, 3] = float("inf"), 5.0
    assert sample(logits) == [7, 9, -1]
