"""Every loss and estimate is finite, in value and gradient, on bfloat16, on extreme values and on fully masked rows.

Masked places hold NaN in every stored tensor and in the fresh log-probabilities.
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_envs.trainers.functional.algorithm import ALGORITHMS, algorithm_loss
from llm_envs.trainers.functional.batch import Batch
from llm_envs.trainers.functional.importance import importance_weights
from llm_envs.trainers.functional.kl import (
    KL_ESTIMATORS,
    create_confident_kl,
    create_thresholded_kl,
    create_truncated_kl,
)
from llm_envs.trainers.functional.losses import value_loss
from llm_envs.trainers.functional.masking import masked_mean, masked_whiten
from llm_envs.trainers.functional.returns import gae

NAN = float("nan")
B, T = 4, 5
KL_FNS = {
    **KL_ESTIMATORS,
    "truncated": create_truncated_kl(0.5),
    "thresholded": create_thresholded_kl(0.5),
    "confident": create_confident_kl(0.5),
}

masks = st.lists(st.lists(st.booleans(), min_size=T, max_size=T), min_size=B, max_size=B)
# Log-probabilities from certain to all but impossible.
logps = st.lists(st.floats(-200, 0, width=32), min_size=B * T, max_size=B * T)
numbers = st.lists(st.floats(-100, 100, width=32), min_size=B * T, max_size=B * T)
dtypes = st.sampled_from([torch.float32, torch.bfloat16])
quick = settings(max_examples=20, deadline=None, derandomize=True)


def table(values, mask, dtype):
    return torch.tensor(values).reshape(B, T).masked_fill(~torch.tensor(mask), NAN).to(dtype)


def assert_safe(value, *leaves, mask):
    """The value is finite and in float32; gradients are finite, and 0 at masked places."""
    assert value.dtype == torch.float32
    assert torch.isfinite(value).all()
    value.sum().backward()
    for leaf in leaves:
        assert torch.isfinite(leaf.grad).all()
        assert (leaf.grad[~torch.tensor(mask)] == 0).all()


@pytest.mark.parametrize("name", list(KL_FNS))
@quick
@given(mask=masks, fresh=logps, stored=logps, dtype=dtypes)
def test_kl(name, mask, fresh, stored, dtype):
    logps_BT = table(fresh, mask, dtype).requires_grad_()
    kl_BT = KL_FNS[name](logps_BT, table(stored, mask, dtype), torch.tensor(mask))
    assert (kl_BT[~torch.tensor(mask)] == 0).all()
    assert_safe(kl_BT, logps_BT, mask=mask)


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=lambda algorithm: algorithm.name)
@quick
@given(mask=masks, fresh=logps, stored=logps, advantages=numbers, dtype=dtypes)
def test_algorithms(algorithm, mask, fresh, stored, advantages, dtype):
    logps_BT = table(fresh, mask, dtype).requires_grad_()
    old_BT, mask_BT = table(stored, mask, dtype), torch.tensor(mask)
    loss, stats = algorithm_loss(
        replace(algorithm, kl_coef=0.1, entropy_coef=0.1),
        Batch(
            mask_BT,
            logps_BT=logps_BT,
            advantages=table(advantages, mask, dtype),
            old_logps_BT=old_BT,
            ref_logps_BT=old_BT.flip(0).nan_to_num(nan=-1.0),
            entropies_BT=table([1.0] * (B * T), mask, dtype),
            weights=importance_weights(logps_BT, old_BT, mask_BT),
            rewards_B=torch.tensor([0.0, 1.0, NAN, 1.0]),
            group_ids_B=torch.tensor([0, 0, 0, 1]),
            max_length=T,
        ),
    )
    assert all(torch.isfinite(value) for value in stats.values())
    assert_safe(loss, logps_BT, mask=mask)


@quick
@given(mask=masks, new=numbers, old=numbers, dtype=dtypes)
def test_critic(mask, new, old, dtype):
    values_BT, mask_BT = table(new, mask, dtype).requires_grad_(), torch.tensor(mask)
    advantages_BT, returns_BT = gae(values_BT, table(old, mask, dtype), mask_BT)
    whitened_BT = masked_whiten(advantages_BT, mask_BT)
    assert torch.isfinite(whitened_BT).all()
    assert abs(masked_mean(whitened_BT, mask_BT).item()) < 1e-3
    assert_safe(value_loss(values_BT, table(old, mask, dtype), returns_BT, mask_BT), values_BT, mask=mask)


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=lambda algorithm: algorithm.name)
def test_a_batch_that_is_masked_whole_gives_zero_and_no_gradient(algorithm):
    logps_BT = torch.full((2, 3), NAN, requires_grad=True)
    loss, _ = algorithm_loss(
        algorithm,
        Batch(
            torch.zeros(2, 3),
            logps_BT=logps_BT,
            ref_logps_BT=torch.full((2, 3), NAN),
            advantages=torch.tensor([1.0, NAN]),
            rewards_B=torch.tensor([NAN, NAN]),
            group_ids_B=torch.tensor([0, 0]),
            max_length=3,
        ),
    )
    loss.backward()
    assert loss.item() == 0.0
    assert (logps_BT.grad == 0).all()


def test_bfloat16_gives_what_float32_gives_for_the_same_numbers():
    torch.manual_seed(0)
    rounded_BT = (-5 * torch.rand(3, 4)).bfloat16()
    old_BT = (rounded_BT + 0.3 * torch.randn(3, 4)).bfloat16()
    losses = []
    for dtype in (torch.bfloat16, torch.float32):
        batch = Batch(
            torch.ones(3, 4),
            logps_BT=rounded_BT.to(dtype),
            advantages=torch.tensor([1.0, -1.0, 0.5]),
            old_logps_BT=old_BT.to(dtype),
            ref_logps_BT=old_BT.to(dtype),
        )
        losses.append(algorithm_loss(replace(ALGORITHMS["grpo"], kl_coef=0.1), batch)[0].item())
    assert losses[0] == losses[1]
