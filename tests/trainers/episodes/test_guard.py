"""The guard of sampled against recomputed log-probabilities: its mean stops a run, and its largest gap is a warning."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from llm_envs.errors import ModelError
from llm_envs.trainers.episodes.guard import Rounding, check_gaps, noise_limit, rounding_of

WIDE = Rounding(floor=0.0, ceiling=10.0, median=1.0)
MODEL = torch.nn.Linear(1, 1)
FLOAT32, BFLOAT16 = rounding_of("float32"), rounding_of("bfloat16")


def gaps(*values: float, n: int = 100, usual: float = 0.003) -> np.ndarray:
    """Gaps of n tokens that rounding explains, and further ones."""
    return np.array([usual] * n + list(values), dtype=np.float32)


def test_the_limit_is_24_medians_within_its_bounds() -> None:
    differences = np.array([0.01, -0.01] * 8)
    assert noise_limit(differences, WIDE) == pytest.approx(0.24)
    assert noise_limit(differences, FLOAT32) == 0.02
    assert noise_limit(differences, BFLOAT16) == pytest.approx(0.24)
    assert noise_limit(differences / 100, BFLOAT16) == 0.0625
    assert noise_limit(differences[:15], WIDE) == 10.0  # too few to know
    assert rounding_of("float32", is_separate_engine=True) == BFLOAT16 != FLOAT32


def test_a_wrong_minority_does_not_move_it() -> None:
    differences = np.full(101, 0.01)
    differences[:50] = 5.0
    assert noise_limit(differences, WIDE) == pytest.approx(0.24)


@pytest.mark.parametrize("rounding", [FLOAT32, BFLOAT16])
def test_one_token_far_off_is_a_warning(rounding: Rounding) -> None:
    """The mean over the batch, 0.0075 nats, does not show it: faults of attention kernels hit a token in thousands."""
    with pytest.warns(UserWarning, match=r"1 of 101 .* 0\.47 nats"):
        check_gaps(gaps(0.47), 0.1, rounding, MODEL)


def test_rounding_is_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_gaps(gaps(0.019, usual=1e-6), 0.1, FLOAT32, MODEL)
        check_gaps(gaps(0.06), 0.1, BFLOAT16, MODEL)


def test_the_mean_stops_a_run() -> None:
    with pytest.raises(ModelError, match=r"0\.5 nats.*logps_tolerance=0\.3"):
        check_gaps(gaps(n=4, usual=0.5), 0.3, FLOAT32, MODEL)
    with pytest.raises(ModelError, match=r"nan nats"):
        check_gaps(gaps(np.nan), 0.3, FLOAT32, MODEL)
