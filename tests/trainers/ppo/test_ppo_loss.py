"""Advantages and returns of episodes on rows worked by hand, and the exact gradient of a small problem."""

import numpy as np
import pytest
import torch

from llm_envs.trainers.functional.losses import clipped_surrogate
from llm_envs.trainers.functional.masking import masked_whiten
from llm_envs.trainers.ppo.config import EnvPPOConfig
from llm_envs.trainers.ppo.estimates import episode_tokens, estimate, explained_variance
from llm_envs.types import Row, StopReason, Trajectory, Turn


def trajectory(rewards, rows, places, **changes) -> Trajectory:
    """Return an episode whose k-th turn stands in row and span `places[k]`."""
    turns = tuple(Turn(r, {"reward": r}, row=row, span=span) for r, (row, span) in zip(rewards, places, strict=True))
    values = {
        "env_id": "x/Y-v0", "env_kwargs": {}, "seed": 0, "group_id": "g", "member": 0, "messages": (), "tools": (),
        "rows": rows, "turns": turns, "terminated": True, "truncated": False, "stop_reason": StopReason.TERMINATED,
        "status": "ok", "is_success": True,
    }  # fmt: skip
    return Trajectory(**values | changes)


def row(mask, spans) -> Row:
    n = len(mask)
    return Row(np.arange(n, dtype=np.int32), np.array(mask, bool), np.zeros(n, np.float32), spans)


ONE_ROW = row([0, 0, 1, 1, 0, 1, 1, 1, 0], ((2, 4), (5, 8)))
CUT = {"terminated": False, "truncated": True, "stop_reason": StopReason.MAX_TURNS}
NAN = float("nan")
MASK = torch.tensor([[1, 1, 0, 1, 1, 1, 0]])
VALUES = torch.tensor([[1.0, 2.0, NAN, 3.0, 4.0, 5.0, NAN]])  # what is masked is not read


@pytest.mark.parametrize(
    ("bootstrap", "settings", "expected"),
    [
        (0.0, {}, [0.02734375, 0.109375, 0, -1.5625, -2.25, -3.0, 0]),
        # what follows is worth 4: the last delta is 2 + 0.5 * 4 - 5
        (4.0, {}, [0.03515625, 0.140625, 0, -1.4375, -1.75, -1.0, 0]),
        # by turn: gamma and lambda only from token 1 to token 3, and to what follows
        (4.0, {"by_turn": True}, [1.75, 0.75, 0, 1.0, 0.0, -1.0, 0]),
        # 0.5 a token taken from each reward
        (0.0, {"penalties_BT": torch.full((1, 7), 0.5), "lam": 0.0}, [-0.5, 0, 0, -1.5, -2.0, -3.5, 0]),
    ],
)
def test_advantages_and_returns_by_hand(bootstrap, settings, expected):
    episode = trajectory([1.0, 2.0], (ONE_ROW,), [(0, 0), (0, 1)])
    settings = {"gamma": 0.5, "lam": 0.5, **settings}
    settings["value_lam"] = settings["lam"]
    out = estimate([episode], [[1.0, 2.0]], VALUES, torch.tensor([bootstrap]), MASK, **settings)
    assert out.advantages_BT[0].tolist() == pytest.approx(expected)
    returns = [a + v if m else 0.0 for a, v, m in zip(expected, VALUES[0].tolist(), MASK[0].tolist(), strict=True)]
    assert out.returns_BT[0].tolist() == pytest.approx(returns)


def test_the_critics_lambda_is_its_own():
    """Advantages by lambda 0: each delta. Targets by lambda 1, at gamma 0.5: 2, 1, 0.5 from the end, and 1 + 0.25."""
    episode = trajectory([1.0, 2.0], (ONE_ROW,), [(0, 0), (0, 1)])
    out = estimate(
        [episode], [[1.0, 2.0]], VALUES, torch.zeros(1), MASK, gamma=0.5, lam=0.0, value_lam=1.0
    )  # fmt: skip
    assert out.advantages_BT[0].tolist() == pytest.approx([0.0, 0.5, 0, -1.0, -1.5, -3.0, 0])
    assert out.returns_BT[0].tolist() == pytest.approx([0.625, 1.25, 0, 0.5, 1.0, 2.0, 0])


