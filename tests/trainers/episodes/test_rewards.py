"""The rewards of an episode for learning: columns, weights, aggregates, turns, and their mapping to tokens."""

import dataclasses

import numpy as np
import pytest

from llm_envs.errors import InvalidConfigError, JudgeError
from llm_envs.policies import ConstantPolicy
from llm_envs.rewards import create_gated, score_trajectories, trl_reward
from llm_envs.rollout import converse
from llm_envs.trainers.episodes.rewards import RewardSettings, score_episodes, warn_of_absent
from llm_envs.types import Row, StopReason, Trajectory, Turn

ROW = Row(
    np.arange(9, dtype=np.int32), np.array([0, 0, 1, 1, 0, 1, 1, 1, 0], bool), np.zeros(9, np.float32), ((2, 4), (5, 8))
)


def episode(rewards, member=0, group="g", components=None, **changes) -> Trajectory:
    parts = components or [{"reward": reward} for reward in rewards]
    turns = tuple(Turn(r, part, row=0, span=k) for k, (r, part) in enumerate(zip(rewards, parts, strict=True)))
    values = {
        "env_id": "x/Y-v0",
        "env_kwargs": {},
        "seed": 0,
        "group_id": group,
        "member": member,
        "messages": (),
        "tools": (),
        "rows": (ROW,),
        "turns": turns,
        "terminated": True,
        "truncated": False,
        "stop_reason": StopReason.TERMINATED,
        "status": "ok",
        "is_success": True,
    }
    return Trajectory(**values | changes)


FAILED = episode([1.0], member=9, status="errored", is_success=None)


def test_the_reward_is_the_only_column_without_settings():
    episodes = score_episodes([episode([0.25, 0.5]), FAILED], RewardSettings(), {})
    assert episodes.columns == {"reward": (0.75, None)} and episodes.weights == {"reward": 1.0}
    assert [part.tolist() for part in episodes.turn_rewards] == [[0.25, 0.5], []]
    assert episodes.rewards[0] == 0.75 and np.isnan(episodes.rewards[1])


def test_components_reward_functions_and_shaping_are_columns_of_their_own():
    parts = [{"right": 0.0, "form": 1.0}, {"right": 1.0, "form": 0.5}]
    settings = RewardSettings(
        reward_fns={"short": lambda t: -len(t.turns)},
        shaping_fns={"cost": lambda t: [-0.1] * len(t.turns)},
        components=True,
        weights={"short": 0.5},
    )
    episodes = score_episodes([episode([0.1, 1.05], components=parts)], settings, {"right": 1.0, "form": 0.1})
    assert episodes.columns == {"right": (1.0,), "form": (1.5,), "short": (-2.0,), "shaping/cost": (-0.2,)}
    assert episodes.weights == {"right": 1.0, "form": 0.1, "short": 0.5, "shaping/cost": 1.0}
    # By turn: 0.1·1 − 0.1, and 1 + 0.1·0.5 − 0.1 with 0.5·(−2) at the end.
    assert episodes.turn_rewards[0].tolist() == pytest.approx([0.0, -0.05])
    weighted = sum(weight * episodes.columns[name][0] for name, weight in episodes.weights.items())
    assert episodes.rewards[0] == pytest.approx(weighted)


def test_the_tasks_own_reward_may_count_nothing():
    settings = RewardSettings(reward_fns={"mine": lambda t: 3.0}, weights={"reward": 0.0})
    assert score_episodes([episode([1.0])], settings, {}).rewards.tolist() == [3.0]


def test_what_a_reward_function_cannot_score_is_unscored_and_no_zero():
    def judge(trajectory):
        if trajectory.member == 1:
            raise JudgeError("the judge is away")
        return 1.0

    episodes = score_episodes(
        [episode([0.5]), episode([0.5], member=1)], RewardSettings(reward_fns={"judge": judge}), {}
    )
    assert episodes.columns == {"reward": (0.5, None), "judge": (1.0, None)}
    assert episodes.trajectories[1].status == "unscored"
    assert episodes.trajectories[1].metadata["unscored_because"] == "judge: JudgeError: the judge is away"
    assert np.isnan(episodes.rewards[1])


def test_an_aggregate_replaces_the_sum_and_the_parts_stay_to_be_seen():
    gated = create_gated("safe", 0.5)
    settings = RewardSettings(reward_fns={"safe": lambda t: float(t.member)}, aggregate=gated)
    episodes = score_episodes([episode([2.0]), episode([2.0], member=1)], settings, {})
    assert episodes.columns["aggregate"] == (0.0, 3.0)
    assert episodes.weights == {"reward": 0.0, "safe": 0.0, "aggregate": 1.0}
    assert episodes.rewards.tolist() == [0.0, 3.0]


def test_z_scores_of_columns_are_weighted_after_they_are_taken():
    """By hand: in group a both columns have the z-scores -1/sqrt(2) and 1/sqrt(2), at opposite ends."""
    second = {0: 5.0, 1: 1.0, 2: 7.0}
    played = [episode([r], m, g) for r, m, g in [(1, 0, "a"), (3, 1, "a"), (9, 2, "b")]]
    settings = RewardSettings(
        reward_fns={"other": lambda t: second[t.member]}, aggregate="z_score", weights={"other": 3.0}
    )
    episodes = score_episodes([*played, FAILED], settings, {})
    z = 2**0.5 / (2 + 1e-4 * 2**0.5), 2 * 2**0.5 / (4 + 1e-4 * 2**0.5)
    assert episodes.columns["aggregate"][:2] == pytest.approx((-z[0] + 3 * z[1], z[0] - 3 * z[1]), rel=1e-3)
    assert episodes.columns["aggregate"][2:] == (0.0, None)


