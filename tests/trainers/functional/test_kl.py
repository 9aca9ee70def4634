"""KL estimators: hand-worked numbers, and their expected gradients by exact enumeration of a categorical policy."""

import math

import pytest
import torch

from llm_envs.trainers.functional.kl import (
    KL_ESTIMATORS,
    absolute,
    check_reward_estimator,
    create_confident_kl,
    create_thresholded_kl,
    create_truncated_kl,
    create_weighted_kl,
    exact_kl,
    importance_weighted_kl,
    k1,
    k2,
    k3,
    kl_in_reward,
    kl_per_sequence,
    mean_kl,
)

NAN = float("nan")
LOG2 = math.log(2.0)
# pi = 1/2, 1/4, -; rho = 1/4, 1/2, -
LOGPS_BT = torch.tensor([[-LOG2, -2 * LOG2, NAN]])
REF_BT = torch.tensor([[-2 * LOG2, -LOG2, NAN]])
MASK_BT = torch.tensor([[1, 1, 0]])

THETA = torch.tensor([0.3, -0.7, 1.1, 0.2], dtype=torch.float64)
RHO = torch.tensor([0.7, 0.05, 0.15, 0.1], dtype=torch.float64)
MU = torch.tensor([0.25, 0.35, 0.1, 0.3], dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("k1", [LOG2, -LOG2, 0.0]),
        ("k2", [LOG2**2 / 2, LOG2**2 / 2, 0.0]),
        ("k3", [0.5 - 1 + LOG2, 2 - 1 - LOG2, 0.0]),
        ("absolute", [LOG2, LOG2, 0.0]),
        ("k1_weighted", [LOG2, -LOG2, 0.0]),
        ("k3_weighted", [0.5 - 1 + LOG2, 2 - 1 - LOG2, 0.0]),
    ],
)
def test_estimates_by_hand(name, expected):
    assert KL_ESTIMATORS[name](LOGPS_BT, REF_BT, MASK_BT)[0].tolist() == pytest.approx(expected)


def in_expectation(function, sampler_probabilities=None):
    """Return the exact expectation over actions of a function of (log pi(a), log rho(a)), and its gradient in theta."""
    theta = THETA.clone().requires_grad_()
    logps_B1 = torch.log_softmax(theta, 0)[:, None]
    probabilities_B1 = logps_B1.detach().exp() if sampler_probabilities is None else sampler_probabilities[:, None]
    values_B1 = function(logps_B1, RHO.log()[:, None], torch.ones(4, 1))
    expectation = (probabilities_B1 * values_B1).sum()
    expectation.backward()
    return expectation.item(), theta.grad


def exact(function):
    """Return a function of the distribution of the policy, and its gradient in theta."""
    theta = THETA.clone().requires_grad_()
    value = function(torch.softmax(theta, 0))
    value.backward()
    return value.item(), theta.grad


KL_PI_RHO = exact(lambda pi: (pi * (pi / RHO).log()).sum())
KL_RHO_PI = exact(lambda pi: (RHO * (RHO / pi).log()).sum())
TOTAL_VARIATION_TWICE = exact(lambda pi: (pi - RHO).abs().sum())


def test_k1_is_unbiased_and_has_no_gradient_in_a_loss():
    value, gradient = in_expectation(k1)
    assert value == pytest.approx(KL_PI_RHO[0])
    torch.testing.assert_close(gradient, torch.zeros(4, dtype=torch.float64))


def test_k2_in_a_loss_has_the_gradient_of_kl_pi_rho():
    value, gradient = in_expectation(k2)
    torch.testing.assert_close(gradient, KL_PI_RHO[1])
    assert value != pytest.approx(KL_PI_RHO[0], rel=0.01)  # its value is biased


def test_k3_is_unbiased_and_has_the_gradient_of_kl_rho_pi():
    value, gradient = in_expectation(k3)
    assert value == pytest.approx(KL_PI_RHO[0])
    torch.testing.assert_close(gradient, KL_RHO_PI[1])
    assert not torch.allclose(gradient, KL_PI_RHO[1], rtol=0.05)  # another direction


