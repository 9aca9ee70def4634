"""SelfVerification."""

import random

import gymnasium as gym
import pytest

import llm_envs
from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import format_answer, format_tool_call
from llm_envs.tasks.tools.self_verification import candidates

assert llm_envs  # registers
ID = "llm/SelfVerification-v0"
# 20 to 40 with remainder 5 by 13: 31. 10 to 30 with 5 by 13: 18 alone. 1 by 3 and 2 by 5: 7, 22. 0 by 7: 7, 14.
PROBLEM = {
    "questions": [[20, 40, 13, 5], [10, 30, 13, 5], [1, 30, 3, 1, 5, 2], [1, 20, 7, 0]],
    "secrets": [31, 18, 22, 7],
}


def make(level="medium"):
    env = gym.make(ID, difficulty=level)
    env.reset(options={"problem": PROBLEM})
    return env


def check(question, number):
    return format_tool_call("check", question=question, number=number)


def test_the_questions_worked_by_hand():
    assert [candidates(*question) for question in PROBLEM["questions"]] == [[31], [18], [7, 22], [7, 14]]
    observation, _ = gym.make(ID).reset(options={"problem": PROBLEM})
    assert observation.splitlines()[2] == (
        "3. A whole number from 1 to 30 (both included) that leaves the remainder 1 when divided by 3 and 2 when "
        "divided by 5."
    )


def test_quality_against_cost():
    env = make()
    observation, reward, _, _, info = env.step(check(3, 7) + check(4, 7))
    assert observation == "wrong\nright"
    assert reward == pytest.approx(-0.1)
    assert info["reward_components"] == {"quality": 0.0, "cost": 0.5, "malformed": 0.0}
    _, reward, terminated, _, info = env.step(format_answer("31, 18, 22, 7"))
    assert (reward, terminated, info["is_success"]) == (1.0, True, True)
    assert info["reward_components"] == {"quality": 1.0, "cost": 0.0, "malformed": 0.0}


@pytest.mark.parametrize(
    ("answer", "quality", "success"),
    [
        ("31, 18, 22, 7", 1.0, True),
        ("[31,18,22,7]", 1.0, True),
        ("31, 18, 7, 7", 0.75, False),
        ("18, 31, 7, 22", 0.0, False),
        ("0, 0, 0, 0", 0.0, False),
    ],
)
def test_the_share_of_right_numbers(answer, quality, success):
    _, reward, terminated, _, info = make().step(format_answer(answer))
    assert (reward, terminated, info["is_success"]) == (quality, True, success)


@pytest.mark.parametrize("answer", ["31, 18, 22", "31, 18, 22, 7, 7", "31 18 22 7", "a, b, c, d", "7, 22 or 7, 1, 2"])
def test_what_is_not_four_numbers_is_malformed(answer):
    _, reward, terminated, *_ = make().step(format_answer(answer))
    assert reward == pytest.approx(-0.1)
    assert not terminated


def test_the_budget_is_four_checks():
    env = make()
    observation, reward, *_ = env.step("".join(check(1, number) for number in (20, 21, 22, 23, 31)))
    assert observation.splitlines() == [*["wrong"] * 4, "Error: check costs 1; 0 of the budget of 4 is left"]
    assert reward == pytest.approx(-0.2)
    assert env.step(check(1, 31))[1] == 0.0
    assert env.step(check(5, 31))[0].startswith("Error: check costs 1")
    assert make().step(check(5, 31))[0] == "Error: there are the questions 1 to 4"


@pytest.mark.parametrize(("level", "n_open"), [("easy", 1), ("medium", 2), ("hard", 2), ("expert", 3)])
def test_each_question_leaves_one_number_or_two(level, n_open):
    env = gym.make(ID, difficulty=level).unwrapped
    seconds = 0
    for seed in range(150):
        env.reset(seed=seed)
        fitting = [candidates(*question) for question in env.problem["questions"]]
        assert sorted(map(len, fitting)) == [1] * (4 - n_open) + [2] * n_open
        assert all(secret in numbers for secret, numbers in zip(env.problem["secrets"], fitting, strict=True))
        seconds += sum(
            s == numbers[1] for s, numbers in zip(env.problem["secrets"], fitting, strict=True) if numbers[1:]
        )
    n = 150 * n_open
    assert abs(seconds - n / 2) < 4 * (n / 4) ** 0.5  # which of the two is meant cannot be known


@pytest.mark.parametrize(("level", "best", "unchecked"), [("easy", 0.95, 0.875), ("medium", 0.9, 0.75)])
def test_checks_where_they_are_needed_are_the_best_policy(level, best, unchecked):
    """The oracle's return is what is declared; no checks, and checks of everything, earn less in expectation."""
    env = gym.make(ID, difficulty=level).unwrapped
    assert env.max_return == pytest.approx(best)
    rng = random.Random(0)
    totals = {"oracle": [], "unchecked": [], "all checked": []}
    for seed in range(300):
        env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            _, reward, over, _, info = env.step(env.oracle())
            total += reward
        assert info["is_success"]
        totals["oracle"].append(total)
        fitting = [candidates(*question) for question in env.problem["questions"]]
        env.reset(seed=seed)
        guess = ", ".join(str(rng.choice(numbers)) for numbers in fitting)
        totals["unchecked"].append(env.step(format_answer(guess))[1])
        env.reset(seed=seed)
        first = env.step("".join(check(place, numbers[0]) for place, numbers in enumerate(fitting, start=1)))
        verdicts = first[0].splitlines()
        known = [numbers[0 if said == "right" else -1] for numbers, said in zip(fitting, verdicts, strict=True)]
        totals["all checked"].append(first[1] + env.step(format_answer(", ".join(map(str, known))))[1])
    assert totals["oracle"] == pytest.approx([best] * 300)
    assert totals["all checked"] == pytest.approx([0.8] * 300)
    assert sum(totals["unchecked"]) / 300 == pytest.approx(unchecked, abs=0.03)


@pytest.mark.parametrize("level", ["easy", "medium", "hard", "expert"])
def test_numbers_drawn_from_the_ranges_are_hardly_ever_right(level):
    env = gym.make(ID, difficulty=level).unwrapped
    rng, wins = random.Random(0), 0
    for seed in range(500):
        env.reset(seed=seed)
        guess = ", ".join(str(rng.randint(low, high)) for low, high, *_ in env.problem["questions"])
        wins += env.step(format_answer(guess))[4]["is_success"]
    assert wins / 500 <= env.chance_rate


@pytest.mark.parametrize(
    "change",
    [
        {"secrets": [31, 18, 22, 8]},
        {"secrets": [31, 18, 22]},
        {"questions": PROBLEM["questions"][:3]},
        {"questions": [*PROBLEM["questions"][:3], [1, 40, 7, 0]]},  # five numbers fit
        {"questions": [*PROBLEM["questions"][:3], [1, 40, 0, 0]]},
        {"questions": [*PROBLEM["questions"][:3], [1, 40]]},
        {"questions": [*PROBLEM["questions"][:3], "7"]},
    ],
)
def test_what_cannot_be_played_is_refused(change):
    with pytest.raises(InvalidConfigError, match="cannot be played"):
        gym.make(ID).unwrapped.reset(options={"problem": PROBLEM | change})
