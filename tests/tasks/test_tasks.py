"""Every registered task of ours, and what is particular to each."""

import random
from collections import Counter

import gymnasium as gym
import pytest
from task_play import finish

from llm_envs.checker.catalogue import family_of, suite_ids
from llm_envs.errors import InvalidConfigError
from llm_envs.mathematics.arithmetic import evaluate, evaluate_with_numbers
from llm_envs.parsers import format_answer, format_tool_call
from llm_envs.tasks.arithmetic.countdown import solve_countdown

TASK_IDS = suite_ids()
LEVELS = [(id, level) for id in TASK_IDS for level in gym.make(id).unwrapped.difficulties]
FIRST = dict(reversed(LEVELS))


def test_there_are_forty_tasks_in_nine_families():
    assert len(TASK_IDS) >= 40
    families = "algorithmic arithmetic code data dialogue games language logic tools"
    assert sorted({family_of(id) for id in TASK_IDS}) == families.split()


@pytest.mark.levels
@pytest.mark.parametrize(
    ("id", "level"),
    [pytest.param(*pair, marks=pytest.mark.smoke) if pair in FIRST.items() else pair for pair in LEVELS],
)
def test_the_oracle_wins_in_the_test_split_too(id, level):
    env = gym.make(id, split="test", difficulty=level)
    task = env.unwrapped
    if not task.oracle_is_exact:
        pytest.skip("right in expectation: the family's own tests measure how often")
    positive = sum(weight for weight in task.reward_weights.values() if weight > 0)
    for seed in range(50):
        env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            _, reward, terminated, truncated, info = env.step(task.oracle())
            total, over = total + reward, terminated or truncated
        assert info["is_success"]
        assert total == pytest.approx(positive if task.max_return is None else task.max_return)


MALFORMED = ["", "<answer>1", format_answer("no such thing"), format_tool_call("no_such_tool")]
"""Malformed in most tasks; an answer is an answer to some."""


@pytest.mark.parametrize(("id", "level"), LEVELS)
def test_malformed_replies_to_the_end_stay_in_the_declared_range(id, level):
    env = gym.make(id, difficulty=level)
    low, high = env.unwrapped.return_range
    assert -1.5 <= low < 0 < high <= 1.5
    for action in MALFORMED:
        env.reset(seed=0)
        total, over = 0.0, False
        while not over:
            _, reward, terminated, truncated, _ = env.step(action)
            total, over = total + reward, terminated or truncated
        assert low <= total <= high, action
        assert total >= -0.5 or (id == "llm/CustomerService-v0" and total >= -1.0)


@pytest.mark.parametrize("id", TASK_IDS)
def test_a_task_says_what_it_teaches_and_has_levels(id):
    task = gym.make(id).unwrapped
    assert "teaches" in (type(task).__doc__ or "").lower()
    assert len(task.difficulties) >= 2


def test_no_two_tasks_say_the_same_of_themselves():
    summaries = [type(gym.make(id).unwrapped).__doc__.split("\n")[0] for id in TASK_IDS]
    assert len(set(summaries)) == len(TASK_IDS)


def play(id, problem, *actions, **kwargs):
    """Play a problem; return (observation, reward, terminated, truncated) of each step."""
    env = gym.make(id, **kwargs)
    env.reset(seed=0, options={"problem": problem})
    return [env.step(action)[:4] for action in actions]


# Calculator.


def test_calculator_looks_as_documented():
    env = gym.make("llm/Calculator-v0")
    observation, _ = env.reset(options={"problem": {"expression": "37*24"}})
    assert observation == "What is 37*24?"
    told = (
        "Use the calculator, then answer with the value. Answer in this form: <answer>42</answer>\nYou have 4 replies."
    )
    assert env.get_wrapper_attr("system_prompt") == told
    assert env.get_wrapper_attr("tools") == [
        {
            "type": "function",
            "function": {
                "name": "calculator",
                "description": "Evaluate an arithmetic expression.",
                "parameters": {
                    "type": "object",
                    "properties": {"expression": {"type": "string"}},
                    "required": ["expression"],
                },
            },
        }
    ]
    call = env.unwrapped.oracle()
    assert call == '<tool_call>\n{"name": "calculator", "arguments": {"expression": "37*24"}}\n</tool_call>'
    observation, reward, _, _, info = env.step(call)
    assert (observation, reward) == ("888", 0.0)
    assert info["messages"] == [{"role": "tool", "name": "calculator", "content": "888"}]
    assert env.unwrapped.oracle() == "<answer>888</answer>"
    assert env.step("<answer>888</answer>")[:4] == ("Correct.", 1.0, True, False)


