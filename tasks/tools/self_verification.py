"""`llm/SelfVerification-v0`: answer several questions, and check only where a check is worth its price."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import lcm
from typing import Any

from llm_envs.env import Difficulty, ToolEnv
from llm_envs.errors import InvalidActionError
from llm_envs.parsers import ParsedReply, format_tool_call
from llm_envs.rewards import parse_integer
from llm_envs.tasks.replies import list_items
from llm_envs.tools.base import Tool
from llm_envs.tools.budget import Budget
from llm_envs.tools.toolset import budgeted
from llm_envs.types import ToolResult

__all__ = ["N_QUESTIONS", "SelfVerificationEnv", "candidates"]

N_QUESTIONS = 4
BUDGET = 4.0
"""Checks that an episode may make; each costs 1 of it."""
COST_WEIGHT = 0.2
"""The cost of the whole budget: 0.05 a check, against 0.25 for a right number."""
_MOST = 100_000


def candidates(low: int, high: int, *conditions: int) -> list[int]:
    """Return the numbers from low to high that leave each remainder: divisor, remainder, divisor, remainder, ..."""
    pairs = list(zip(conditions[::2], conditions[1::2], strict=True))
    return [n for n in range(low, high + 1) if all(n % divisor == remainder for divisor, remainder in pairs)]


class SelfVerificationEnv(ToolEnv):
    """Answer four questions; pay for checks only where they are worth it.

    ## Description
    Four secret numbers are each described by a range and by remainders. For some, one number fits, and who works it
    out needs no check; for others two numbers fit, and only a check tells which it is. The tool `check(question,
    number)` returns "right" or "wrong" and costs a part of the reward, up to a budget. Teaches to know what one knows:
    to work out what can be worked out, to notice where an answer is not settled, and to spend a check there and
    nowhere else.

    ## Observation
    First the four questions and what a check costs. After a check "right" or "wrong", or "Error: ..." where the
    budget is spent. After a malformed reply a readable error.

    ## Action
    A call of the tool `check`, or the final answer: the four numbers in order, `<answer>17, 23, 5, 40</answer>`, with
    commas, line breaks or "and" between them.

    ## Reward
    A vector: `quality` (weight 1), the share of the four numbers that is right; `cost` (weight -0.2), the checks of
    the turn as a share of the budget of 4, so each costs 0.05; `malformed` (weight -0.1), 1 for a reply that is
    neither a call nor four whole numbers. The episode is a success if all four are right. The form is that of
    `llm_envs.rewards.create_self_verification`: r = q − λ c / B.

    A guess between two numbers is right half the time, which is worth 0.125; with one check it is 0.25 − 0.05. So
    the most that can be expected is 1 − 0.05 times the number of such questions, which is what the oracle earns and
    `max_return` declares, 0.95 down to 0.85. (With luck an episode may earn up to 1.) For a player who is right about
    a settled number with probability p, a check of it, to be used by correcting the number, pays where the correction
    is right with a probability above 0.2 / (1 − p).

    ## Episode End
    Terminates with the first answer of four whole numbers. Truncated after `max_turns` replies.

    ## Arguments
    - `split`: "train" or "test".
    - `difficulty`: "easy" (default): one condition each, one of the questions is open; "medium": one condition or two,
      two are open; "hard": two or three conditions and wide ranges, two are open; "expert": three conditions
      and ranges of thousands, three are open.
    - `max_turns`: 6 by default.
    - `reset(options={"problem": {"questions": [[20, 40, 13, 5], ...], "secrets": [31, ...]}})`: of each question
      the range, then divisors with remainders.

    ## Version History
    - v0: first version.
    """

    # Four numbers drawn from their ranges are all right in fewer than 1 of 100 episodes. (Who works everything out
    # and makes no check is right in all four with probability 1/2 or 1/4.)
    difficulties = {
        "easy": Difficulty(
            "one condition each; one open question",
            chance_rate=0.01,
            max_return=1 - COST_WEIGHT / BUDGET,
            settings={"n_open": 1, "n_conditions": (1, 1), "divisors": (7, 19)},
        ),
        "medium": Difficulty(
            "one or two conditions; two open questions",
            chance_rate=0.01,
            max_return=1 - 2 * COST_WEIGHT / BUDGET,
            settings={"n_open": 2, "n_conditions": (1, 2), "divisors": (5, 16)},
        ),
        "hard": Difficulty(
            "two or three conditions, wide ranges; two open questions",
            chance_rate=0.01,
            max_return=1 - 2 * COST_WEIGHT / BUDGET,
            settings={"n_open": 2, "n_conditions": (2, 3), "divisors": (4, 13)},
        ),
        "expert": Difficulty(
            "three conditions, ranges of thousands; three open questions",
            chance_rate=0.01,
            max_return=1 - 3 * COST_WEIGHT / BUDGET,
            settings={"n_open": 3, "n_conditions": (3, 3), "divisors": (11, 29)},
        ),
    }
    default_difficulty = "easy"
    default_max_turns = 6
    problem_fields = {"questions": list, "secrets": list}
    reward_weights = {"quality": 1.0, "cost": -COST_WEIGHT, "malformed": -0.1}
    min_return = -COST_WEIGHT - 0.5  # the whole budget, and the most that malformed replies cost
    instructions = (
        "Find the four numbers. Some descriptions fit only one number; others fit two, and then a check tells whether "
        "a number is the right one. Each right number earns 0.25, each check costs 0.05, and you can make at most 4 "
        "checks. Answer with the four numbers in order, with commas between them."
    )
    answer_example = "17, 23, 5, 40"

    def make_tools(self) -> Sequence[Tool]:
        """Return the check, under its budget."""
        self.budget = Budget(BUDGET)
        return budgeted([Tool(self.check, cost=1.0)], self.budget)

    def check(self, question: int, number: int) -> str:
        """Check one number. Says right or wrong.

        Args:
            question: Which of the four: 1 to 4.
            number: The number to check.
        """
        if not 1 <= question <= N_QUESTIONS:
            raise InvalidActionError(f"there are the questions 1 to {N_QUESTIONS}")
        is_right = number == self.problem["secrets"][question - 1]
        self._verdicts[question - 1, number] = is_right
        return "right" if is_right else "wrong"

    def generate(self) -> dict[str, Any]:
        """Draw four questions, with as many open ones as the level wants, and the secret numbers."""
        random, settings = self.np_random.random, self.settings
        n_open = settings["n_open"]
        questions, secrets = [], []
        for place in range(N_QUESTIONS):
            is_open = int(random() * (N_QUESTIONS - place)) < n_open
            n_open -= is_open
            question, fitting = _draw_question(random, settings, 2 if is_open else 1)
            questions.append(question)
            secrets.append(fitting[int(random() * len(fitting))])
        return {"questions": questions, "secrets": secrets}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse questions that the secret does not fit, or that leave more than two numbers."""
        questions, secrets = problem["questions"], problem["secrets"]
        if len(questions) != N_QUESTIONS or len(secrets) != N_QUESTIONS:
            raise InvalidActionError(f"it must have {N_QUESTIONS} questions and secrets")
        for question, secret in zip(questions, secrets, strict=True):
            if not (
                isinstance(question, list)
                and len(question) >= 4
                and len(question) % 2 == 0
                and all(type(number) is int for number in question)
                and 0 <= question[0] <= question[1] <= _MOST
                and all(divisor > 0 for divisor in question[2::2])
            ):
                raise InvalidActionError(f"a question is [low, high, divisor, remainder, ...] within 0 to {_MOST}")
            fitting = candidates(*question)
            if secret not in fitting or type(secret) is not int or len(fitting) > 2:
                raise InvalidActionError("each secret must fit its question, and one other number at most")

    def begin(self) -> None:
        """Forget what was checked."""
        self._verdicts: dict[tuple[int, int], bool] = {}

    def prompt(self) -> str:
        """Return the questions."""
        lines = []
        for place, (low, high, *conditions) in enumerate(self.problem["questions"], start=1):
            told = " and ".join(
                f"{remainder} when divided by {divisor}"
                for divisor, remainder in zip(conditions[::2], conditions[1::2], strict=True)
            )
            lines.append(
                f"{place}. A whole number from {low} to {high} (both included) that leaves the remainder {told}."
            )
        return "\n".join(lines)

    def is_correct(self, answer: str) -> bool:
        """Return whether all four are right, and keep the share that is."""
        parts = [parse_integer(part) for part in list_items(answer)]
        if len(parts) != N_QUESTIONS:  # perhaps with thousands separators: 1,204, 3,011, ...
            parts = [parse_integer(part.strip("[]() ")) for part in _BETWEEN.split(answer.strip())]
        if len(parts) != N_QUESTIONS or None in parts:
            raise InvalidActionError(f"the answer must be {N_QUESTIONS} whole numbers with commas between them")
        secrets = self.problem["secrets"]
        self._share = sum(part == secret for part, secret in zip(parts, secrets, strict=True)) / N_QUESTIONS
        return self._share == 1.0

    def score(
        self, reply: ParsedReply, results: Sequence[ToolResult], *, correct: bool, malformed: bool
    ) -> dict[str, float]:
        """Return the quality of an answer and the cost of a turn's checks."""
        is_answer = not malformed and not reply.tool_calls
        return {
            "quality": self._share if is_answer else 0.0,
            "cost": self.budget.collect() / BUDGET,
            "malformed": float(malformed),
        }

    def next_action(self) -> str:
        """Work everything out; check one of the two numbers of each open question; answer."""
        numbers, calls = [], []
        for place, question in enumerate(self.problem["questions"]):
            fitting = candidates(*question)
            left = [number for number in fitting if self._verdicts.get((place, number)) is not False]
            known = next((number for number in left if self._verdicts.get((place, number))), None)
            if known is None and len(left) > 1:
                calls.append(format_tool_call("check", question=place + 1, number=left[0]))
            numbers.append(left[0] if known is None else known)
        if calls and self.n_turns + 1 < self.max_turns and self.budget.remaining >= len(calls):
            return "\n".join(calls)
        return self.write_answer(", ".join(map(str, numbers)))


_BETWEEN = re.compile(r",?\s+and\s+|,\s+|\s*[;\n]\s*")


def _draw_question(
    random: Callable[[], float], settings: Mapping[str, Any], n_fitting: int
) -> tuple[list[int], list[int]]:
    """Draw a question that so many numbers fit; return these too."""
    fewest, most = settings["n_conditions"]
    low_divisor, high_divisor = settings["divisors"]
    while True:
        count = fewest + int(random() * (most - fewest + 1))
        divisors = {low_divisor + int(random() * (high_divisor - low_divisor + 1)) for _ in range(count)}
        period = lcm(*divisors)
        if len(divisors) == count and (count == 1 or period > max(divisors)):
            break
    # A first number that fits, then room around it for exactly as many as are wanted: they are a period apart.
    first = period + int(random() * 4 * period)
    span = (n_fitting - 1) * period
    low = first - int(random() * period)
    high = first + span + int(random() * period)
    conditions = [number for divisor in sorted(divisors) for number in (divisor, first % divisor)]
    return [low, high, *conditions], [first + place * period for place in range(n_fitting)]
