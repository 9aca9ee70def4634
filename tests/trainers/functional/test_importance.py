"""Importance weights by hand, and that the exact ones undo another sampler."""

import math

import pytest
import torch

from llm_envs.trainers.functional.importance import importance_weights
from llm_envs.trainers.functional.losses import policy_gradient

NAN = float("nan")
# Ratios 4, 1/2, unknown, masked; and 2.
LOG2 = math.log(2.0)
SAMPLING_BT = torch.tensor([[-3.0, -1.0, NAN, NAN], [-1.0, -7.0, -7.0, -7.0]])
LOGPS_BT = torch.tensor([[-3.0 + 2 * LOG2, -1.0 - LOG2, -5.0, NAN], [-1.0 + LOG2, NAN, NAN, NAN]], requires_grad=True)
MASK_BT = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]])


@pytest.mark.parametrize(
    ("mode", "minimum", "expected"),
    [
        ("token_truncate", None, [[3.0, 0.5, 1.0, 1.0], [2.0, 1.0, 1.0, 1.0]]),
        ("token_truncate", 0.75, [[3.0, 0.75, 1.0, 1.0], [2.0, 1.0, 1.0, 1.0]]),
        ("token_mask", None, [[0.0, 0.5, 1.0, 1.0], [2.0, 1.0, 1.0, 1.0]]),
        ("token_mask", 0.75, [[0.0, 0.0, 1.0, 1.0], [2.0, 1.0, 1.0, 1.0]]),
        ("sequence_truncate", None, [[2.0], [2.0]]),
        ("sequence_truncate", 2.5, [[2.5], [2.5]]),
        ("sequence_mask", None, [[2.0], [2.0]]),
        ("sequence_mask", 2.5, [[0.0], [0.0]]),
        ("turn_truncate", None, [[2**0.5, 2**0.5, 1.0, 1.0], [2.0, 1.0, 1.0, 1.0]]),  # turns 4, 1/2 and 2
        ("turn_mask", 1.2, [[2**0.5, 2**0.5, 0.0, 0.0], [2.0, 0.0, 0.0, 0.0]]),
        ("geometric_truncate", 1.5, [[1.5], [2.0]]),
        ("geometric_mask", 1.5, [[0.0], [2.0]]),
    ],
)
def test_the_modes(mode, minimum, expected):
    weights = importance_weights(LOGPS_BT, SAMPLING_BT, MASK_BT, mode=mode, minimum=minimum)
    assert not weights.requires_grad
    torch.testing.assert_close(weights, torch.tensor(expected))


def test_without_bounds():
    weights_BT = importance_weights(LOGPS_BT, SAMPLING_BT, MASK_BT, mode="token_mask", maximum=None)
    assert weights_BT[0].tolist() == pytest.approx([4.0, 0.5, 1.0, 1.0])


def test_a_turn_ends_where_the_environment_speaks():
    """Ratios 4 and 1 in the first turn, 9 in the second: geometric means 2 and 9, of the row 36^(1/3)."""
    logps_BT, mask_BT = torch.tensor([[4.0, 1.0, NAN, 9.0]]).log(), torch.tensor([[1, 1, 0, 1]])
    old_BT = torch.zeros(1, 4)
    turns_BT = importance_weights(logps_BT, old_BT, mask_BT, mode="turn_truncate", maximum=10.0)
    torch.testing.assert_close(turns_BT, torch.tensor([[2.0, 2.0, 1.0, 9.0]]))
    row_B1 = importance_weights(logps_BT, old_BT, mask_BT, mode="geometric_truncate", maximum=10.0)
    torch.testing.assert_close(row_B1, torch.tensor([[36.0 ** (1 / 3)]]))


def test_wrong_settings_are_refused():
    for mode in ("token_truncate", "turn_truncate", "geometric_truncate", "sequence_truncate"):
        with pytest.raises(ValueError, match=f"mode='{mode}'"):
            importance_weights(LOGPS_BT, SAMPLING_BT, MASK_BT, mode=mode, maximum=None)
    with pytest.raises(ValueError, match="mode is 'token'"):
        importance_weights(LOGPS_BT, SAMPLING_BT, MASK_BT, mode="token")
    with pytest.raises(ValueError, match="0 <= minimum < maximum"):
        importance_weights(LOGPS_BT, SAMPLING_BT, MASK_BT, maximum=1.0, minimum=2.0)


def test_the_gradient_under_another_sampler_is_that_of_the_policy():
    theta = torch.tensor([0.2, -0.4, 0.9], dtype=torch.float64, requires_grad=True)
    sampler = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    paid_B, mask_B1 = torch.tensor([1.0, 0.0, 3.0], dtype=torch.float64), torch.ones(3, 1)
    logps_B1 = torch.log_softmax(theta, 0)[:, None]
    old_B1 = sampler.log()[:, None]
    weights_B1 = importance_weights(logps_B1, old_B1, mask_B1, mode="token_mask", maximum=None)
    loss = (sampler[:, None] * weights_B1 * policy_gradient(logps_B1, old_B1, paid_B, mask_B1)).sum()
    exact = -(torch.softmax(theta, 0) * paid_B).sum()
    torch.testing.assert_close(torch.autograd.grad(loss, theta)[0], torch.autograd.grad(exact, theta)[0])