@pytest.mark.parametrize(
    ("action", "outcome"),
    [
        ("<answer>888</answer>", ("Correct.", 1.0, True, False)),
        ("<answer> 888.0 </answer>", ("Correct.", 1.0, True, False)),
        ("<answer>887</answer>", ("Incorrect.", 0.0, True, False)),
        ("<answer>-888</answer>", ("Incorrect.", 0.0, True, False)),
        ("<answer>37*24</answer>", ("Error: the answer '37*24' is not a whole number.", -0.1, False, False)),
        (format_tool_call("calculator", expression="1/0"), ("Error: division by zero", 0.0, False, False)),
        (
            format_tool_call("calculator", expression="9**9**9"),
            ("Error: the result is too large (over 4096 bits)", 0.0, False, False),
        ),
        (format_tool_call("calculator", expression=37), ("37", 0.0, False, False)),
        (format_tool_call("calculator"), ("Error: calculator needs the argument expression", -0.1, False, False)),
    ],
)
def test_calculator_step(action, outcome):
    (got,) = play("llm/Calculator-v0", {"expression": "37*24"}, action)
    assert got == (outcome[0], pytest.approx(outcome[1]), *outcome[2:])


def test_calculator_is_truncated_after_four_turns():
    call = format_tool_call("calculator", expression="1+1")
    outcomes = play("llm/Calculator-v0", {"expression": "37*24"}, call, call, call, call)
    assert outcomes == [("2", 0.0, False, False)] * 3 + [("2", 0.0, False, True)]


def test_the_calculators_oracle_recovers():
    env = gym.make("llm/Calculator-v0")
    env.reset(options={"problem": {"expression": "37*24"}})
    env.step(format_tool_call("calculator", expression="37+24"))
    assert "<tool_call>" in env.unwrapped.oracle()
    env.step("nonsense")
    env.step("nonsense")
    assert env.unwrapped.oracle() == "<answer>888</answer>"  # the last turn: no time left to ask


@pytest.mark.parametrize(
    ("id", "expression", "complaint"),
    [
        ("llm/Calculator-v0", "7/2", "3.5, not a whole number"),
        ("llm/Calculator-v0", "1/0", "division by zero"),
        ("llm/Calculator-v0", "hello", "cannot read 'h'"),
        ("llm/Arithmetic-v0", "7/2", "3.5, not a whole number"),
        ("llm/Arithmetic-v0", "", "the expression is empty"),
    ],
)
def test_an_expression_without_a_whole_value_is_refused(id, expression, complaint):
    with pytest.raises(InvalidConfigError, match=complaint):
        gym.make(id).unwrapped.reset(options={"problem": {"expression": expression}})


@pytest.mark.parametrize("level", ["easy", "medium", "hard"])
def test_the_value_that_a_calculator_problem_is_drawn_with_is_right(level):
    env = gym.make("llm/Calculator-v0", difficulty=level)
    operations = Counter()
    for seed in range(500):
        env.reset(seed=seed)
        expression = env.unwrapped.problem["expression"]
        operations[sum(expression.count(sign) for sign in "+-*/")] += 1
        assert env.unwrapped._target == evaluate(expression)
    assert set(operations) == {{"easy": 1, "medium": 2, "hard": 4}[level]}


@pytest.mark.parametrize(
    ("id", "level"), [(id, level) for id, level in LEVELS if id in ("llm/Calculator-v0", "llm/Arithmetic-v0")]
)
def test_always_giving_the_commonest_value_wins_no_more_than_the_chance_rate(id, level):
    task = gym.make(id, difficulty=level).unwrapped
    task.reset(seed=0)
    n = 20_000
    values = Counter(evaluate(task.generate()["expression"]) for _ in range(n))
    commonest = values.most_common(1)[0][1] / n
    # Three standard deviations of the estimate, and room for having picked the largest of many.
    assert commonest <= task.chance_rate + 3 * (task.chance_rate / n) ** 0.5


# Arithmetic.


def test_arithmetic():
    assert play("llm/Arithmetic-v0", {"expression": "47+85"}, "<think>130+2</think><answer>132</answer>") == [
        ("Correct.", 1.0, True, False)
    ]
    assert play("llm/Arithmetic-v0", {"expression": "47+85"}, "<answer>1,32</answer>")[0][1] == pytest.approx(-0.1)
    assert play("llm/Arithmetic-v0", {"expression": "47+85"}, "132")[0][1] == pytest.approx(-0.1)


# Countdown.


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        ("25*4-7", 1.0),
        ("(4*25) - 7", 1.0),
        ("7/7*93", 0.0),
        ("93", -0.1),
        ("25*4-7+0", 0.0),
        ("25+25+25+25-7", 0.0),
        ("100-7", 0.0),
        ("25*4-8", 0.0),
        ("25*4-7=93", 1.0),
        ("4*25+-7", -0.1),
        ("25**1*4-7", -0.1),
        ("twenty", -0.1),
        ("__import__('os')", -0.1),
        ("(" * 5000, -0.1),
    ],
)
def test_countdown_answers(answer, reward):
    ((_, paid, terminated, _),) = play("llm/Countdown-v0", {"numbers": [25, 4, 7], "target": 93}, format_answer(answer))
    assert paid == pytest.approx(reward)
    assert terminated


