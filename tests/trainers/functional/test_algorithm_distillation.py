"""Distillation on a vocabulary of three tokens: expectations over all samples are sums, and autograd has the rest."""

from dataclasses import replace

import pytest
import torch

from llm_envs.trainers.functional.advantages import ignore_reward
from llm_envs.trainers.functional.algorithm import DISTILL, DISTILL_LOSS, GRPO, algorithm_loss
from llm_envs.trainers.functional.batch import Batch
from llm_envs.trainers.functional.kl import exact_kl, kl_in_reward

SAMPLES = torch.tensor([[first, second] for first in range(3) for second in range(3)])
MASK = torch.ones(1, 2)


def language_model(seed):
    """Return logits of the first token, shape (3,), and of the second given the first, shape (3, 3)."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(3, generator=generator, dtype=torch.float64), torch.randn(3, 3, generator=generator).double()]


def logps_of(model):
    """Return the log-probabilities of all nine samples, shape (9, 2)."""
    first, second = (torch.log_softmax(logits, -1) for logits in model)
    return torch.stack([first[SAMPLES[:, 0]], second[SAMPLES[:, 0], SAMPLES[:, 1]]], dim=1)


def expected_gradient(algorithm, policy, teacher, task_reward_B=None):
    """Return the gradient of the loss, its mean over all samples weighted by their probabilities."""
    logps_B2, teacher_B2 = logps_of(policy), logps_of(teacher)
    advantages_B2 = torch.zeros(9, 2).double() if task_reward_B is None else task_reward_B[:, None].expand(9, 2)
    if algorithm.kl_in == "advantage":
        kl_B2 = algorithm.kl_estimator(logps_B2.detach(), teacher_B2, torch.ones(9, 2))
        advantages_B2 = kl_in_reward(advantages_B2, kl_B2, torch.ones(9, 2), algorithm.kl_coef)
    total = 0.0
    for row in range(9):
        one = {"logps_BT": logps_B2, "ref_logps_BT": teacher_B2, "advantages": advantages_B2}
        batch = Batch(MASK, **{name: values[row : row + 1] for name, values in one.items()}, denominator=1.0)
        total = total + logps_B2[row].sum().exp().detach() * algorithm_loss(algorithm, batch)[0]
    return torch.autograd.grad(total, policy)


def kl_of_each_token(policy, teacher):
    """Return KL(pi, teacher) at the first token plus that at the second, whose prefix is not differentiated."""
    prefixes = policy[0].softmax(-1).detach()
    return exact_kl(policy[0], teacher[0]) + (prefixes * exact_kl(policy[1], teacher[1])).sum()


@pytest.mark.parametrize("algorithm", [DISTILL, DISTILL_LOSS], ids=lambda algorithm: algorithm.name)
@pytest.mark.parametrize("seed", range(3))
def test_the_expected_gradient_is_that_of_the_reverse_kl(algorithm, seed):
    policy, teacher = [part.requires_grad_() for part in language_model(seed)], language_model(seed + 10)
    expected = torch.autograd.grad(kl_of_each_token(policy, teacher), policy)
    assert max(gradient.abs().max() for gradient in expected) > 0.05
    for given, exact in zip(expected_gradient(algorithm, policy, teacher), expected, strict=True):
        torch.testing.assert_close(given, exact, rtol=0, atol=1e-12)


@pytest.mark.parametrize("changes", [{"kl_in": "advantage"}, {}], ids=["advantage", "loss"])
def test_a_mixture_has_the_gradient_of_reward_and_coefficient_times_kl(changes):
    """With rewards as advantages: that of `-E[r] + 0.3 KL`, the KL of each token given its prefix."""
    policy, teacher = [part.requires_grad_() for part in language_model(5)], language_model(6)
    rewards_B = torch.tensor([1.0, 0.0, 0.0, 2.0, -1.0, 0.5, 0.0, 0.0, 3.0]).double()
    mixture = replace(GRPO, name="mixture", normalisation="token", kl_coef=0.3, **changes)
    if not changes:
        mixture = replace(mixture, kl_fn=DISTILL_LOSS.kl_fn)
    objective = -(logps_of(policy).sum(1).exp() * rewards_B).sum() + 0.3 * kl_of_each_token(policy, teacher)
    expected = torch.autograd.grad(objective, policy)
    for given, exact in zip(expected_gradient(mixture, policy, teacher, rewards_B), expected, strict=True):
        torch.testing.assert_close(given, exact, rtol=0, atol=1e-12)


def test_a_task_that_is_ignored_pays_nothing_in_any_shape():
    rewards_B, ids_B = torch.tensor([1.0, float("nan"), 3.0]), torch.tensor([0, 0, 1])
    assert ignore_reward(rewards_B, ids_B).tolist() == [0.0, 0.0, 0.0]
    assert DISTILL.needs_teacher and DISTILL_LOSS.needs_teacher and not replace(GRPO, kl_coef=0.1).needs_teacher
    assert DISTILL.has_paid_kl and not DISTILL_LOSS.has_paid_kl and not DISTILL.at(0.0).has_paid_kl
