from __future__ import annotations

import pytest
from report_runs import make_episode

from llm_envs.evaluation import clustered_rate_interval, paired_interval
from llm_envs.report.summary import TaskSummary, by_task, compare_runs, settings_text
from llm_envs.types import RolloutError, StopReason


def summary(**won: list[int]) -> TaskSummary:
    """Return the counts of problems `p1`, `p2`, ... with these outcomes."""
    out = TaskSummary()
    for problem, outcomes in won.items():
        for outcome in outcomes:
            out.add(make_episode(is_success=bool(outcome)), int(problem[1:]))
    return out


def test_the_interval_is_by_problem_and_errors_are_no_failures() -> None:
    one = summary(p1=[1, 1], p2=[0, 0], p3=[1, 0])
    error = RolloutError("E", "m", "policy")
    one.add(make_episode(status="errored", error=error, is_success=None, stop_reason=StopReason.ERROR), 4)
    numbers = one.numbers()
    assert (numbers["episodes"], numbers["scored"], numbers["problems"]) == (7, 6, 3)
    assert (numbers["success"], numbers["reward"]) == (0.5, 0.25)
    assert (numbers["low"], numbers["high"]) == clustered_rate_interval([[1, 1], [0, 0], [1, 0]])
    assert numbers["components"] == {"correct": 0.5, "cost": -0.25}


def test_without_a_score_there_is_no_rate() -> None:
    assert TaskSummary(episodes=2).numbers() == {"episodes": 2, "scored": 0, "problems": 0}


def test_runs_are_compared_on_the_problems_that_both_have() -> None:
    before, after = summary(p1=[1, 1], p2=[0, 1], p3=[0]), summary(p1=[1], p2=[1], p3=[1], p9=[1])
    (pair,) = compare_runs({(0, 0): before, (1, 0): after, (1, 1): summary(p5=[1])})
    _, _, (low, high) = paired_interval([0, 0.5, 1], smallest=1)
    assert pair["runs"] == [0, 1] and pair["problems"] == 3
    assert high == 1 and pair["success"] == pytest.approx([0.5, low, 1])  # no difference is above 1
    assert pair["p"] == 0.5  # two wins, no loss
    assert compare_runs({(0, 0): before, (1, 1): after}) == []
    (sure,) = compare_runs({(0, 0): summary(p1=[0], p2=[0]), (1, 0): summary(p1=[1], p2=[1])})
    assert sure["success"][0] == sure["success"][2] == 1.0
    (single,) = compare_runs({(0, 0): summary(p1=[0]), (1, 0): summary(p1=[1])})
    assert single["success"] == [1.0, None, None]


def test_levels_are_tasks_of_their_own_and_many_settings_are_not() -> None:
    easy, hard = '{"difficulty": "easy", "split": "test"}', '{"difficulty": "hard", "split": "test"}'
    parts = {
        (0, 0, 0): summary(p1=[1]),
        (0, 0, 1): summary(p2=[0]),
        (1, 0, 1): summary(p2=[1]),
        (1, 1, 0): summary(p3=[1]),
    }
    tasks, names = by_task(parts, ["a", "b"], [easy, hard])
    assert names == ["a difficulty=easy", "a difficulty=hard", "b"]
    assert {key: part.won for key, part in tasks.items()} == {
        (0, 0): {1: [1]}, (0, 1): {2: [0]}, (1, 1): {2: [1]}, (1, 2): {3: [1]},
    }  # fmt: skip
    texts = [f'{{"text": "{n}"}}' for n in range(9)]
    many = {(0, 0, n): summary(**{f"p{n % 2}": [n % 2]}) for n in range(9)}
    tasks, names = by_task(many, ["a"], texts)
    assert names == ["a"] and tasks[0, 0].won == {0: [0] * 5, 1: [1] * 4} and tasks[0, 0].episodes == 9
    assert by_task({(0, 0, 0): summary(p1=[1]), (0, 0, 1): summary(p1=[1])}, ["a"], ["{}", '{"n": 2}'])[1] == [
        "a",
        "a n=2",
    ]


def test_settings_in_a_line() -> None:
    assert settings_text({"difficulty": "easy", "n": 2, "many": [1, "é"]}) == 'difficulty=easy, n=2, many=[1, "é"]'
    assert settings_text({}) == ""