@pytest.mark.parametrize(
    ("by_turn", "alpha", "expected"),
    [  # three tokens of the first turn, three of the second, values 0, the last token is paid 1
        (False, 1 / 3, [1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0]),  # 1 - 1 / (6 / 3) = 1/2 a token
        (True, 1.0, [1 / 2, 1 / 2, 1 / 2, 1.0, 1.0, 1.0]),  # 1 - 1 / 2 a turn
        (True, 0.5, [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]),
    ],
)
def test_lambda_by_the_episodes_length(by_turn, alpha, expected):
    line = row([0, 1, 1, 1, 0, 1, 1, 1], ((1, 4), (5, 8)))
    episode, mask = trajectory([0.0, 1.0], (line,), [(0, 0), (0, 1)]), torch.tensor([[1, 1, 1, 0, 1, 1, 1]])
    out = estimate(
        [episode], [[0.0, 1.0]], torch.zeros(1, 7), torch.zeros(1), mask,
        gamma=1.0, lam=0.95, value_lam=1.0, lam_alpha=alpha, by_turn=by_turn,
    )  # fmt: skip
    assert out.advantages_BT[0][mask[0].bool()].tolist() == pytest.approx(expected)
    assert out.returns_BT[0][mask[0].bool()].tolist() == [1.0] * 6  # the critic's lambda stays its own


def first_quarters(*, by_turn, lam, value_lam):
    """Return the mean whitened advantages and the mean targets of the first 50 tokens, of a success and a failure.

    Both have four turns of 50 tokens. The reward of 1 or 0 comes with the last, and the critic knows nothing yet.
    """
    spans = tuple((2 + 50 * k, 2 + 50 * (k + 1)) for k in range(4))
    long = row([0, 0, *[1] * 200], spans)
    rewards = [[0.0, 0.0, 0.0, 1.0], [0.0] * 4]
    episodes = [trajectory(r, (long,), [(0, k) for k in range(4)]) for r in rewards]
    mask = torch.ones(2, 200)
    out = estimate(
        episodes, rewards, torch.zeros(2, 200), torch.zeros(2), mask,
        gamma=1.0, lam=lam, value_lam=value_lam, by_turn=by_turn,
    )  # fmt: skip
    whitened = masked_whiten(out.advantages_BT, mask)
    return whitened[:, :50].mean(1).tolist(), out.returns_BT[:, :50].mean(1).tolist()


def test_by_default_the_first_words_of_a_long_episode_learn_how_it_ended():
    """By tokens, lambda .95 leaves .95^150 to .95^199 of the reward: whitened, -.327 and -.329. By turns .95^3."""
    by_token, targets = first_quarters(by_turn=False, lam=0.95, value_lam=0.95)
    assert by_token == pytest.approx([-0.327, -0.329], abs=1e-3)
    assert targets == pytest.approx([0.95**150 * (1 - 0.95**50) / (50 * 0.05), 0.0], rel=1e-3)
    config = EnvPPOConfig(output_dir="x", report_to="none", per_device_train_batch_size=8)
    by_default, targets = first_quarters(
        by_turn=config.discount == "turn", lam=config.lam, value_lam=config.value_lam
    )  # fmt: skip
    assert by_default == pytest.approx([0.846, -0.996], abs=2e-3)
    assert targets == [1.0, 0.0]


def test_the_next_token_of_a_fork_stands_in_another_row():
    """The same tokens, values and rewards in two rows have the same advantages; an errored episode has none."""
    rows = row([0, 0, 1, 1], ((2, 4),)), row([0, 1, 1, 1, 0], ((1, 4),))
    forked = trajectory([1.0, 2.0], rows, [(0, 0), (1, 0)], **CUT)
    errored = trajectory([], (), [], status="errored", is_success=None, **CUT)
    values = torch.tensor([[1.0, 2.0, 0, 0], [9.0, 9, 9, 9], [3.0, 4.0, 5.0, 0]])
    mask = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 0]])
    follows = torch.tensor([4.0, 0.0])
    out = estimate([forked, errored], [[1.0, 2.0], []], values, follows, mask, gamma=0.5, lam=0.5, value_lam=0.5)
    assert out.advantages_BT[0].tolist() == pytest.approx([0.03515625, 0.140625, 0, 0])
    assert out.advantages_BT[1].tolist() == [0, 0, 0, 0]
    assert out.advantages_BT[2].tolist() == pytest.approx([-1.4375, -1.75, -1.0, 0])


@pytest.mark.parametrize(("by_turn", "value_lam"), [(False, 1.0), (True, 1.0), (True, 0.5)])
def test_a_branch_is_not_paid_for_the_turns_that_it_repeats(by_turn, value_lam):
    """Three turns are paid 1 each, and the first is another episode's: 2 follow the second turn, 1 the third."""
    line = row([0, 0, 0, 1, 0, 1], ((3, 4), (5, 6)))
    branch = trajectory([1.0] * 3, (line,), [(-1, -1), (0, 0), (0, 1)], metadata={"fork": {"member": 1, "turn": 1}})
    out = estimate(
        [branch], [[1.0] * 3], torch.zeros(1, 3), torch.zeros(1), torch.tensor([[1, 0, 1]]),
        gamma=1.0, lam=1.0, value_lam=value_lam, by_turn=by_turn,
    )  # fmt: skip
    assert out.advantages_BT.tolist() == [[2.0, 0.0, 1.0]]
    assert out.returns_BT.tolist() == [[1.0 + value_lam, 0.0, 1.0]]


