"""Losses per token: hand-worked numbers and closed-form gradients."""

import itertools
import math
from functools import partial

import pytest
import torch

from llm_envs.trainers.functional.losses import (
    cispo,
    clipped_surrogate,
    clipped_tokens,
    entropy_bonus,
    log_ratios,
    negative_log_likelihood,
    policy_gradient,
    value_loss,
)
from llm_envs.trainers.functional.masking import aggregate_loss

NAN = float("nan")
# Ratios 1.5, 0.5, 1.1 and 3, and a masked place.
RATIOS = [1.5, 0.5, 1.1, 3.0]
OLD_BT = torch.tensor([[-1.0, -2.0, -0.5, -3.0, NAN]])
LOGPS_BT = torch.tensor([[old + math.log(r) for old, r in zip(OLD_BT[0].tolist(), RATIOS, strict=False)] + [NAN]])
MASK_BT = torch.tensor([[1, 1, 1, 1, 0]])


def value_and_gradient(loss_fn, advantages):
    logps_BT = LOGPS_BT.clone().requires_grad_()
    loss_BT = loss_fn(logps_BT, OLD_BT, advantages, MASK_BT)
    loss_BT.sum().backward()
    return loss_BT[0].tolist(), logps_BT.grad[0].tolist()


def test_clipped_surrogate_of_a_good_action():
    loss, gradient = value_and_gradient(clipped_surrogate, torch.tensor([2.0]))
    assert loss == pytest.approx([-2.4, -1.0, -2.2, -2.4, 0.0])
    assert gradient == pytest.approx([0.0, -1.0, -2.2, 0.0, 0.0])  # -A r where it is not cut


def test_clipped_surrogate_of_a_bad_action():
    loss, gradient = value_and_gradient(clipped_surrogate, torch.tensor([-2.0]))
    assert loss == pytest.approx([3.0, 1.6, 2.2, 6.0, 0.0])
    assert gradient == pytest.approx([3.0, 0.0, 2.2, 6.0, 0.0])


def test_decoupled_and_dual_clip():
    loss_fn = partial(clipped_surrogate, clip_low=0.2, clip_high=0.6, dual_clip=2.5)
    assert value_and_gradient(loss_fn, torch.tensor([1.0]))[0] == pytest.approx([-1.5, -0.5, -1.1, -1.6, 0.0])
    loss, gradient = value_and_gradient(loss_fn, torch.tensor([-1.0]))
    assert loss == pytest.approx([1.5, 0.8, 1.1, 2.5, 0.0])
    assert gradient == pytest.approx([1.5, 0.0, 1.1, 0.0, 0.0])


def test_advantages_of_rows_and_of_tokens():
    per_token = torch.tensor([[1.0, -1.0, 0.0, -2.0, NAN]])
    assert value_and_gradient(clipped_surrogate, per_token)[0] == pytest.approx([-1.2, 0.8, 0.0, 6.0, 0.0])
    rows = value_and_gradient(clipped_surrogate, torch.tensor([2.0]))
    assert value_and_gradient(clipped_surrogate, torch.tensor([[2.0]])) == rows
    with pytest.raises(ValueError, match="fit no mask"):
        clipped_surrogate(LOGPS_BT, OLD_BT, torch.ones(1, 3), MASK_BT)


MEAN_LOG_RATIO = sum(math.log(r) for r in RATIOS) / 4


def test_ratios_of_sequences():
    for level in ("geometric", "geometric_token"):
        log_ratios_BT = log_ratios(LOGPS_BT, OLD_BT, MASK_BT, level=level)
        assert log_ratios_BT[0, :4].tolist() == pytest.approx([MEAN_LOG_RATIO] * 4)
        loss_fn = partial(clipped_surrogate, clip_low=0.5, clip_high=0.5, level=level)
        loss, gradient = value_and_gradient(loss_fn, torch.tensor([2.0]))
        ratio = math.exp(MEAN_LOG_RATIO)
        assert loss == pytest.approx([-2 * ratio] * 4 + [0.0])
        # of the sum over 4 tokens: 4 (-2 ratio) / 4 for each
        assert gradient == pytest.approx([-2 * ratio] * 4 + [0.0])
    # "sequence" is a product of ratios in `importance_weights`, so it is no name here.
    with pytest.raises(ValueError, match=r"level is 'sequence'.*'token', 'turn', 'geometric'"):
        log_ratios(LOGPS_BT, OLD_BT, MASK_BT, level="sequence")


