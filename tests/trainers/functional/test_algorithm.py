"""Algorithms as values: what each computes on a batch worked by hand."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from llm_envs.trainers.functional.advantages import ignore_reward
from llm_envs.trainers.functional.algorithm import (
    ALGORITHMS,
    CISPO,
    DAPO,
    DISTILL,
    DR_GRPO,
    GRPO,
    PAIRWISE,
    REINFORCE,
    Algorithm,
    algorithm_loss,
    create_algorithm_schedule,
)
from llm_envs.trainers.functional.batch import Batch
from llm_envs.trainers.functional.kl import k1, k2, k3, kl_in_reward
from llm_envs.trainers.functional.losses import clipped_surrogate, policy_gradient
from llm_envs.trainers.functional.pairs import ipo_loss

NAN = float("nan")
LOGPS_BT = torch.tensor([[-1.0, -2.0], [-3.0, NAN]])
MASK_BT = torch.tensor([[1, 1], [1, 0]])


def batch(**changes):
    given = {"logps_BT": LOGPS_BT.clone().requires_grad_(), "mask_BT": MASK_BT, "advantages": torch.tensor([1.0, -2.0])}
    return Batch(**(given | changes))


def loss_and_gradient(algorithm, given):
    loss, stats = algorithm_loss(algorithm, given)
    loss.backward()
    assert stats["loss"].item() == loss.item()
    assert not any(value.requires_grad for value in stats.values())
    return loss.item(), given.logps_BT.grad.tolist(), stats


def test_statistics_tell_how_far_the_policy_moved_and_what_its_own_clip_cut():
    """The ratios are 2 and 1.1 with advantage 1 (1.48 by turn), and 0.5 with advantage -2."""
    given = batch(old_logps_BT=LOGPS_BT - torch.tensor([[2.0, 1.1], [0.5, NAN]]).log())
    clips = ({}, 2 / 3), ({"clip_high": 0.05}, 1.0), ({"clip_low": 0.6}, 1 / 3), ({"level": "turn"}, 1.0)
    for clip, fraction in clips:
        algorithm = replace(GRPO, loss_fn=partial(clipped_surrogate, **clip))
        _, _, stats = loss_and_gradient(algorithm, given)
        assert stats["ratio"].item() == pytest.approx(1.2) and stats["ratio_max"].item() == pytest.approx(2.0)
        assert stats["clip_fraction"].item() == pytest.approx(fraction)
    # On the other side of the range nothing is cut.
    turned = replace(given, advantages=-given.advantages)
    assert loss_and_gradient(GRPO, turned)[2]["clip_fraction"].item() == 0.0
    assert loss_and_gradient(CISPO, given)[2]["clip_fraction"].item() == 0.0
    assert "clip_fraction" not in loss_and_gradient(REINFORCE, given)[2]


def test_pairwise_is_dpo_on_the_best_and_the_worst():
    given = batch(
        rewards_B=torch.tensor([1.0, 0.0]),
        group_ids_B=torch.tensor([3, 3]),
        ref_logps_BT=torch.tensor([[-2.0, -2.0], [-2.0, NAN]]),
        advantages=None,
    )
    loss, gradient, stats = loss_and_gradient(PAIRWISE, given)  # d = 1 - (-1) = 2, beta 0.1
    assert loss == pytest.approx(math.log(1 + math.exp(-0.2)))
    weight = 0.1 / (1 + math.exp(0.2))
    assert gradient[0] == pytest.approx([-weight, -weight])
    assert gradient[1] == pytest.approx([weight, 0.0])
    assert (stats["pairs"].item(), stats["pair_accuracy"].item()) == (1.0, 1.0)


def test_pairwise_without_a_reference_takes_the_policy_at_sampling_and_without_a_pair_nothing():
    given = batch(rewards_B=torch.tensor([1.0, 0.0]), group_ids_B=torch.tensor([3, 3]))
    assert loss_and_gradient(PAIRWISE, given)[0] == pytest.approx(math.log(2.0))
    loss, gradient, stats = loss_and_gradient(
        PAIRWISE, replace(batch(), rewards_B=torch.ones(2), group_ids_B=torch.ones(2).long())
    )
    assert (loss, gradient, stats["pairs"].item()) == (0.0, [[0.0, 0.0], [0.0, 0.0]], 0.0)


def test_kl_entropy_and_importance_weights():
    given = batch(
        ref_logps_BT=torch.tensor([[-1.5, -1.0], [-3.0, NAN]]),
        entropies_BT=torch.tensor([[1.0, 2.0], [6.0, NAN]]),
        weights=torch.tensor([[0.5, 2.0], [1.0, NAN]]),
    )
    algorithm = replace(DAPO, kl_fn=k2, kl_coef=0.5, entropy_coef=0.1)
    loss, gradient, stats = loss_and_gradient(algorithm, given)
    # weighted policy loss -0.5, -2, 2; k2: 0.125, 0.5, 0; mean entropy 3
    assert loss == pytest.approx((-0.5 + 2 - 2 + 0.5 * 0.625) / 3 - 0.3)
    assert gradient[0] == pytest.approx([(-0.5 + 0.5 * 0.5) / 3, (-2.0 - 0.5) / 3])
    assert stats["kl"].item() == pytest.approx(0.625 / 3)
    assert stats["entropy"].item() == 3.0
    in_reward, _, stats = loss_and_gradient(replace(DAPO, kl_fn=k1, kl_coef=0.5, kl_in="reward"), batch())
    assert in_reward == 0.0
    assert "kl" not in stats


@pytest.mark.parametrize(
    ("pi", "rho"),
    [([0.5, 0.3, 0.2], [0.4, 0.4, 0.2]), ([0.7, 0.2, 0.1], [0.2, 0.3, 0.5]), ([0.1, 0.6, 0.3], [0.3, 0.3, 0.4])],
)
def test_the_kl_in_the_reward_is_k1_unless_another_is_given(pi, rho):
    """The expected policy gradient of the penalised reward is that of -0.3 KL(pi‖rho), exactly."""
    algorithm = Algorithm("mine", kl_coef=0.3, kl_in="reward")
    logits = torch.tensor(pi, dtype=torch.float64).log().requires_grad_()
    logps_B1, ref_B1 = torch.log_softmax(logits, 0)[:, None], torch.tensor(rho, dtype=torch.float64).log()[:, None]
    mask_B1 = torch.ones(3, 1)
    kl_B1 = algorithm.kl_estimator(logps_B1.detach(), ref_B1, mask_B1)
    rewards_B = kl_in_reward(torch.zeros(3, dtype=torch.float64), kl_B1, mask_B1, algorithm.kl_coef)
    expected_reward = (logps_B1.detach().exp()[:, 0] * rewards_B * logps_B1[:, 0]).sum()
    penalty = -0.3 * (logps_B1.exp() * (logps_B1 - ref_B1)).sum()
    gradients = [torch.autograd.grad(value, logits, retain_graph=True)[0] for value in (expected_reward, penalty)]
    torch.testing.assert_close(*gradients)
    assert algorithm.kl_estimator is k1 and replace(algorithm, kl_in="loss").kl_estimator is k3


def test_a_new_algorithm_is_a_value():
    def squared(logps_BT, old_logps_BT, advantages, mask_BT):
        return advantages[:, None] * logps_BT**2

    mine = Algorithm("mine", loss_fn=squared, normalisation="token")
    assert loss_and_gradient(mine, batch())[0] == pytest.approx((1 + 4 - 18) / 3)  # what it leaves at masks is not read
    both = replace(PAIRWISE, name="both", loss_fn=policy_gradient, pair_loss_fn=partial(ipo_loss, beta=0.5))
    given = batch(rewards_B=torch.tensor([1.0, 0.0]), group_ids_B=torch.tensor([0, 0]))
    assert loss_and_gradient(both, given)[0] == pytest.approx((3 - 6) / 3 + 1.0)  # (0 - 0 - 1)^2


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=lambda algorithm: algorithm.name)
def test_stored_tensors_are_constants(algorithm):
    stored = {
        "old_logps_BT": torch.tensor([[-1.1, -2.1], [-2.9, NAN]]),
        "ref_logps_BT": torch.tensor([[-1.2, -2.0], [-3.0, NAN]]),
        "advantages": torch.tensor([1.0, -2.0]),
        "weights": torch.ones(2, 1),
        "rewards_B": torch.tensor([1.0, 0.0]),
    }
    for tensor in stored.values():
        tensor.requires_grad_()
    given = batch(**stored, group_ids_B=torch.zeros(2, dtype=torch.long), max_length=4)
    loss_and_gradient(replace(algorithm, kl_coef=0.1), given)
    assert all(tensor.grad is None for tensor in stored.values())


def test_what_is_missing_is_named():
    for algorithm, given, name in (
        (GRPO, batch(advantages=None), "Batch.advantages"),
        (replace(GRPO, kl_coef=0.1), batch(), "Batch.ref_logps_BT"),
        (replace(GRPO, entropy_coef=0.1), batch(), "Batch.entropies_BT"),
        (PAIRWISE, batch(), "Batch.rewards_B"),
        (DR_GRPO, batch(), "needs a constant"),
    ):
        with pytest.raises(ValueError, match=name):
            algorithm_loss(algorithm, given)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"normalisation": "mean"}, "normalisation is 'mean'; it must be one of 'token', "),
        ({"kl_in": "critic"}, "kl_in is 'critic'; it must be one of 'loss', 'reward', 'advantage'"),
        ({"kl_ratio": "tokens", "kl_coef": 0.1}, "kl_ratio is 'tokens'; it must be one of None, 'token', "),
        ({"loss_fn": "cispo"}, "loss_fn is 'cispo'; it must be a function"),
        ({"kl_fn": "k9", "kl_coef": 0.1}, "kl_fn='k9' is not known.*k1, k2, k3"),
        ({"pair_selector": PAIRWISE.pair_selector}, "go together"),
        ({"loss_fn": None}, "needs a loss_fn or a pair_loss_fn"),
        ({"constant": 0.0}, "constant is 0.0"),
        ({"overlong": 0.2, "advantage_fn": ignore_reward}, "overlong is 0.2, "),
        (
            {"branches": 0.5, "pair_selector": PAIRWISE.pair_selector, "pair_loss_fn": PAIRWISE.pair_loss_fn},
            "branches is 0.5, ",
        ),
        ({"kl_in": "reward", "kl_fn": k2}, "kl_fn is made of k2, which in the reward"),
        ({"kl_in": "reward", "kl_fn": k3}, "kl_fn is made of k3, which in the reward"),
        ({"kl_in": "advantage", "kl_fn": k2, "kl_coef": 1.0}, "kl_fn is made of k2, which in the reward"),
        # without an effect
        ({"constant": 2.0}, "constant is 2.0, .*normalisation='constant'"),
        ({"pair_average": True}, "pair_average is True, .* pair_loss_fn"),
        ({"branch_at": "least_sure"}, "branch_at is 'least_sure', .* branches"),
        ({"kl_in": "reward"}, "kl_in is 'reward', .* kl_coef"),
        ({"kl_in": "reward", "kl_coef": 0.1, "advantage_fn": DISTILL.advantage_fn}, "kl_in is 'reward', .* reward"),
        (
            {"kl_in": "advantage", "kl_coef": 0.1, "loss_fn": None}
            | {name: getattr(PAIRWISE, name) for name in ("pair_selector", "pair_loss_fn")},
            "kl_in is 'advantage', .* loss_fn",
        ),
    ],
)
def test_contradictory_settings_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        Algorithm("wrong", **changes)


def test_a_coefficient_of_0_turns_the_kl_off():
    algorithm = replace(GRPO, kl_coef=lambda step, n_steps, kl: 0.1, kl_fn=k1, kl_in="reward")
    assert (algorithm.at(0.2).kl_coef, algorithm.at(0.2).kl_fn, algorithm.at(0.2).kl_in) == (0.2, k1, "reward")
    assert algorithm.at(0.0) == GRPO


def test_ipo_takes_means_over_tokens_and_other_losses_sums():
    """The chosen row has log-ratio 1 on each of two tokens, the rejected one -3 on its only token."""
    given = batch(
        rewards_B=torch.tensor([1.0, 0.0]),
        group_ids_B=torch.tensor([0, 0]),
        ref_logps_BT=LOGPS_BT - torch.tensor([[1.0, 1.0], [-3.0, NAN]]),
        advantages=None,
    )

    def squared(chosen_P, rejected_P):
        return (chosen_P - rejected_P - 1.0) ** 2

    ipo = replace(PAIRWISE, pair_loss_fn=partial(ipo_loss, beta=0.5))
    for algorithm, expected in (
        (ipo, (1 + 3 - 1) ** 2),
        (replace(ipo, pair_loss_fn=ipo_loss), (1 + 3 - 5) ** 2),
        (replace(ipo, pair_average=False), (2 + 3 - 1) ** 2),
        (replace(ipo, pair_loss_fn=squared), (2 + 3 - 1) ** 2),
        (replace(ipo, pair_loss_fn=squared, pair_average=True), (1 + 3 - 1) ** 2),
    ):
        assert algorithm_loss(algorithm, given)[0].item() == pytest.approx(expected)


def test_schedule():
    schedule = create_algorithm_schedule({10: DAPO, 0: GRPO, 20: PAIRWISE})
    assert [schedule(i).name for i in (0, 9, 10, 19, 20, 99)] == ["grpo", "grpo", "dapo", "dapo"] + ["pairwise"] * 2
    with pytest.raises(ValueError, match="from iteration 0"):
        create_algorithm_schedule({1: GRPO})


def test_a_kl_may_be_named():
    assert replace(GRPO, kl_fn="k2", kl_coef=0.1).kl_estimator is k2