def test_pareto_compares_inside_the_group():
    """In group a the second is dominated by both; in group b none dominates another."""
    second = {(0, "a"): 1.0, (1, "a"): 0.0, (2, "a"): 2.0, (0, "b"): 0.0, (1, "b"): 1.0}
    played = [episode([r], m, g) for r, m, g in [(3, 0, "a"), (1, 1, "a"), (2, 2, "a"), (1, 0, "b"), (0, 1, "b")]]
    settings = RewardSettings(reward_fns={"other": lambda t: second[t.member, t.group_id]}, aggregate="pareto")
    episodes = score_episodes([*played, FAILED], settings, {})
    assert episodes.columns["aggregate"] == (1.0, 0.5, 1.0, 1.0, 1.0, None)
    ranked = score_episodes(played, dataclasses.replace(settings, aggregate="relative"), {})
    assert ranked.columns["aggregate"] == (0.75, 0.0, 0.75, 0.5, 0.5)  # means of the ranks of two parts


def declares_a_number(trajectory: Trajectory) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        (RewardSettings(weights={"rewrd": 1.0}), "names 'rewrd'; the columns are reward"),
        (RewardSettings(components=True, weights={"rihgt": 1.0}), "names 'rihgt'; the columns are right, reward"),
        (
            RewardSettings(reward_fns=lambda t: 1.0, shaping_fns={"cost": lambda t: [0.0]}, weights={"shaping/x": 2}),
            "names 'shaping/x'",
        ),
        (RewardSettings(reward_fns={"reward": lambda t: 1.0}), "two reward columns are called 'reward'"),
        (RewardSettings(reward_fns={"length": lambda t: 1.0}, weights={"lenght": 1.0}), "'lenght'; .* reward, length"),
        (RewardSettings(reward_fns=declares_a_number, weights={"else": 1.0}), "'else'; .* reward, declares_a_number"),
        (RewardSettings(aggregate="best"), "aggregate='best'"),
    ],
)
def test_settings_that_cannot_be_meant(settings, match):
    with pytest.raises(InvalidConfigError, match=match):
        score_episodes([episode([1.0])], settings, {"right": 1.0})


def test_a_weight_whose_column_does_not_occur_has_no_effect():
    """Only some episodes have the column of one task of a mixture, or of a function that returns other names."""
    parts = RewardSettings(components=True, weights={"other": 2.0})
    episodes = score_episodes([episode([1.0], components=[{"right": 1.0}])], parts, {"right": 1.0, "other": 1.0})
    assert episodes.columns == {"right": (1.0,)} and episodes.rewards.tolist() == [1.0]
    named = RewardSettings(reward_fns={"f": lambda t: {"ab"[t.member]: 1.0}}, weights={"reward": 0.0, "a": 2.0})
    first, second = (score_episodes([episode([1.0], member)], named, {}) for member in range(2))
    assert (first.rewards.tolist(), second.rewards.tolist()) == ([2.0], [1.0])
    with pytest.warns(UserWarning, match=r"RewardSettings\.weights names a:.* columns are reward, b"):
        warn_of_absent(named, second.columns)


def broken(trajectory: Trajectory) -> float:
    raise KeyError("x")


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda t: None, "it gave None"),
        (lambda t: "1.0", "it gave x as '1.0'; it must be a number"),
        (lambda t: float("nan"), "it gave x as nan; it must be finite"),
        (broken, "KeyError: 'x'"),
    ],
)
def test_what_is_no_score_leaves_the_episode_unscored(function, why):
    """The same holds in tasks (`PromptTask`), in `converse` and for agents."""
    settings = RewardSettings(reward_fns={"x": lambda t: function(t) if t.member else 1.0})
    episodes = score_episodes([episode([1.0], member) for member in range(2)], settings, {})
    assert [t.status for t in episodes.trajectories] == ["ok", "unscored"]
    assert episodes.trajectories[1].metadata["unscored_because"] == f"x: {why}"
    assert episodes.rewards[0] == 2.0 and np.isnan(episodes.rewards[1])


def test_functions_of_trl_are_refused_when_the_settings_are_made():
    def theirs(completions, **kwargs):
        return [1.0 for _ in completions]

    with pytest.raises(InvalidConfigError, match=r"'theirs' takes \(completions, \*\*kwargs\).*trl_reward"):
        RewardSettings(reward_fns=theirs)
    settings = RewardSettings.of(trl_reward(theirs))
    assert score_episodes([episode([1.0])], settings, {}).columns == {"reward": (1.0,), "theirs": (1.0,)}


def test_a_reward_function_of_trl_itself():
    rewards = pytest.importorskip("trl.rewards")
    reward_fn = trl_reward(rewards.think_format_reward)
    replies = ["<think>12 is 3 times 4.</think>It is 12.", "It is 12."]
    played = [converse(ConstantPolicy(text), "3 * 4?", reward_fn=lambda t: 0.0) for text in replies]
    assert [each.components for each in score_trajectories(played, reward_fn)] == [
        {"think_format_reward": 1.0}, {"think_format_reward": 0.0},
    ]  # fmt: skip