def test_a_turn_without_tokens_leaves_its_reward_to_the_one_before():
    silent = row([0, 0, 1, 1, 0], ((2, 4), (4, 4)))
    out = estimate(
        [trajectory([1.0, 2.0], (silent,), [(0, 0), (0, 1)])], [[1.0, 2.0]],
        torch.zeros(1, 3), torch.zeros(1), torch.tensor([[1, 1, 0]]), gamma=1.0, lam=1.0, value_lam=1.0,
    )  # fmt: skip
    assert out.returns_BT.tolist() == [[3.0, 3.0, 0.0]]


def test_tokens_come_back_to_where_they_were():
    tokens = episode_tokens([trajectory([1.0, 2.0], (ONE_ROW,), [(0, 0), (0, 1)])], MASK)
    assert tokens.gather(VALUES).tolist() == [[1.0, 2.0, 3.0, 4.0, 5.0]]
    assert tokens.starts_EK.tolist() == [[0, 2]] and tokens.stops_EK.tolist() == [[2, 5]]
    assert tokens.scatter(tokens.gather(VALUES), MASK.shape).tolist() == [[1.0, 2.0, 0, 3.0, 4.0, 5.0, 0]]


def test_explained_variance():
    returns, mask = torch.tensor([[1.0, 2.0, 3.0, 0]]), torch.tensor([[1, 1, 1, 0]])
    for values, expected in [(returns, 1.0), (torch.full((1, 4), 5.0), 0.0), (torch.tensor([[3.0, 2, 1, 0]]), -3.0)]:
        share, spread_of_returns = explained_variance(values, returns, mask, lambda x: x)
        assert (share, spread_of_returns) == (pytest.approx(expected), pytest.approx(1.0))
    assert np.isnan(explained_variance(returns, torch.ones(1, 4), mask, lambda x: x)[0])


@pytest.mark.parametrize("truncated", [False, True])
def test_over_all_episodes_the_gradient_is_that_of_the_expected_return(truncated):
    """Two turns of one token of two, each episode weighted by its probability; any critic, lambda 1.

    With `truncated` episodes are cut after the first token, and the final value is what the second would bring.
    """
    logits = torch.tensor([[0.3, -0.2], [0.5, 0.1], [-0.4, 0.2]], dtype=torch.float64, requires_grad=True)
    rewards_0, rewards_1 = [0.2, 0.7], [[1.0, -0.5], [0.3, 2.0]]
    logps = logits.log_softmax(-1)
    gain, probabilities, surrogate = 0.0, [], []
    paths = [(a, b) for a in (0, 1) for b in (0, 1)]
    expected_1 = (logps[1:].exp() * torch.tensor(rewards_1, dtype=torch.float64)).sum(-1)
    for a, b in paths:
        probability = (logps[0, a] + logps[1 + a, b]).exp()
        gain = gain + probability * (rewards_0[a] + rewards_1[a][b])
        probabilities.append(probability.detach())
        taken = torch.stack([logps[0, a], logps[1 + a, b]])[None]
        if truncated:
            cut = trajectory([rewards_0[a]], (row([0, 1, 0], ((1, 2),)),), [(0, 0)], **CUT)
            mask, final = torch.tensor([[1, 0]]), expected_1[a : a + 1].detach()
            turn_rewards = [[rewards_0[a]]]
        else:
            cut = trajectory([rewards_0[a], rewards_1[a][b]], (row([0, 1, 1], ((1, 2), (2, 3))),), [(0, 0), (0, 1)])
            mask, final = torch.tensor([[1, 1]]), torch.zeros(1, dtype=torch.float64)
            turn_rewards = [[rewards_0[a], rewards_1[a][b]]]
        values = torch.tensor([[0.8, [0.1, -1.3][a]]], dtype=torch.float64)  # of the state: a baseline without bias
        out = estimate([cut], turn_rewards, values, final, mask, gamma=1.0, lam=1.0, value_lam=1.0)
        surrogate.append(clipped_surrogate(taken, taken.detach(), out.advantages_BT, mask).sum())
    estimated = -sum(p * loss for p, loss in zip(probabilities, surrogate, strict=True))
    (gradient,) = torch.autograd.grad(estimated, logits, retain_graph=True)
    (exact,) = torch.autograd.grad(gain, logits)
    torch.testing.assert_close(
        gradient[:1] if truncated else gradient, exact[:1] if truncated else exact, atol=1e-6, rtol=0
    )
