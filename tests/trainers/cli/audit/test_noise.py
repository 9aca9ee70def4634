"""Tolerances of the audit: noise by log-probability, and noise that passes through a loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from llm_envs.trainers.cli.audit.noise import Noise, spread
from llm_envs.trainers.episodes.guard import Rounding

WIDE = Rounding(floor=0.0, ceiling=10.0, median=1.0)


def test_likely_tokens_have_limits_of_their_own() -> None:
    logps = np.repeat([-5.0, -0.01], 64)
    differences = np.repeat([0.1, 0.001], 64)
    limits = Noise.of(differences, logps).limits(np.array([-5.0, -0.01]), WIDE)
    assert limits == pytest.approx([2.4, 0.024])


def test_draws_come_from_the_bin_of_the_log_probability() -> None:
    noise = Noise.of(np.repeat([0.1, 0.001], 64), np.repeat([-5.0, -0.01], 64))
    drawn = noise.draw(torch.tensor([[-6.0, -0.001], [-0.01, -5.0]]), np.random.default_rng(0))
    assert torch.allclose(drawn, torch.tensor([[0.1, 0.001], [0.001, 0.1]]))


def test_the_spread_of_a_sum_is_its_shift_and_six_deviations() -> None:
    logps = torch.full((10_000,), -1.0)
    shifted = Noise.of(np.full(64, 0.5), np.full(64, -1.0))
    assert spread(lambda noisy: noisy(logps).mean(), shifted) == pytest.approx(0.5, abs=1e-5)
    centred = Noise.of(np.array([0.1, -0.1] * 32), np.full(64, -1.0))
    # The mean of 10,000 values of ±0.1 has a standard deviation of 0.001, known to a few tens of percent.
    assert 0.003 < spread(lambda noisy: noisy(logps).mean(), centred) < 0.015
    # A ratio of equal log-probabilities is not moved at all.
    assert spread(lambda noisy: (lambda one: (one - one).exp().mean())(noisy(logps)), centred) == 0.0
    assert spread(lambda noisy: noisy(logps).mean(), None) == 0.0
