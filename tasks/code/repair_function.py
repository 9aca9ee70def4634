"""`llm/RepairFunction-v0`: find the one wrong line of a Python function, and write it anew."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from llm_envs.env import Difficulty, SingleTurnEnv
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.code.judging import passes
from llm_envs.tasks.code.programs import NAMES, PROGRAMS
from llm_envs.tasks.draws import between, pick, sample

__all__ = ["MOST_CHANGES", "RepairFunctionEnv", "changes"]

MOST_CHANGES = 3
"""Words, numbers and signs by which the new line may differ: else a line that does all at once, and comes before the
wrong one or in its place, would be right for every mistake of a function."""
_SIGN = re.compile(r"\"[^\"]*\"|\w+|//=|//|[-+*/%=!<>]=|[^\w\s]")


class RepairFunctionEnv(SingleTurnEnv):
    """Find the one wrong line of a Python function, and write it anew.

    ## Description
    A short, well-known function (a search, a parser, arithmetic) has one line that is wrong, and what it should return
    is said in words; at the upper levels variables have names that do not help. The answer names the line and its new
    text; the function with that line is run in a sandbox on inputs that are not shown. Every line that makes it right
    is right, if at most three words, numbers and signs are changed: to write the function anew in one line is no
    repair. Teaches to read code against its purpose, and to change no more than is needed.

    ## Observation
    The purpose, the function with numbered lines, and at the easy level a call that goes wrong. After the reply
    "Correct.", "Incorrect." or what was malformed.

    ## Action
    The line's number, a colon and its new text in the final answer, `<answer>4: while low <= high:</answer>`; its
    indentation is that of the line it replaces. Thinking in `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 if the function passes every test. `malformed` (weight -0.1): 1 for a reply without an
    answer, with broken tags, or whose answer does not name a line or changes too much of it.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train" or "test". A mistake of a function is in one split, whatever the names.
    - `difficulty`: "easy" (default): a wrong call is shown, the names are telling; "medium": none is shown; "hard":
      none, and the names are single letters.
    - `reset(options={"problem": {"program": "gcd", "mistake": 0, "names": ["a", "b", "rest"], "shown": 0}})`: a
      function and a mistake of `tasks/code/programs.py`, names of its variables, and which input is shown, or -1.

    ## Version History
    - v0: first version.
    """

    # Measured: the right line of another problem, or the most frequent answer of all, is right in 1.7%.
    difficulties = {
        "easy": Difficulty("a wrong call is shown", chance_rate=0.03, settings={"names": NAMES, "shown": True}),
        "medium": Difficulty("none is shown", chance_rate=0.03, settings={"names": NAMES, "shown": False}),
        "hard": Difficulty(
            "single letters", chance_rate=0.03, settings={"names": tuple("abcdghkmnpqrstuvwxyz"), "shown": False}
        ),
    }
    default_difficulty = "easy"
    problem_fields = {"program": str, "mistake": int, "names": list, "shown": int}
    instructions = (
        "One line is wrong. Reply with its number and what it should be, as <answer>number: line</answer>. Change no "
        f"more than {MOST_CHANGES} words, numbers and signs of it."
    )
    blocking = True

    def generate(self) -> dict[str, Any]:
        """Draw a function, a mistake, names, and an input that shows the mistake."""
        random = self.np_random.random
        name = pick(random, tuple(PROGRAMS))
        program = PROGRAMS[name]
        mistake = between(random, 0, len(program.mistakes) - 1)
        names = sample(random, self.settings["names"], 5)
        shown = -1
        if self.settings["shown"]:
            expected, wrong = _values(name, -1), _values(name, mistake)
            shown = pick(random, [i for i, value in enumerate(expected) if value != wrong[i]])
        return {"program": name, "mistake": mistake, "names": names, "shown": shown}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse unknown functions and mistakes."""
        program = PROGRAMS.get(problem["program"])
        if program is None:
            raise InvalidActionError(f"its program is none of {', '.join(PROGRAMS)}")
        if not 0 <= problem["mistake"] < len(program.mistakes) or not -1 <= problem["shown"] < len(program.inputs):
            raise InvalidActionError("there is no such mistake, or no such input")
        names = problem["names"]
        if not all(isinstance(n, str) and n.isidentifier() for n in names) or len(set(names)) < 5:
            raise InvalidActionError("it must have five different names of variables")
        if any(keyword.iskeyword(name) or hasattr(builtins, name) for name in names):
            raise InvalidActionError("its names must not be Python's own")

    def split_key(self, problem: Mapping[str, Any]) -> Any:
        """Return function and mistake: other names do not make another problem."""
        return [problem["program"], problem["mistake"]]

    def prompt(self) -> str:
        """Return the purpose and the function with its mistake."""
        program = PROGRAMS[self.problem["program"]]
        lines = _lines(self.problem["program"], self.problem["mistake"], self.problem["names"])
        numbered = "\n".join(f"{i:2}: {line}" for i, line in enumerate(lines, 1))
        text = f"This function should return {program.purpose}:\n{numbered}"
        if (shown := self.problem["shown"]) >= 0:
            call = _call(program.inputs[shown])
            text += f"\nBut {call} does not give {_values(self.problem['program'], -1)[shown]}."
        return text

    def solution(self) -> str:
        """Return the right line with its number."""
        program = PROGRAMS[self.problem["program"]]
        place = program.mistakes[self.problem["mistake"]][0]
        return f"{place}: {_lines(self.problem['program'], -1, self.problem['names'])[place - 1].strip()}"

    def is_correct(self, answer: str) -> bool:
        """Put the line in and run every test."""
        found = re.fullmatch(r"\s*(?:line\s+)?(\d{1,3})\s*:(.*)", answer, re.IGNORECASE)
        if found is None or "\n" in answer.strip():
            raise InvalidActionError("the answer is not the number of a line, a colon and the line")
        name = self.problem["program"]
        lines = _lines(name, self.problem["mistake"], self.problem["names"])
        place = int(found[1]) - 1
        if not 0 <= place < len(lines):
            raise InvalidActionError(f"the function has {len(lines)} lines, and no line {found[1]}")
        line = found[2].partition("#")[0].strip()
        if (n := changes(lines[place], line)) > MOST_CHANGES:
            raise InvalidActionError(f"line {found[1]} changes {n} words, numbers and signs, over {MOST_CHANGES}")
        indentation = lines[place][: len(lines[place]) - len(lines[place].lstrip())]
        lines[place] = indentation + line
        calls = [_call(arguments) for arguments in PROGRAMS[name].inputs]
        expected = [_expected(name)[call] for call in calls]
        return passes("\n".join(lines), calls, expected)


def changes(old: str, new: str) -> int:
    """Return how many words, numbers, signs and texts must be put in, left out or replaced to come from old to new."""
    before, after = (_SIGN.findall(line.replace("'", '"')) for line in (old, new))
    if abs(len(before) - len(after)) > MOST_CHANGES:
        return abs(len(before) - len(after))  # a bound from below, for a long answer
    row = list(range(len(after) + 1))
    for i, sign in enumerate(before, 1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(after, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (sign != other))
    return row[-1]


def _call(arguments: Sequence[Any]) -> str:
    return f"f({', '.join(map(repr, arguments))})"


def _lines(name: str, mistake: int, names: Sequence[str]) -> list[str]:
    """Return the lines of a function, with one of its mistakes unless that is -1."""
    program = PROGRAMS[name]
    lines = program.source.split("\n")
    if mistake >= 0:
        place, line = program.mistakes[mistake]
        lines[place - 1] = line
    return [line.format(*names) for line in lines]


@lru_cache(maxsize=256)
def _values(name: str, mistake: int) -> tuple[str, ...]:
    """Return what the function gives for each of its inputs, as a `repr`; for one that does not end, or raises, why."""
    namespace: dict[str, Any] = {}
    source = "\n".join(_lines(name, mistake, "abcde"))
    exec(compile(source, f"<{name}>", "exec"), namespace)
    values = []
    for arguments in PROGRAMS[name].inputs:
        try:
            values.append(repr(namespace["f"](*arguments)))
        except Exception as error:
            values.append(type(error).__name__)
    return tuple(values)


@lru_cache(maxsize=64)
def _expected(name: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {}
    exec(compile("\n".join(_lines(name, -1, "abcde")), f"<{name}>", "exec"), namespace)
    return {_call(arguments): namespace["f"](*arguments) for arguments in PROGRAMS[name].inputs}