def test_absolute_bounds_the_kl_and_has_the_gradient_of_twice_the_total_variation():
    value, gradient = in_expectation(absolute)
    assert value >= KL_PI_RHO[0]
    torch.testing.assert_close(gradient, TOTAL_VARIATION_TWICE[1])


@pytest.mark.parametrize("name", ["k1_weighted", "k3_weighted"])
def test_weighted_estimates_have_value_and_gradient_of_kl_pi_rho(name):
    value, gradient = in_expectation(KL_ESTIMATORS[name])
    assert value == pytest.approx(KL_PI_RHO[0])
    torch.testing.assert_close(gradient, KL_PI_RHO[1])


@pytest.mark.parametrize("kl_fn", [k1, k3])
def test_importance_weights_correct_value_and_gradient_under_another_sampler(kl_fn):
    def weighted(logps_BT, ref_logps_BT, mask_BT):
        return importance_weighted_kl(kl_fn, logps_BT, ref_logps_BT, MU.log()[:, None], mask_BT)

    value, gradient = in_expectation(weighted, MU)
    assert value == pytest.approx(KL_PI_RHO[0])
    torch.testing.assert_close(gradient, KL_PI_RHO[1])


@pytest.mark.parametrize(
    ("kl_fn", "expected"), [(k1, KL_PI_RHO[1]), (k3, KL_PI_RHO[1] - KL_RHO_PI[1])], ids=["k1", "k3"]
)
def test_in_the_reward_k1_has_the_gradient_of_kl_pi_rho_and_k3_has_not(kl_fn, expected):
    def in_reward(logps_BT, ref_logps_BT, mask_BT):  # a policy-gradient loss on reward 0 less the penalty
        kl_BT = kl_fn(logps_BT, ref_logps_BT, mask_BT)
        return -kl_in_reward(torch.zeros_like(kl_BT), kl_BT, mask_BT, 1.0) * logps_BT

    torch.testing.assert_close(in_expectation(in_reward)[1], expected)


def test_the_reward_takes_k1_in_any_form_and_a_function_of_ones_own():
    for kl_fn in (
        k1,
        create_weighted_kl(k1),
        create_confident_kl(0.5, create_truncated_kl(1.0, k1)),
        lambda p, r, m: p,
    ):
        check_reward_estimator(kl_fn)
    for kl_fn in (k2, k3, absolute, create_weighted_kl(k3), create_confident_kl(0.5, create_thresholded_kl(1.0))):
        with pytest.raises(ValueError, match="kl_fn"):
            check_reward_estimator(kl_fn)


def test_exact_kl_is_named_by_its_arguments():
    theta = THETA.clone().requires_grad_()
    forth, back = exact_kl(theta, RHO.log()), exact_kl(RHO.log(), theta)
    assert (forth.item(), back.item()) == pytest.approx((KL_PI_RHO[0], KL_RHO_PI[0]))
    torch.testing.assert_close(torch.autograd.grad(forth, theta)[0], KL_PI_RHO[1])
    torch.testing.assert_close(torch.autograd.grad(back, theta)[0], KL_RHO_PI[1])


def test_exact_kl_by_hand_with_a_forbidden_token_and_a_masked_place():
    inf = float("inf")
    p_BTV = torch.tensor([[[0.0, 0.0, -inf], [NAN, inf, 0.0]]], requires_grad=True)
    q_BTV = torch.tensor([[[math.log(3.0), 0.0, -inf], [0.0, 0.0, 0.0]]])
    kl_BT = exact_kl(p_BTV, q_BTV, torch.tensor([[1, 0]]))
    # p = 1/2, 1/2, 0; q = 3/4, 1/4, 0: log(2/3) / 2 + log(2) / 2
    assert kl_BT[0].tolist() == pytest.approx([0.5 * math.log(4 / 3), 0.0])
    kl_BT.sum().backward()
    assert torch.isfinite(p_BTV.grad).all()
    assert exact_kl(torch.tensor([0.0, 0.0]), torch.tensor([0.0, -inf])).item() == inf


