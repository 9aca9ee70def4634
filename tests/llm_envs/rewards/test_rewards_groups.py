"""Rewards between the members of a group: normalisers, ranks, Pareto fronts, rescoring."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_trajectories import make_trajectory

from llm_envs.data.records import from_record, to_record
from llm_envs.errors import InvalidConfigError, JudgeError
from llm_envs.rewards import (
    RunningMoments,
    centered,
    create_gated,
    create_length_penalty,
    min_max,
    own_words,
    pareto_fronts,
    pareto_rewards,
    ranks,
    relative_rewards,
    rescore,
    with_reward,
    z_score,
)
from llm_envs.types import Message, Trajectory, Turn, validate_batch

NAN = math.nan
GROUPS = ["a", "b", "a", "b", "a"]
REWARDS = [1.0, 5.0, 2.0, NAN, 3.0]


def same(values, expected) -> None:
    np.testing.assert_allclose(values, expected, atol=1e-12)


def test_centered():
    same(centered(REWARDS, GROUPS), [-1, 0, 0, NAN, 1])
    same(centered(REWARDS), [-1.75, 2.25, -0.75, NAN, 0.25])


def test_z_score():
    same(z_score(REWARDS, GROUPS, epsilon=0.0), [-1, 0, 0, NAN, 1])
    same(z_score([0.0, 1.0]), [-0.5 / (math.sqrt(0.5) + 1e-4), 0.5 / (math.sqrt(0.5) + 1e-4)])
    same(z_score([2.0, 2.0]), [0, 0])
    same(z_score([NAN, NAN]), [NAN, NAN])


def test_min_max():
    same(min_max(REWARDS, GROUPS), [0, 0.5, 0.5, NAN, 1])
    same(min_max([1.0, 5.0, 2.0]), [0, 1, 0.25])


def test_ranks():
    same(ranks([3.0, 1.0, 2.0]), [1, 0, 0.5])
    same(ranks([1.0, 1.0, 0.0, 5.0]), [0.5, 0.5, 0, 1])
    same(ranks(REWARDS, GROUPS), [0, 0.5, 0.5, NAN, 1])


def test_shapes_are_checked():
    with pytest.raises(InvalidConfigError, match="groups"):
        z_score([1.0, 2.0], ["a"])
    with pytest.raises(InvalidConfigError, match=r"\(B,\)"):
        ranks([[1.0]])
    with pytest.raises(InvalidConfigError, match=r"\(B, K\)"):
        pareto_fronts([1.0])


def test_running_moments():
    moments = RunningMoments().updated([1.0, 2.0, NAN]).updated([]).updated([6.0])
    assert (moments.count, moments.mean) == (3, pytest.approx(3.0))
    assert moments.std == pytest.approx(math.sqrt(7.0))
    same(moments.normalize([3.0, 3.0 + math.sqrt(7.0)], epsilon=0.0), [0, 1])
    same(moments.normalize([math.sqrt(7.0)], center=False, epsilon=0.0), [1])
    assert RunningMoments().std == 1.0


@given(st.lists(st.lists(st.floats(-1e3, 1e3), max_size=5), max_size=5))
def test_running_moments_are_those_of_everything_at_once(batches):
    moments = RunningMoments()
    for batch in batches:
        moments = moments.updated(batch)
    everything = [value for batch in batches for value in batch]
    assert moments.count == len(everything)
    if len(everything) > 1:
        assert moments.mean == pytest.approx(np.mean(everything), abs=1e-6)
        assert moments.std == pytest.approx(np.std(everything, ddof=1), abs=1e-6)


# Several objectives


VALUES = [[1.0, 5.0], [2.0, 4.0], [1.0, 4.0], [0.0, 0.0], [2.0, 4.0]]


def test_pareto_fronts():
    assert pareto_fronts(VALUES).tolist() == [0, 0, 1, 2, 0]
    same(pareto_rewards(VALUES), [1, 1, 0.75, 0.5, 1])
    assert pareto_fronts([*VALUES, [NAN, 9.0]]).tolist() == [0, 0, 1, 2, 0, -1]
    assert pareto_fronts(VALUES, ["a", "b", "a", "b", "b"]).tolist() == [0, 0, 1, 1, 0]
    same(pareto_rewards([[1.0], [NAN]]), [1, NAN])


@given(st.lists(st.integers(0, 50), min_size=2, max_size=8, unique=True))
def test_with_one_objective_the_fronts_are_the_ranks(values):
    same(pareto_rewards([[value] for value in values]), ranks(values))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=8))
def test_whoever_dominates_is_on_an_earlier_front(values):
    fronts = pareto_fronts(values)
    for one, (a, b) in zip(fronts, values, strict=True):
        for other, (c, d) in zip(fronts, values, strict=True):
            if a >= c and b >= d and (a, b) != (c, d):
                assert one < other
    assert set(fronts.tolist()) == set(range(max(fronts) + 1))


def test_relative_rewards():
    same(relative_rewards(VALUES[:3]), [[0.25, 1], [1, 0.25], [0.25, 0.25]])


# Rescoring


def members(*texts: str) -> list[Trajectory]:
    return [make_trajectory(0.25, text, member=i) for i, text in enumerate(texts)]


def words(trajectory: Trajectory) -> float:
    return float(len(own_words(trajectory).split()))


def a_share(trajectory: Trajectory) -> float:
    return own_words(trajectory).count("a") / len(own_words(trajectory).split())


def test_absolute():
    said = Message("user", "u"), Message("assistant", "a"), Message("user", "v"), Message("assistant", "b")
    played = replace(members("")[0], messages=said, turns=(Turn(0.5, {"r": 0.5}), Turn(-0.25, {"r": -0.25})))
    (again,) = rescore([played], {"words": words, "a": a_share}, weights={"words": 0.5})
    assert [turn.reward for turn in again.turns] == [0.0, 1.5]
    assert [turn.components for turn in again.turns] == [{"words": 0.0, "a": 0.0}, {"words": 1.0, "a": 0.5}]
    assert (again.reward, again.components) == (1.5, {"words": 1.0, "a": 0.5})
    assert again.metadata == {"task_reward": 0.25, "task_components": {"r": 0.25}}
    assert (again.is_success, again.messages) == (True, played.messages)
    assert (played.reward, played.metadata) == (0.25, {})
    twice = rescore([again], words)[0]
    assert (twice.reward, twice.metadata["task_reward"]) == (2.0, 0.25)
    assert from_record(to_record(again)) == again
    assert validate_batch([again]) == []


def test_success_and_aggregators():
    bad, good = rescore(
        members("b", "a"), {"a": a_share, "words": words}, aggregate=create_gated("a", 0.5), success_at=2.0
    )
    assert (bad.reward, bad.is_success) == (0.0, False)
    assert (good.reward, good.is_success, good.components) == (2.0, True, {"a": 1.0, "words": 1.0})


def test_relative():
    again = rescore(members("a", "a b b b", "a b", "b"), {"words": words, "a": a_share}, method="relative",
                    weights={"a": 2.0})  # fmt: skip
    assert [t.components for t in again] == [
        {"a": 2.0, "words": pytest.approx(1 / 6)},
        {"a": pytest.approx(2 / 3), "words": 1.0},
        {"a": pytest.approx(4 / 3), "words": pytest.approx(2 / 3)},
        {"a": 0.0, "words": pytest.approx(1 / 6)},
    ]
    assert again[1].metadata["absolute_components"] == {"words": 4.0, "a": 0.25}


def test_pareto():
    again = rescore(members("a", "a b b b", "a b", "b"), {"words": words, "a": a_share}, method="pareto")
    assert [t.reward for t in again] == [1.0, 1.0, 1.0, pytest.approx(2 / 3)]
    assert again[3].components == {"pareto": pytest.approx(2 / 3)}
    with pytest.raises(InvalidConfigError, match="weights"):
        rescore(members("a"), words, method="pareto", weights={"words": 2.0})


def test_groups_are_compared_apart():
    listed = members("a", "a a", "a a a", "a a a a")
    listed[2:] = [replace(t, group_id="h") for t in listed[2:]]
    assert [t.reward for t in rescore(listed, words, method="relative")] == [0.0, 1.0, 0.0, 1.0]
    elsewhere = [replace(listed[0], env_id="x/Z-v0"), *listed[1:]]
    assert [t.reward for t in rescore(elsewhere, words, method="relative")][:2] == [0.5, 0.5]


@pytest.mark.parametrize("method", ["absolute", "relative", "pareto"])
def test_what_has_no_score_is_left_out_of_its_group(method):
    def judge(trajectory: Trajectory) -> float:
        if trajectory.member == 1:
            raise JudgeError("no verdict")
        return float(trajectory.member)

    errored = make_trajectory(None, member=3)
    unscored = replace(make_trajectory(None, member=4), status="unscored", error=None)
    again = rescore([*members("a", "b", "c"), errored, unscored], judge, method=method)
    assert again[3:] == [errored, unscored]
    assert [t.status for t in again] == ["ok", "unscored", "ok", "errored", "unscored"]
    assert again[1].metadata == {"unscored_because": "judge: JudgeError: no verdict"}
    assert again[1].is_success is None
    assert [t.reward for t in again[:3:2]] == ([0.0, 2.0] if method == "absolute" else [0.0, 1.0])


def test_bad_input():
    with pytest.raises(InvalidConfigError, match="method is 'best'"):
        rescore(members("a"), words, method="best")
    with pytest.raises(InvalidConfigError, match="weight for 'x'"):
        rescore(members("a"), words, weights={"x": 1.0})
    with pytest.raises(InvalidConfigError, match="different components"):
        rescore(members("a", "b"), lambda t: {own_words(t): 1.0}, method="relative")
    with pytest.raises(InvalidConfigError, match="no turn"):
        with_reward(replace(members("a")[0], turns=()), 1.0, {"r": 1.0})
    (empty,) = rescore([replace(members("a")[0], turns=())], words)
    assert (empty.status, empty.metadata["unscored_because"]) == ("unscored", "it has no turn")


def test_rescoring_nothing_gives_nothing():
    for method in ("absolute", "relative", "pareto"):
        assert rescore([], partial(create_length_penalty(low=1)), method=method) == []