def test_countdown_values_are_exact():
    outcome = play("llm/Countdown-v0", {"numbers": [1, 3, 7, 10], "target": 70}, "<answer>10/(1/7)</answer>")
    assert outcome[0][1] == 1.0
    outcome = play("llm/Countdown-v0", {"numbers": [1, 3, 3, 12], "target": 12}, "<answer>(1/3)*3*12</answer>")
    assert outcome[0][1] == 1.0


def test_a_number_may_be_used_as_often_as_it_is_given():
    problem = {"numbers": [5, 5, 2], "target": 50}
    assert play("llm/Countdown-v0", problem, "<answer>5*5*2</answer>")[0][1] == 1.0
    assert play("llm/Countdown-v0", problem, "<answer>5*5*(5-3)</answer>")[0][1] == 0.0


@pytest.mark.parametrize("level", ["easy", "medium", "hard"])
def test_every_countdown_problem_is_solvable_by_its_own_numbers(level):
    env = gym.make("llm/Countdown-v0", difficulty=level)
    for seed in range(200):
        env.reset(seed=seed)
        problem = env.unwrapped.problem
        value, used = evaluate_with_numbers(env.unwrapped.solution())
        assert value == problem["target"]
        assert not Counter(used) - Counter(problem["numbers"])
        assert 10 <= problem["target"] <= 999
        assert problem["target"] not in [*problem["numbers"], sum(problem["numbers"])]


def test_countdown_solver():
    rng = random.Random(0)
    for _ in range(30):
        numbers = [rng.randint(1, 50) for _ in range(4)]
        target = (numbers[0] - numbers[1]) * numbers[2] + numbers[3]
        value, used = evaluate_with_numbers(solve_countdown(numbers, target))
        assert value == target
        assert not Counter(used) - Counter(numbers)
    assert solve_countdown([1, 1], 24) is None
    assert evaluate(solve_countdown([3, 3, 7, 7], 24)) == 24  # (3/7+3)*7: only by way of a fraction
    assert solve_countdown([7], 7) == "7"


@pytest.mark.parametrize(
    ("problem", "complaint"),
    [
        ({"numbers": [1, 1], "target": 24}, "no expression of these numbers"),
        ({"numbers": [], "target": 24}, "1 to 6 whole numbers"),
        ({"numbers": [1] * 7, "target": 7}, "1 to 6 whole numbers"),
        ({"numbers": [1, "2"], "target": 3}, "1 to 6 whole numbers"),
        ({"numbers": [1, True], "target": 2}, "1 to 6 whole numbers"),
        ({"numbers": [0, 1], "target": 1}, "1 to 6 whole numbers"),
        ({"numbers": 3, "target": 3}, "must be of type list"),
    ],
)
def test_countdown_refuses_what_cannot_be_played(problem, complaint):
    with pytest.raises(InvalidConfigError, match=complaint):
        gym.make("llm/Countdown-v0").unwrapped.reset(options={"problem": problem})


@pytest.mark.parametrize("level", ["easy", "medium", "hard"])
def test_fixed_patterns_win_countdown_no_more_than_the_chance_rate(level):
    task = gym.make("llm/Countdown-v0", difficulty=level).unwrapped
    task.reset(seed=0)
    n, wins = 3_000, Counter()
    for _ in range(n):
        problem = task.generate()
        numbers = sorted(problem["numbers"], reverse=True)
        first, second, last = numbers[0], numbers[1], numbers[-1]
        patterns = {
            "sum": sum(numbers),
            "first+second-last": first + second - last,
            "sum-2*last": sum(numbers) - 2 * last,
            "first+second": first + second,
            "first*last": first * last,
            "first*second": first * second,
            "first*second-last": first * second - last,
            "product": first * second * last,
        }
        wins.update(name for name, value in patterns.items() if value == problem["target"])
    assert wins["sum"] == 0
    assert max(wins.values()) / n <= task.chance_rate + 3 * (task.chance_rate / n) ** 0.5


# GuessNumber.


def test_guess_number():
    problem = {"low": 1, "high": 10, "secret": 7}
    actions = ["<answer>5</answer>", "<answer>9</answer>", "seven", "<answer>7</answer>"]
    outcomes = play("llm/GuessNumber-v0", problem, *actions)
    assert outcomes == [
        ("Higher. 3 guesses left.", 0.0, False, False),
        ("Lower. 2 guesses left.", 0.0, False, False),
        (
            "Error: the reply has no answer in the form <answer>5000</answer>. 1 guess left.",
            pytest.approx(-0.1),
            False,
            False,
        ),
        ("Correct.", 1.0, True, False),
    ]