def test_truncated_kl_counts_up_to_the_threshold():
    logps_BT = LOGPS_BT.clone().requires_grad_()
    kl_BT = create_truncated_kl(0.25)(logps_BT, REF_BT, MASK_BT)
    assert kl_BT[0].tolist() == pytest.approx([LOG2 - 0.5, 0.25, 0.0])  # the second is 1 - log 2 = 0.307
    kl_BT.sum().backward()
    assert logps_BT.grad[0].tolist() == pytest.approx([0.5, 0.0, 0.0])  # 1 - rho / pi


def test_thresholded_kl_counts_only_above_the_threshold():
    logps_BT = LOGPS_BT.clone().requires_grad_()
    kl_BT = create_thresholded_kl(0.25)(logps_BT, REF_BT, MASK_BT)
    assert kl_BT[0].tolist() == pytest.approx([0.0, 1 - LOG2, 0.0])
    kl_BT.sum().backward()
    assert logps_BT.grad[0].tolist() == pytest.approx([0.0, -1.0, 0.0])


def test_confident_kl_counts_only_likely_tokens():
    logps_BT = LOGPS_BT.clone().requires_grad_()
    kl_BT = create_confident_kl(0.4, k1)(logps_BT, REF_BT, MASK_BT)
    assert kl_BT[0].tolist() == pytest.approx([LOG2, 0.0, 0.0])
    kl_BT.sum().backward()
    assert logps_BT.grad[0].tolist() == [1.0, 0.0, 0.0]


def test_variants_take_a_function_of_ones_own():
    def squared(logps_BT, ref_logps_BT, mask_BT):
        return k1(logps_BT, ref_logps_BT, mask_BT) ** 2

    assert create_truncated_kl(0.1, squared)(LOGPS_BT, REF_BT, MASK_BT)[0].tolist() == pytest.approx([0.1, 0.1, 0.0])
    value, gradient = in_expectation(create_weighted_kl(squared))
    expected = exact(lambda pi: (pi * (pi / RHO).log() ** 2).sum())
    assert value == pytest.approx(expected[0])
    torch.testing.assert_close(gradient, expected[1])


def test_reductions():
    kl_BT = torch.tensor([[1.0, 2.0, NAN], [6.0, NAN, NAN], [NAN, NAN, NAN]])
    mask_BT = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0]])
    assert kl_per_sequence(kl_BT, mask_BT).tolist() == [3.0, 6.0, 0.0]
    assert mean_kl(kl_BT, mask_BT).item() == 3.0


def test_kl_in_the_reward_of_sequences_and_of_tokens():
    kl_BT = torch.tensor([[1.0, 2.0, NAN], [6.0, NAN, NAN]], requires_grad=True)
    mask_BT = torch.tensor([[1, 1, 0], [1, 0, 0]])
    rewards_B = kl_in_reward(torch.tensor([1.0, NAN]), kl_BT, mask_BT, 0.5)
    assert rewards_B[0].item() == -0.5
    assert torch.isnan(rewards_B[1])  # an episode without a score gets none
    rewards_BT = kl_in_reward(torch.tensor([[0.0, 1.0, 0.0], [2.0, 0.0, 0.0]]), kl_BT, mask_BT, 0.5)
    assert rewards_BT.tolist() == [[-0.5, 0.0, 0.0], [-1.0, 0.0, 0.0]]
    assert not (rewards_B.requires_grad or rewards_BT.requires_grad)
    with pytest.raises(ValueError, match="fit neither"):
        kl_in_reward(torch.zeros(2, 2), kl_BT, mask_BT, 0.5)


@pytest.mark.parametrize("name", list(KL_ESTIMATORS))
def test_no_gradient_flows_into_the_reference(name):
    logps_BT, ref_BT = LOGPS_BT.clone().requires_grad_(), REF_BT.clone().requires_grad_()
    KL_ESTIMATORS[name](logps_BT, ref_BT, MASK_BT).sum().backward()
    assert ref_BT.grad is None
    assert torch.isfinite(logps_BT.grad).all()


def test_thresholds_that_make_no_sense_are_refused():
    for create in (create_truncated_kl, create_thresholded_kl):
        with pytest.raises(ValueError, match="above 0 nats"):
            create(0.0)
    with pytest.raises(ValueError, match="between 0 and 1"):
        create_confident_kl(1.5)
