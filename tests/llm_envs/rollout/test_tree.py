"""Groups that are trees, and the values of turns by branching, against exact values of small games."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from llm_envs.errors import InvalidConfigError
from llm_envs.evaluation.statistics import NOTHING_KNOWN
from llm_envs.evaluation.turn_values import _interval, turn_values
from llm_envs.policies import RandomPolicy
from llm_envs.rollout import Collector, RolloutLimits
from llm_envs.rollout.tree import add_branches, disagreement, every_turn, is_root, least_sure, n_roots
from llm_envs.testing import ByteCodec, HashingTokenPolicy
from llm_envs.types import SamplingParams, Trajectory, validate_batch

MAZE = "llm/Maze-v0"
MOVES = ("up", "down", "left", "right")
TEXTS = [f"<answer>{move}</answer>" for move in MOVES]
LIMITS = RolloutLimits(max_turns=5)


def collector(**settings: Any) -> Collector:
    sampling = SamplingParams(max_new_tokens=24)
    return Collector(
        MAZE, HashingTokenPolicy(ByteCodec(), TEXTS), codec=ByteCodec(), sampling=sampling, progress=False, **settings
    )


@pytest.mark.parametrize("turns_fn", ["every_turn", "least_sure", "disagreement", lambda roots, n: [(0, 2)] * n])
def test_a_tree_has_its_roots_and_branches_of_them(turns_fn: Any) -> None:
    with collector(limits=LIMITS) as playing:
        groups = playing.collect(2, 2)
        trees = add_branches(groups, 8, playing.play, turns_fn)
        again = add_branches(groups, 8, playing.play, turns_fn)
    assert trees == again
    for tree, group in zip(trees, groups, strict=True):
        assert tree.group_id == group.group_id and [t.member for t in tree] == list(range(8))
        assert tree.trajectories[:2] == group.trajectories
        assert [is_root(t) for t in tree] == [True] * 2 + [False] * 6
        assert validate_batch(tree.trajectories) == []
        for branch in tree.trajectories[2:]:
            fork = branch.metadata["fork"]
            root = group.trajectories[fork["member"]]
            assert fork["turn"] > 0 and branch.status == "ok" and branch.seed == root.seed
            start = root.rows[0].spans[fork["turn"]][0]
            np.testing.assert_array_equal(branch.rows[0].ids[:start], root.rows[0].ids[:start])
            assert not branch.rows[0].mask[:start].any() and branch.rows[0].mask[start:].any()


def roots(*n_turns: int) -> list[Trajectory]:
    with collector(limits=RolloutLimits(max_turns=max(n_turns))) as playing:
        (group,) = playing.collect(1, len(n_turns))
    return list(group)


def test_branches_are_spread_evenly_over_the_turns() -> None:
    two = roots(3, 3)
    turns = [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert [len(root.turns) for root in two] == [3, 3]
    assert every_turn(two, 4) == turns
    assert every_turn(two, 6) == [*turns, *turns[:2]]
    assert every_turn(two, 2) == [turns[0], turns[2]]
    (one,) = roots(1)
    assert every_turn([one], 3) == [(0, 0)] * 3


def test_the_least_sure_turns_come_first() -> None:
    (root,) = roots(4)
    logps = root.rows[0].logps.copy()
    for (start, stop), value in zip(root.rows[0].spans, (-9.0, -1.0, -3.0, -2.0), strict=True):
        logps[start:stop] = value
    row = type(root.rows[0])(root.rows[0].ids, root.rows[0].mask, logps, root.rows[0].spans)
    changed = type(root)(**{name: getattr(root, name) for name in root.__dataclass_fields__} | {"rows": (row,)})
    assert least_sure([changed], 4) == [(0, 2), (0, 3), (0, 1), (0, 2)]
    with Collector(MAZE, RandomPolicy(), progress=False, limits=LIMITS) as playing:
        (group,) = playing.collect(1, 1)
    with pytest.raises(InvalidConfigError, match=r"turn \d+ .*log-probabilities"):
        least_sure(list(group), 1)


def test_disagreement_is_in_states_that_were_left_by_different_replies() -> None:
    many = roots(*[4] * 8)
    chosen = disagreement(many, 3)
    with pytest.raises(AssertionError):
        assert chosen == every_turn(many, 3)
    assert all(0 < k < 4 for _, k in chosen) and len(set(chosen)) == 3


def test_wrong_choices_and_sizes() -> None:
    with collector(limits=LIMITS) as playing:
        groups = playing.collect(1, 2)
        with pytest.raises(InvalidConfigError, match=r"3 pairs .*\[5, 5\]"):
            add_branches(groups, 5, playing.play, lambda found, n: [(0, 9)] * n)
        with pytest.raises(InvalidConfigError, match="has 2 roots"):
            add_branches(groups, 1, playing.play)


def test_two_members_at_least_begin_anew() -> None:
    """A root alone has nothing to compare its first turn with, and no spread for a filter of groups."""
    assert [n_roots(share, 8) for share in (0.0, 0.25, 0.75, 0.99)] == [8, 6, 2, 2]
    assert [n_roots(0.75, size) for size in (3, 4, 5, 6, 9)] == [2, 2, 2, 2, 2]
    assert n_roots(0.0, 1) == 1
    for share, size in ((0.5, 1), (0.75, 2), (0.1, 4)):  # the last one rounds to none
        with pytest.raises(InvalidConfigError, match=f"branches={share} .* {size} "):
            n_roots(share, size)


def test_without_a_root_that_succeeded_all_members_begin_anew() -> None:
    class Failing(gym.Wrapper[str, str, str, str]):
        fails = True

        def step(self, action: str) -> Any:
            if Failing.fails:
                raise RuntimeError("broken")
            return self.env.step(action)

    def make(**kwargs: Any) -> gym.Env[str, str]:
        return Failing(gym.make(MAZE, **kwargs))

    with Collector(make, RandomPolicy(), progress=False, limits=LIMITS, max_retries=0) as playing:
        groups = playing.collect(1, 2)
        Failing.fails = False
        (tree,) = add_branches(groups, 4, playing.play)
    assert [t.status for t in tree] == ["errored", "errored", "ok", "ok"]
    assert all(map(is_root, tree))


# Values.


def test_intervals_by_hand() -> None:
    """Student's for 0, 1, 1: 2/3 ± 4.303 * 0.577 / sqrt(3). Of equal ones, Wilson's bound for 0 of 3 is 0.5615."""
    differ, equal = _interval([0.0, 1.0, 1.0], 0.0, 1.0, 0.95), _interval([0.5] * 3, 0.0, 1.0, 0.95)
    assert differ == pytest.approx((2 / 3 - 1.434, 2 / 3 + 1.434), abs=1e-3)
    assert equal == pytest.approx((0.5 - 0.5615 / 2, 0.5 + 0.5615 / 2), abs=1e-4)
    assert _interval([0.5] * 3, 0.5, 0.5, 0.95) == NOTHING_KNOWN == _interval([], 0.0, 1.0, 0.95)


class Uniform:
    """Takes one of some actions, each as likely."""

    def __init__(self, actions: tuple[str, ...], seed: int = 0) -> None:
        self.actions, self._rng = actions, np.random.default_rng(seed)

    def for_episode(self, seed: int) -> Uniform:
        return Uniform(self.actions, seed)

    def act(self, env: Any, observation: str) -> str:
        return f"<answer>{self.actions[self._rng.integers(len(self.actions))]}</answer>"


def exact_value(env: Any, seed: int, before: list[str], actions: tuple[str, ...], n_left: int, known: dict) -> float:
    """Return the expected reward of the next `n_left` uniform actions, by all sequences of them, equal states once."""
    env.reset(seed=seed)
    for action in before:
        env.step(action)
    key = (env.unwrapped.state_key(), n_left)
    if n_left == 0:
        return 0.0
    if key not in known:
        total = 0.0
        for action in actions:
            env.reset(seed=seed)
            for earlier in before:
                env.step(earlier)
            reply = f"<answer>{action}</answer>"
            _, reward, terminated, truncated, _ = env.step(reply)
            rest = 0.0
            if not (terminated or truncated):
                rest = exact_value(env, seed, [*before, reply], actions, n_left - 1, known)
            total += (float(reward) + rest) / len(actions)
        known[key] = total
    return known[key]


GAMES = [
    (MAZE, "starter", MOVES, 6),
    pytest.param("llm/Blackjack-v0", "easy", ("hit", "stick"), 8, marks=pytest.mark.levels),
    pytest.param("llm/CliffWalking-v0", "easy", MOVES, 6, marks=pytest.mark.levels),
    ("llm/GuessNumber-v0", "easy", tuple(map(str, range(1, 11))), 3),
    pytest.param("llm/Sokoban-v0", "easy", MOVES, 6, marks=pytest.mark.levels),
]


@pytest.mark.parametrize(("task", "level", "actions", "n_turns"), GAMES)
def test_values_are_within_the_intervals_of_exact_ones(
    task: str, level: str, actions: tuple[str, ...], n_turns: int
) -> None:
    """99.9% intervals, at every turn of an episode, of 400 continuations each."""
    limits, kwargs = RolloutLimits(max_turns=n_turns), {"difficulty": level}
    policy: Any = Uniform(actions)
    with Collector(task, policy, env_kwargs=kwargs, progress=False, limits=limits) as playing:
        episodes = [episode for group in playing.collect(12, 1) for episode in group]
    episode = max(episodes, key=lambda t: len(t.turns))
    found = turn_values(episode, 400, policy, confidence=0.999, limits=limits)
    env, known = gym.make(task, **kwargs), {}
    replies = [message.content for message in episode.messages if message.role == "assistant"]
    exact = [
        exact_value(env, episode.seed, replies[:turn], actions, n_turns - turn, known)
        for turn in range(len(episode.turns))
    ]
    assert [value.turn for value in found] == list(range(len(exact)))
    assert len({round(value, 9) for value in exact}) > 1  # or the game would be no test
    for value, truth in zip(found, exact, strict=True):
        assert value.n == 400
        assert value.interval.low <= truth <= value.interval.high, (value, truth)