def test_ratios_of_turns():
    """Ratios 4 and 1 in the first turn, 1/2 and 2 and 8 in the second: geometric means 2 and 2; then 9."""
    mask_BT = torch.tensor([[0, 1, 1, 0, 1, 1, 1, 0, 1]])
    logs = torch.tensor([[NAN, 4.0, 1.0, NAN, 0.5, 2.0, 8.0, NAN, 9.0]]).log()
    log_ratios_BT = log_ratios(logs, torch.zeros_like(logs), mask_BT, level="turn")
    expected = [0.0, math.log(2), math.log(2), 0.0, *[math.log(2)] * 3, 0.0, math.log(9)]
    assert log_ratios_BT[0].tolist() == pytest.approx(expected)
    logps_BT = logs.clone().requires_grad_()
    advantages_BT = torch.tensor([[0.0, 1.0, 1.0, 0.0, -1.0, -1.0, -1.0, 0.0, 1.0]])
    loss_fn = partial(clipped_surrogate, clip_low=0.2, clip_high=2.0, level="turn")
    loss_BT = loss_fn(logps_BT, torch.zeros_like(logs), advantages_BT, mask_BT)
    loss_BT.sum().backward()
    assert loss_BT[0].tolist() == pytest.approx([0.0, -2.0, -2.0, 0.0, 2.0, 2.0, 2.0, 0.0, -3.0])
    # of the sum over the n tokens of a turn: n (-A ratio) / n for each; the last turn is cut at 3
    assert logps_BT.grad[0].tolist() == pytest.approx([0.0, -2.0, -2.0, 0.0, 2.0, 2.0, 2.0, 0.0, 0.0])


def test_with_advantages_of_tokens_only_geometric_token_credits_each_token_alone():
    advantages_BT = torch.tensor([[4.0, 0.0, 0.0, 0.0, 0.0]])
    ratio = math.exp(MEAN_LOG_RATIO)
    wide = {"clip_low": 1.0, "clip_high": 9.0}
    own = value_and_gradient(partial(clipped_surrogate, level="geometric_token", **wide), advantages_BT)
    shared = value_and_gradient(partial(clipped_surrogate, level="geometric", **wide), advantages_BT)
    assert own[0] == pytest.approx(shared[0])
    assert own[1] == pytest.approx([-4 * ratio, 0.0, 0.0, 0.0, 0.0])
    assert shared[1] == pytest.approx([-ratio] * 4 + [0.0])


def test_policy_gradient():
    loss, gradient = value_and_gradient(policy_gradient, torch.tensor([2.0]))
    assert loss == pytest.approx([-2 * logp for logp in LOGPS_BT[0, :4].tolist()] + [0.0])
    assert gradient == [-2.0, -2.0, -2.0, -2.0, 0.0]


def test_cispo_clips_the_weight_and_keeps_the_gradient():
    loss, gradient = value_and_gradient(partial(cispo, max_ratio=2.0, min_ratio=0.75), torch.tensor([2.0]))
    assert gradient == pytest.approx([-3.0, -1.5, -2.2, -4.0, 0.0])
    assert loss == pytest.approx(
        [g * logp for g, logp in zip(gradient[:4], LOGPS_BT[0].tolist(), strict=False)] + [0.0]
    )
    assert value_and_gradient(cispo, torch.tensor([2.0]))[1] == pytest.approx([-3.0, -1.0, -2.2, -6.0, 0.0])


def test_clipped_tokens():
    def shares(advantage, **clip):
        parts = clipped_tokens(LOGPS_BT, OLD_BT, torch.tensor([advantage]), MASK_BT, **clip)
        return [int(part.sum()) / 4 for part in parts]

    assert shares(1.0) == [0.0, 0.5]
    assert shares(-1.0, clip_low=0.6) == [0.0, 0.0]
    assert shares(-1.0)[0] == 0.25


def test_value_loss_takes_the_worse_of_clipped_and_not():
    values_BT = torch.tensor([[1.0, 1.0, 1.1, NAN]], requires_grad=True)
    old_BT = torch.tensor([[0.5, 0.5, 1.0, NAN]])
    returns_BT = torch.tensor([[1.0, 0.0, 2.0, NAN]])
    mask_BT = torch.tensor([[1, 1, 1, 0]])
    loss_BT = value_loss(values_BT, old_BT, returns_BT, mask_BT, clip=0.2)
    # clipped values: 0.7, 0.7, 1.1
    assert loss_BT[0].tolist() == pytest.approx([0.5 * 0.09, 0.5, 0.5 * 0.81, 0.0])
    loss_BT.sum().backward()
    assert values_BT.grad[0].tolist() == pytest.approx([0.0, 1.0, -0.9, 0.0])
    assert value_loss(values_BT, old_BT, returns_BT, mask_BT, clip=None)[0].tolist() == pytest.approx(
        [0.0, 0.5, 0.5 * 0.81, 0.0]
    )