def test_guess_number_runs_out_of_guesses():
    outcomes = play("llm/GuessNumber-v0", {"low": 1, "high": 10, "secret": 7}, *["<answer>0</answer>"] * 4)
    assert outcomes[-1] == ("Higher. 0 guesses left.", 0.0, False, True)


@pytest.mark.parametrize(("level", "size"), [("easy", 10), ("medium", 100), ("hard", 1000)])
def test_halving_always_finds_the_number(level, size):
    env = gym.make("llm/GuessNumber-v0", difficulty=level).unwrapped
    longest = 0
    for secret in range(500, 500 + size):
        env.reset(options={"problem": {"low": 500, "high": 499 + size, "secret": secret}})
        steps = finish(env, env.oracle)
        assert not steps[-1][3]
        longest = max(longest, len(steps))
    assert longest == {10: 4, 100: 7, 1000: 10}[size]


def test_the_oracle_of_guess_number_is_not_misled_by_foolish_guesses():
    env = gym.make("llm/GuessNumber-v0", difficulty="medium").unwrapped
    env.reset(options={"problem": {"low": 1, "high": 100, "secret": 60}})
    env.step("<answer>50</answer>")
    env.step("<answer>1</answer>")  # says "higher" again, of less use
    assert env.oracle() == "<answer>75</answer>"
    env.step("<answer>99999</answer>")
    assert env.oracle() == "<answer>75</answer>"


@pytest.mark.parametrize(("level", "rate"), [("easy", 0.4), ("medium", 0.08), ("hard", 0.012)])
def test_blind_guesses_win_at_the_chance_rate(level, rate):
    env = gym.make("llm/GuessNumber-v0", difficulty=level).unwrapped
    assert env.chance_rate == pytest.approx(rate)
    rng, n, wins = random.Random(0), 3_000, 0
    for seed in range(n):
        env.reset(seed=seed if seed == 0 else None)
        low, high = env.problem["low"], env.problem["high"]
        for guess in rng.sample(range(low, high + 1), env.max_turns):
            _, _, terminated, truncated, _ = env.step(format_answer(guess))
            if terminated or truncated:
                break
        wins += terminated
    assert abs(wins / n - rate) < 4 * (rate * (1 - rate) / n) ** 0.5


def test_another_number_of_guesses_has_another_chance_rate():
    assert gym.make("llm/GuessNumber-v0", max_turns=2).unwrapped.chance_rate == 0.2
    assert gym.make("llm/GuessNumber-v0", max_turns=50).unwrapped.chance_rate == 1.0


def test_guess_number_refuses_a_number_outside_its_range():
    with pytest.raises(InvalidConfigError, match="low <= secret <= high"):
        gym.make("llm/GuessNumber-v0").unwrapped.reset(options={"problem": {"low": 1, "high": 10, "secret": 11}})


# Splits.


def test_what_only_differs_in_order_has_one_split_key():
    calculator = gym.make("llm/Calculator-v0").unwrapped

    def key(expression):
        return calculator.split_key({"expression": expression})

    for same in (
        ("47+85", "85+47"),
        ("37*24", "24*37"),
        ("37*24-9", "24*37-9"),
        ("123-45+678", "678+123-45", "123+678-45"),
        ("34*27-18*65", "27*34-65*18"),
    ):
        assert len({key(expression) for expression in same}) == 1
    different = ["47+85", "47-85", "85-47", "47*85", "34*27-18*65", "18*65-34*27", "34*18-27*65", "(84/7+15)*23-48"]
    assert len({key(expression) for expression in different}) == len(different)
    countdown = gym.make("llm/Countdown-v0").unwrapped
    first, second = ({"numbers": numbers, "target": 93} for numbers in ([4, 7, 25], [25, 4, 7]))
    assert countdown.split_key(first) == countdown.split_key(second)
    assert countdown.split_key(first) != countdown.split_key(first | {"target": 94})
    assert second["numbers"] == [25, 4, 7]


@pytest.mark.parametrize(
    ("id", "problem"),
    [
        ("llm/Calculator-v0", {"expression": "10**500"}),
        ("llm/Arithmetic-v0", {"expression": "-(10**400)"}),
        ("llm/GuessNumber-v0", {"low": 1, "high": 10**400, "secret": 5}),
    ],
)
def test_a_value_that_no_answer_can_write_is_refused(id, problem):
    with pytest.raises(InvalidConfigError, match="400 digits"):
        gym.make(id).unwrapped.reset(options={"problem": problem})


def test_the_longest_value_is_played_by_the_oracle():
    env = gym.make("llm/Calculator-v0").unwrapped
    env.reset(options={"problem": {"expression": "10**400-1"}})
    env.step(env.oracle())
    assert env.step(env.oracle())[1] == 1.0
