"""Two policies on the same problems."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from make_trajectories import make_trajectory

from llm_envs.errors import InvalidConfigError
from llm_envs.evaluation import Results, compare, paired_interval, show_comparison, show_results
from llm_envs.evaluation.replayed import results_of
from llm_envs.evaluation.scores import Scoreboard
from llm_envs.evaluation.statistics import bootstrap_interval
from llm_envs.types import Trajectory


def episode(env_id: str, kwargs: dict[str, str], seed: int, member: int, letter: str) -> Trajectory:
    made = make_trajectory(None if letter == "e" else 2.0 * (letter == "1"), member=member)
    return replace(made, env_id=env_id, env_kwargs=kwargs, seed=seed, group_id=f"0-{seed}")


def results(*won: str, env_id: str = "E-v0", first: int = 0, difficulty: str | None = None) -> Results:
    """One problem for each text, one sample for each letter: 1 is a success (reward 2), 0 none, e an error."""
    board = Scoreboard()
    for seed, letters in enumerate(won, start=first):
        for member, letter in enumerate(letters):
            kwargs = {} if difficulty is None else {"difficulty": difficulty}
            board.add(episode(env_id, kwargs, seed, member, letter))
    return results_of(board, {}, None, 0.95)


def joined(*parts: Results) -> Results:
    tasks = tuple(task for part in parts for task in part)
    return Results(tasks, parts[0].success, {}, {}, {})


def test_one_sample_a_problem_by_hand() -> None:
    this, that = results(*"1111100000e0"), results(*"110000000011")
    found = compare(this, that, names=("new", "old"))
    task = found.tasks[0]
    assert (found.this, found.that, task.n_problems, task.left_out) == ("new", "old", 11, 1)
    # Of the eleven: 2 both, 3 only this, 1 only that, 5 neither.
    assert (task.both, task.only_this, task.only_that, task.neither) == (2, 3, 1, 5)
    assert (task.wins, task.losses, task.ties) == (3, 1, 7)
    assert (task.success.this, task.success.that, task.success.value) == pytest.approx((5 / 11, 3 / 11, 2 / 11))
    differences = [0, 0, 1, 1, 1, 0, 0, 0, 0, 0, -1]
    assert task.success.interval == pytest.approx(paired_interval(differences, smallest=1.0)[2])
    assert task.success.bootstrap == bootstrap_interval([[d] for d in differences])
    assert task.p_value == pytest.approx(2 * (1 + 4) / 16)  # McNemar's exact test of 3 and 1
    assert task.reward.value == pytest.approx(4 / 11)
    assert task.reward.interval == pytest.approx(paired_interval([2 * d for d in differences])[2])
    assert found.success == task.success
    mirrored = compare(that, this).tasks[0]
    assert (mirrored.wins, mirrored.success.value) == pytest.approx((1, -2 / 11))


def test_several_samples_count_once_a_problem() -> None:
    task = compare(results("11", "10", "00", "01"), results("10", "10", "0e", "00")).tasks[0]
    # Differences 1/2, 0, 0 (one scored sample against two), 1/2.
    assert (task.success.value, task.wins, task.losses, task.ties) == (0.25, 2, 0, 2)
    assert task.success.interval == pytest.approx(paired_interval([0.5, 0, 0, 0.5], smallest=0.5)[2])
    assert (task.both, task.only_this, task.only_that, task.neither) == (2, 1, 0, 1)


def test_where_nothing_differs_the_interval_is_not_a_point() -> None:
    same = compare(results(*["0000"] * 20), results(*["0000"] * 20)).tasks[0]
    assert same.success.value == 0 and same.p_value == 1.0
    assert same.success.interval == pytest.approx(paired_interval([0.0] * 20, smallest=1.0)[2])
    assert same.success.interval.high > 0.1


def test_differences_that_cancel_are_none() -> None:
    thirds = [-1.0, -2 / 3, 2 / 3, 1.0]
    assert paired_interval(thirds)[0] != 0, "summed one by one they leave a rounding error"
    task = compare(results("000", "000", "110", "111"), results("111", "110", "000", "000")).tasks[0]
    assert str(task.success.value) == "0.0"


def test_the_mean_of_tasks_by_hand() -> None:
    this = joined(results(*"1100"), results(*"10", env_id="F-v0"))
    that = joined(results(*"0100"), results(*"01", env_id="F-v0"))
    found = compare(this, that)
    # Differences 1, 0, 0, 0 and 1, -1: means 1/4 and 0, errors 1/4 and 1.
    assert (found.success.this, found.success.that, found.success.value) == pytest.approx((0.5, 0.375, 0.125))
    assert found.success.error == pytest.approx(math.sqrt(1 / 16 + 1) / 2)
    halves = [(task.success.interval.high - task.success.interval.low) / 2 for task in found.tasks]
    width = found.success.interval.high - found.success.interval.low
    assert width == pytest.approx(math.hypot(*halves))
    assert found.success.bootstrap.low < 0.125 < found.success.bootstrap.high


def test_other_problems_tasks_and_arguments_are_refused() -> None:
    with pytest.raises(InvalidConfigError, match=r"the seeds do not match: this has 3 problems, that 3, and 2 are the"):
        compare(results(*"111"), results(*"111", first=1))
    with pytest.raises(InvalidConfigError, match="this has 3 problems, that 2, and 2 are the same"):
        compare(results(*"111"), results(*"11"))
    with pytest.raises(InvalidConfigError, match=r"only this has E-v0 \{\}; only that has F-v0 \{\}"):
        compare(results(*"111"), results(*"111", env_id="F-v0"))
    with pytest.raises(InvalidConfigError, match=r'only that has E-v0 \{"difficulty": "easy"\}'):
        compare(results(*"111"), results(*"111", difficulty="easy"))


def test_what_was_set_otherwise_is_said() -> None:
    this, that = (
        Results(found.tasks, found.success, {}, settings, {})
        for found, settings in (
            (results(*"10"), {"seed": 0, "model": "a", "eval": [1]}),
            (results(*"11"), {"seed": 0, "model": "b", "sampling.temperature": 0.5}),
        )
    )
    found = compare(this, that)
    assert found.settings == {"model": ("a", "b"), "sampling.temperature": (None, 0.5)}
    assert show_comparison(found).splitlines()[2:4] == ["model: a against b", "sampling.temperature: None against 0.5"]


@pytest.mark.parametrize(
    ("ours", "theirs", "is_warned"),
    [
        ({"agent_reward": "reward 1"}, {"agent_reward": "reward 2"}, True),
        ({"rescored": {"run": "runs/a", "rewards": "mine.py:short"}}, {}, True),
        ({"agent_reward": "reward 1", "model": "a"}, {"agent_reward": "reward 1", "model": "b"}, False),
    ],
)
def test_other_reward_functions_are_warned_of(ours: dict[str, Any], theirs: dict[str, Any], is_warned: bool) -> None:
    this, that = (replace(results(*"10"), settings=settings) for settings in (ours, theirs))
    found = compare(this, that)
    assert found.has_other_rewards == is_warned
    assert ("WARNING: the two have different reward functions" in show_comparison(found)) == is_warned


def test_nothing_in_common_is_said_and_is_json() -> None:
    found = compare(results(*"ee"), results(*"11"))
    task = found.tasks[0]
    assert (task.n_problems, task.left_out, task.p_value) == (0, 2, 1.0) and math.isnan(found.success.value)
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["success"]["value"] is None
    assert "E-v0: 2 problems left out, without a scored sample of both" in show_comparison(found)


def test_the_tables() -> None:
    this = results(*["11"] * 3, *["10"] * 2, "0e", difficulty="hard")
    shown = show_results(this).splitlines()
    head = "task problems samples success 95% interval bootstrap pass@2 pass^2 reward 95% interval"
    assert " ".join(shown[0].split()) == head
    assert shown[1].split()[:5] == ["E-v0", "hard", "6", "2", "72.7%"]
    assert shown[1].split()[11:13] == ["100.0%", "60.0%"]  # of the five problems with two scored samples
    assert shown[-1] == "E-v0 hard: 1 errored (1 x env.step: E: m)"
    both = joined(this, results(*"10", env_id="F-\x1b[31mv0"))
    assert "\x1b" not in show_results(both) and "mean of the tasks" in show_results(both)
    lines = show_comparison(compare(both, both, names=("a\x1b", "b"))).splitlines()
    assert lines[:2] == ["this: a␛", "that: b"] and lines[3].split()[0] == "task"
    wins = next(line for line in lines if line.startswith("E-v0 hard") and line.split()[-1] == "1")
    assert wins.split()[2:] == ["0", "0", "6", "5", "0", "0", "1"]
