"""`llm/WriteFunction-v0`: write a Python function that passes hidden tests."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from llm_envs.env import Difficulty, SingleTurnEnv
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.code.boundaries import off_by_one, outcomes, telling
from llm_envs.tasks.code.judging import SANDBOX_LACKS, passes, without_fence
from llm_envs.tasks.code.pipelines import (
    DIVISORS,
    RESULTS,
    STEPS,
    Program,
    behaviour,
    compute,
    describe,
    draw_inputs,
    draw_result,
    draw_steps,
    everything_matters,
    source,
)
from llm_envs.tasks.draws import Random, between

__all__ = ["WriteFunctionEnv"]

_N_SHOWN = 2
_KEPT = 5
"""Steps that a reader keeps in mind."""
_LARGEST = 1_000_000
"""A greater number is not made of a list: it would be long to read."""
_N_PROBES = 100
"""Lists among which one is looked for that tells the function from one with a number off by one."""


class WriteFunctionEnv(SingleTurnEnv):
    r"""Write a Python function that passes hidden tests.

    ## Description
    The function takes a list of whole numbers through several steps, which are described in words, with two examples.
    It is run in a sandbox on ten lists or a few more. Two of them are shown; an empty one is among the others. These
    tell the function from one that leaves out a step, or has a number that is off by one. Teaches to turn a description
    into code exactly, corner cases included.

    ## Observation
    The description and two examples. After the reply "Correct.", "Incorrect." or the reason why it is malformed.

    ## Action
    The function in the final answer, `<answer>def f(xs):\n    return xs[0] * 2</answer>`, perhaps in a fence of three
    backticks, with or without prose around it. A common subset of Python is run (`pip install 'llm-envs[tools]'`); the
    prompt names the parts that it lacks. Thinking in `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 if every test is passed. `malformed` (weight -0.1): 1 for a reply without an answer, with
    broken tags, or whose answer defines no `f`. Passing some of the tests earns nothing.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train" or "test". Functions that do the same are in the same split.
    - `difficulty`: "easy" (default): two steps and a result; "medium": three; "hard": five; "expert": ten; four
      of them are told as steps before them, done once more.
    - `reset(options={"problem": {"program": [["even", 0], ["sum", 0]], "inputs": [[1, 2], [3, 4]]}})` gives the steps
      (names in `tasks/code/pipelines.py`, each with its number) and the inputs. The last two are shown.

    ## Version History
    - v0: first version.
    """

    # Of 150 problems of each level the function of one was right for at most one other (0.7%).
    difficulties = {
        "easy": Difficulty("two steps and a result", chance_rate=0.02, settings={"n_steps": 2, "n_repeats": 0}),
        "medium": Difficulty("three steps and a result", chance_rate=0.01, settings={"n_steps": 3, "n_repeats": 0}),
        "hard": Difficulty("five steps and a result", chance_rate=0.01, settings={"n_steps": 5, "n_repeats": 0}),
        "expert": Difficulty(
            "ten steps, four told by reference to others, and a result",
            chance_rate=0.01,
            settings={"n_steps": 6, "n_repeats": 4},
        ),
    }
    default_difficulty = "easy"
    problem_fields = {"program": list, "inputs": list}
    instructions = (
        "Write a Python function f(xs). Answer with its code, and nothing else. Do not use imports. The code "
        f"runs in a small sandbox, which does not have {SANDBOX_LACKS}."
    )
    answer_example = "def f(xs):\n    return xs[0] * 2"
    plain_answer = staticmethod(without_fence)
    has_natural_form = False
    blocking = True
    slow_reset_reason = "inputs are drawn until they tell the function from each with another number, or a step less"

    def generate(self) -> dict[str, Any]:
        """Draw steps and inputs until the inputs that are not shown need every step and number, and results differ."""
        random = self.np_random.random
        while True:
            inputs = draw_inputs(random, 10)
            hidden = inputs[:-_N_SHOWN]
            steps = _repeated(random, draw_steps(random, self.settings["n_steps"], hidden), self.settings["n_repeats"])
            if _largest(steps, hidden) > _LARGEST:
                continue
            for _ in range(4):
                program = [*steps, draw_result(random)]
                if everything_matters(program, hidden):
                    least = 2 if program[-1][0] == "differs" else 4  # a truth value has only two values
                    n_results = len({repr(compute(program, xs)) for xs in hidden})
                    if n_results >= least and (more := _telling(random, program, hidden)) is not None:
                        return {"program": program, "inputs": [*more, *inputs]}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse unknown steps, and inputs that are not lists of whole numbers."""
        program, inputs = problem["program"], problem["inputs"]
        if not program or not all(isinstance(s, list) and list(map(type, s)) == [str, int] for s in program):
            raise InvalidActionError("the program must consist of [name, number]")
        if any(name not in STEPS for name, _ in program[:-1]) or program[-1][0] not in RESULTS:
            raise InvalidActionError(f"its steps are {', '.join(STEPS)}, then one of {', '.join(RESULTS)}")
        if any(name in DIVISORS and k <= 0 for name, k in program[:-1]):
            raise InvalidActionError("a divisor must be above 0")
        if len(inputs) < 2 or not all(isinstance(xs, list) and all(type(x) is int for x in xs) for xs in inputs):
            raise InvalidActionError("the inputs must be at least two lists of whole numbers")

    def split_key(self, problem: Mapping[str, Any]) -> Any:
        """Return what the function does: neither other words nor other inputs make another problem."""
        return behaviour(problem["program"])

    def shortcuts(self) -> dict[str, str]:
        """Return the functions that leave out one of the steps.

        At the expert level also that of a reader who writes each step down as it is told, and keeps the last 5 in mind:
        it leaves out a step that refers to one before these.
        """
        program = self.problem["program"]
        found = {
            f"without step {place + 1}": self.write_answer(source([*program[:place], *program[place + 1 :]]))
            for place in range(len(program) - 1)
        }
        known = [step for i, step in enumerate(program) if step not in program[:i] or i - program.index(step) <= _KEPT]
        if self.settings["n_repeats"]:
            found[f"reader({_KEPT})"] = self.write_answer(source(known))
        return found

    def prompt(self) -> str:
        """Return the description and two examples."""
        shown = [f"f({xs}) == {compute(self.problem['program'], xs)!r}" for xs in self.problem["inputs"][-_N_SHOWN:]]
        return (
            "Write f(xs) for a list xs of whole numbers. It does this, one after the other:\n"
            f"{describe(self.problem['program'])}\nFor example:\n" + "\n".join(shown)
        )

    def solution(self) -> str:
        """Return a function."""
        return source(self.problem["program"])

    def is_correct(self, answer: str) -> bool:
        """Run every test."""
        if re.search(r"\bf\b", answer) is None:
            raise InvalidActionError("the answer defines no function f")
        inputs = self.problem["inputs"]
        expected = [compute(self.problem["program"], xs) for xs in inputs]
        return passes(answer, [f"f({xs})" for xs in inputs], expected)


def _repeated(random: Random, steps: Program, n: int) -> Program:
    """Return the steps with some of them done once more, after others."""
    for _ in range(n):
        first = between(random, 0, len(steps) - 2)
        place = between(random, first + 2, len(steps))
        steps = [*steps[:place], list(steps[first]), *steps[place:]]
    return steps


def _largest(steps: Program, inputs: Sequence[list[int]]) -> int:
    """Return the largest absolute value that the steps make of lists."""
    made = [compute([*steps[:n], ["list", 0]], xs) for xs in inputs for n in range(1, len(steps) + 1)]
    return max(abs(x) for xs in made for x in xs)


def _telling(random: Random, program: Program, inputs: Sequence[list[int]]) -> list[list[int]] | None:
    """Draw inputs that tell the code of a program from that with a number off by one; None if one is not told."""
    lines = source(program).split("\n")
    others = [[*lines[:i], other, *lines[i + 1 :]] for i, line in enumerate(lines) for other in off_by_one(line)]
    runs = [partial(outcomes, other) for other in others]
    return telling(partial(outcomes, lines), runs, inputs, lambda: draw_inputs(random, _N_PROBES))
