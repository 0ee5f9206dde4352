"""The sampler: what a request's settings and history come to in a row, in whatever row it is and whoever was there before."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from ftc.engine.messages import Sampling, Submit
from ftc.runtime.request import Request
from ftc.runtime.sampler import Sampler
from tests.unit.ops.test_sample import expected

VOCAB = 50


def request(number: int, prompt: list[int], output: list[int], sampling: Sampling, **more: object) -> Request:
    made = Request(Submit(id=str(number), tokens=prompt, sampling=sampling, max_tokens=99, **more), number, 0.0)  # type: ignore[arg-type]
    made.tokens += output
    return made


def wanted(logits: np.ndarray, one: Request) -> tuple[int, float]:
    s = one.sampling
    counts = np.bincount(one.output, minlength=VOCAB).astype(np.float64)
    seen = np.bincount(one.tokens, minlength=VOCAB) > 0
    changed = logits.copy()
    for token, bias in s.logit_bias.items():
        changed[token] += bias
    if one.drawn < one.min_tokens:
        changed[list(one.stop_ids)] = -1e30
    values = {
        "temperature": s.temperature,
        "top_k": s.top_k,
        "top_p": float(np.float32(s.top_p)),
        "min_p": float(np.float32(s.min_p)),
        "presence": s.presence_penalty,
        "frequency": s.frequency_penalty,
        "repetition": s.repetition_penalty,
        "seed": s.seed,
        "position": len(one.tokens),
    }
    return expected(changed, values, counts, seen, np.ones(VOCAB, bool))


def test_requests_that_come_go_and_change_rows() -> None:
    chance = random.Random(5)
    noise = np.random.default_rng(5)
    sampler = Sampler(4, VOCAB)
    alive: list[Request] = []
    compared = 0
    for number in range(400):
        while len(alive) < chance.randint(1, 4):
            sampling = Sampling(
                temperature=chance.choice([0.0, 0.7, 1.5]),
                top_k=chance.choice([0, 5, 2**40]),
                top_p=chance.choice([1.0, 0.8]),
                min_p=chance.choice([0.0, 0.05]),
                presence_penalty=chance.choice([0.0, 0.0, 1.0]),
                frequency_penalty=chance.choice([0.0, 0.0, 0.5]),
                repetition_penalty=chance.choice([1.0, 1.0, 1.5]),
                seed=chance.choice([0, -1, 2**62 + number]),
                logit_bias=chance.choice([{}, {}, {3: 4.0, 7: -100.0}]),
            )
            prompt = noise.integers(0, VOCAB, chance.randint(1, 20)).tolist()
            stops = chance.choice([{}, {"stop_ids": [1, 2, 3], "min_tokens": 5}])
            alive.append(request(number, prompt, [], sampling, **stops))
        logits = noise.standard_normal((4, VOCAB)).astype(np.float32) * 2
        draws = sampler.draw(torch.from_numpy(logits.copy()), alive)
        for row, (one, draw) in enumerate(zip(alive, draws, strict=True)):
            token, margin = wanted(logits[row].astype(np.float64), one)
            if margin > 1e-4 or one.sampling.top_p == 1:
                compared += 1
                assert draw.token == token, (number, row, one.sampling)
            assert draw.logprob is None
            one.tokens.append(draw.token)
        if chance.random() < 0.2:
            alive.remove(chance.choice(alive))
        chance.shuffle(alive) if chance.random() < 0.2 else None
    assert compared > 500


def test_a_seed_beyond_64_bits_is_taken_by_its_low_bits() -> None:
    logits = torch.randn(1, VOCAB)

    def tokens(seed: int) -> list[int]:
        one = request(0, [1], [], Sampling(seed=seed))
        sampler = Sampler(1, VOCAB)
        for _ in range(20):
            one.tokens.append(sampler.draw(logits.clone(), [one])[0].token)
        return one.tokens

    assert tokens(2**63 + 5) == tokens(5 - 2**63) != tokens(5)
    assert tokens(2**64 + 5) == tokens(5)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logprobs_come_before_bias_temperature_and_penalties(temperature: float) -> None:
    logits = torch.randn(2, VOCAB)
    plain = logits.double().log_softmax(-1)
    sampling = Sampling(temperature=temperature, logit_bias={4: 90.0}, repetition_penalty=2.0)
    one, other = request(0, [4], [5], sampling, logprobs=3), request(1, [4], [5], Sampling(temperature=temperature))
    first, second = Sampler(2, VOCAB).draw(logits.clone(), [one, other])
    assert first.token == 4 and second.logprob is None
    assert first.logprob is not None
    assert first.logprob.logprob == pytest.approx(float(plain[0, 4]), abs=1e-5)
    best = plain[0].topk(3)
    assert [token for token, _ in first.logprob.top] == best.indices.tolist()
    assert [value for _, value in first.logprob.top] == pytest.approx(best.values.tolist(), abs=1e-5)


def test_greedy_alone_and_greedy_in_a_mixed_batch_are_the_same() -> None:
    logits = torch.randn(3, VOCAB)
    logits[0, 7] = logits[0, 9] = 20.0
    greedy = [request(n, [1], [], Sampling(temperature=0.0)) for n in range(3)]
    alone = [d.token for d in Sampler(3, VOCAB).draw(logits.clone(), greedy)]
    assert alone[0] == 7
    mixed = [greedy[0], request(9, [1], [], Sampling(temperature=1.0)), greedy[2]]
    got = [d.token for d in Sampler(3, VOCAB).draw(logits.clone(), mixed)]
    assert (got[0], got[2]) == (alone[0], alone[2])


def test_logits_that_are_not_numbers_are_never_taken() -> None:
    logits = torch.randn(2, VOCAB)
    logits[0, 3], logits[1] = torch.nan, torch.nan
    clean = logits[0].nan_to_num(-torch.inf)
    requests = [request(n, [1], [], Sampling(temperature=0.0)) for n in range(2)]
    assert [d.token for d in Sampler(2, VOCAB).draw(logits, requests)] == [int(clean.argmax()), -1]