def test_entropy_and_likelihood():
    entropies_BT = torch.tensor([[1.0, 3.0, NAN]])
    mask_BT = torch.tensor([[1, 1, 0]])
    assert entropy_bonus(entropies_BT, mask_BT).item() == 2.0
    assert negative_log_likelihood(torch.tensor([[-1.0, -3.0, NAN]]), mask_BT).tolist() == [[1.0, 3.0, 0.0]]


def test_stored_values_and_returns_are_constants():
    values_BT, old_BT, returns_BT = (torch.tensor([[x]], requires_grad=True) for x in (1.0, 0.95, 3.0))
    value_loss(values_BT, old_BT, returns_BT, torch.ones(1, 1)).sum().backward()
    assert (old_BT.grad, returns_BT.grad) == (None, None)
    assert values_BT.grad.item() == pytest.approx(-2.0)


def test_bounds_that_make_no_sense_are_refused():
    for settings, words in (
        ({"clip_low": 1.5}, "clip_low=1.5"),
        ({"clip_high": -0.1}, "clip_high=-0.1"),
        ({"dual_clip": 1.1}, r"above 1 \+ clip_high = 1.2"),
    ):
        with pytest.raises(ValueError, match=words):
            clipped_surrogate(LOGPS_BT, OLD_BT, torch.tensor([1.0]), MASK_BT, **settings)
    with pytest.raises(ValueError, match=r"min_ratio=0\.5.*max_ratio=0\.5"):
        cispo(LOGPS_BT, OLD_BT, torch.tensor([1.0]), MASK_BT, max_ratio=0.5, min_ratio=0.5)


# Two tokens of two values each; the second's distribution depends on the first. Rewards of the four sequences:
PAID = torch.tensor([[0.0, 1.0], [2.0, -1.0]], dtype=torch.float64)
THETA = torch.tensor([[0.3, -0.2], [0.8, 0.1], [-0.4, 0.6]], dtype=torch.float64)
OLD_THETA = torch.tensor([[0.0, 0.1], [0.2, 0.5], [0.3, -0.3]], dtype=torch.float64)


def sequences(theta):
    """Return log-probabilities (4, 2) of the sequences' tokens, and their rewards."""
    logps = torch.log_softmax(theta, 1)
    rows = [torch.stack([logps[0, a], logps[1 + a, b]]) for a, b in itertools.product(range(2), repeat=2)]
    return torch.stack(rows), PAID.flatten()


def exact_policy_gradient():
    theta = THETA.clone().requires_grad_()
    logps_BT, rewards_B = sequences(theta)
    return torch.autograd.grad(-(logps_BT.sum(1).exp() * rewards_B).sum(), theta)[0]


def expected_gradient(loss_fn, sampler_theta, level_weights=None):
    theta = THETA.clone().requires_grad_()
    logps_BT, rewards_B = sequences(theta)
    old_BT, _ = sequences(sampler_theta)
    loss_BT = loss_fn(logps_BT, old_BT, rewards_B, torch.ones(4, 2))
    weights_B = old_BT.sum(1).exp()
    total = sum(
        weights_B[row] * aggregate_loss(loss_BT[row : row + 1], torch.ones(1, 2), "constant", constant=1.0)
        for row in range(4)
    )
    return torch.autograd.grad(total, theta)[0]


@pytest.mark.parametrize(
    "loss_fn", [policy_gradient, clipped_surrogate, cispo], ids=["policy_gradient", "clipped_surrogate", "cispo"]
)
def test_on_policy_each_loss_has_the_gradient_of_the_expected_reward(loss_fn):
    torch.testing.assert_close(expected_gradient(loss_fn, THETA), exact_policy_gradient())


def test_off_policy_the_whole_sequences_ratio_corrects_it_and_no_correction_does_not():
    def weighted(logps_BT, old_BT, advantages_B, mask_BT):
        weights_B1 = (logps_BT - old_BT).sum(1, keepdim=True).exp().detach()
        return weights_B1 * policy_gradient(logps_BT, old_BT, advantages_B, mask_BT)

    torch.testing.assert_close(expected_gradient(weighted, OLD_THETA), exact_policy_gradient())
    assert not torch.allclose(expected_gradient(policy_gradient, OLD_THETA), exact_policy_gradient(), rtol=0.1)
