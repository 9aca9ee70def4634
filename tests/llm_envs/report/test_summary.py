from __future__ import annotations

import pytest
from report_runs import make_episode

from llm_envs.report.summary import EnvSummary, compare_runs
from llm_envs.statistics import clustered_rate_interval, paired_interval
from llm_envs.types import RolloutError, StopReason


def summary(**won: list[int]) -> EnvSummary:
    """Return the counts of problems `p1`, `p2`, ... with these outcomes."""
    out = EnvSummary()
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
    assert EnvSummary(episodes=2).numbers() == {"episodes": 2, "scored": 0, "problems": 0}


def test_runs_are_compared_on_the_problems_that_both_have() -> None:
    before, after = summary(p1=[1, 1], p2=[0, 1], p3=[0]), summary(p1=[1], p2=[1], p3=[1], p9=[1])
    (pair,) = compare_runs({(0, 0): before, (1, 0): after, (1, 1): summary(p5=[1])})
    _, _, (low, high) = paired_interval([0, 0.5, 1], smallest=1)
    assert pair["runs"] == [0, 1] and pair["problems"] == 3
    assert high > 1 and pair["success"] == pytest.approx([0.5, low, 1])  # no difference is above 1
    assert pair["p"] == 0.5  # two wins, no loss
    assert compare_runs({(0, 0): before, (1, 1): after}) == []
    (sure,) = compare_runs({(0, 0): summary(p1=[0], p2=[0]), (1, 0): summary(p1=[1], p2=[1])})
    assert sure["success"][0] == sure["success"][2] == 1.0
    (single,) = compare_runs({(0, 0): summary(p1=[0]), (1, 0): summary(p1=[1])})
    assert single["success"] == [1.0, None, None]
