"""`llm/RepairFunction-v0`: find the one wrong line of a Python function, and write it anew."""

from __future__ import annotations

import builtins
import keyword
import re
from ast import literal_eval
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from llm_envs.checker.comparing import compared_repairs
from llm_envs.env import Difficulty, SingleTurnEnv
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.code.boundaries import off_by_one, outcomes, telling
from llm_envs.tasks.code.judging import passes
from llm_envs.tasks.code.programs import (
    LETTERS,
    N_NAMES,
    NAMES,
    Function,
    describe,
    draw,
    draw_written,
    facts_of,
    is_function,
    key_of,
    mistake,
    near,
    neighbours,
    run,
    source,
)
from llm_envs.tasks.draws import Random, between, pick, sample

__all__ = ["MOST_CHANGES", "RepairFunctionEnv", "changes"]

MOST_CHANGES = 3
"""Words, numbers and signs by which the new line may differ: else a line that does all at once, and comes before the
wrong one or in its place, would be right for every mistake of a function."""
_KEPT = 10
"""Facts that a reader keeps."""
_N_INPUTS = 10
_N_PROBES = 120
"""Inputs, beside these, among which one is looked for that tells the right line from one whose number is off by one."""
_N_TRIES = 6
"""Number of mistakes of one function to try: comparing the words with the signs must not find it."""
_TWIN_SHARE, _FIRST_SHARE = 0.1, 0.12
"""Shares of mistakes in a variable or a range, and in a number that is returned or begins a total."""
_FIRST = ("s", "d")
_OTHER_SLOTS = ("C", "V", "R", "k", "before", "state")
_FENCE = re.compile(r"```(?:python|py)?[ \t]*(?:\n|$)")
_ANSWER = re.compile(
    r"(?:the answer is:?\s+)?[*`-]*\s*(?:line\s+)?(\d{1,3})(?: should be| becomes| is)?[*`]*\s*[:.)][*]*\s*(.*?)",
    re.IGNORECASE,
)
_LETTERS = tuple("abcdghkmnpqrstuvwxyz")
_SIGN = re.compile(r"\"[^\"]*\"|\w+|//=|//|[-+*/%=!<>]=|[^\w\s]")


class RepairFunctionEnv(SingleTurnEnv):
    """Find the one wrong line of a Python function, and write it anew.

    ## Description
    A function on a list of whole numbers has one line that is wrong; what it should do is described in words. The wrong
    line would be right in another function: it has another number, comparison, sign, variable or range, or two of them
    are exchanged.
    The right lines need not have the numbers of the description (`>= 4` for greater than 3), so that comparing numbers
    and signs with words does not find the mistake. The answer names the line and
    its new text; the function with that line is run in a sandbox on inputs that are not shown. Every line that makes it
    right is right, if at most three words, numbers and signs are changed: to write the function anew in one line is not
    a repair. Teaches to read code against its purpose, and to change no more than is needed.

    ## Observation
    The purpose, the function with numbered lines, and at the easy level a call that goes wrong. After the reply
    "Correct.", "Incorrect." or the reason why it is malformed.

    ## Action
    The line's number, a colon and its new text in the final answer, `<answer>4: if value >= 3:</answer>`, perhaps with
    the line in backticks; its indentation is that of the line it replaces. Thinking in
    `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 if the function passes every test. `malformed` (weight -0.1): 1 for a reply without an
    answer, with broken tags, or whose answer does not name a line or changes too much of it.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train" or "test". A function is in one split, whatever its mistake and its names.
    - `difficulty`: "easy" (default): short functions, a wrong call is shown, the names are telling; "medium": all
      functions, no call is shown, and half of the texts also tell an earlier version; "hard": the names are single
      letters, and numbers are words; "expert": the function makes two lists first, with a
      state and a recursion.
    - `reset(options={"problem": {"function": ..., "written": ..., "mistake": 0, "names": ["a", "b", "c", "d", "e",
      "f"], "inputs": [[1, 2], []], "shown": 0, "former": -1}})`: a function as `tasks/code/programs.py` makes it, one
      that does the same and whose lines are shown, which of its neighbours has the mistake, names of its variables,
      the inputs, which of them is shown, or -1, and which of the function's neighbours is told as an earlier version,
      or -1.

    ## Version History
    - v0: first version.
    """

    # Who does not read the purpose can guess one of 14 mistakes (26 at the expert level): a table of the wrong lines of
    # train and how they were repaired is right in 5 to 11% of test. Who compares numbers and signs with the words, and
    # picks one of those that differ, is right in 3 to 13%.
    difficulties = {
        "easy": Difficulty(
            "short functions, a wrong call is shown",
            chance_rate=0.15,
            settings={
                "names": NAMES, "shown": True, "is_simple": True, "n_stages": 1, "decoys": 0.0, "is_spoken": False,
            },
        ),
        "medium": Difficulty(
            "all functions, no call is shown",
            chance_rate=0.15,
            settings={
                "names": NAMES, "shown": False, "is_simple": False, "n_stages": 1, "decoys": 0.5, "is_spoken": False,
            },
        ),
        "hard": Difficulty(
            "single letters",
            chance_rate=0.15,
            settings={
                "names": _LETTERS, "shown": False, "is_simple": False, "n_stages": 1, "decoys": 0.5, "is_spoken": True,
            },
        ),
        "expert": Difficulty(
            "single letters, three stages, a state and a recursion",
            chance_rate=0.15,
            settings={
                "names": _LETTERS, "shown": False, "is_simple": False, "n_stages": 3, "decoys": 0.5, "is_spoken": True,
            },
        ),
    }  # fmt: skip
    default_difficulty = "easy"
    problem_fields = {
        "function": dict, "written": dict, "mistake": int, "names": list, "inputs": list, "shown": int, "former": int,
    }  # fmt: skip
    instructions = (
        "One line of the function is wrong. Answer with the number of that line, a colon, and the corrected line. "
        f"Change at most {MOST_CHANGES} words, numbers and signs of it."
    )
    answer_example = "12: while value > 40:"
    plain_answer = staticmethod(str.strip)
    has_natural_form = False
    blocking = True
    slow_reset_reason = "mistakes are drawn until comparing words with signs finds none, and inputs that show each"

    def generate(self) -> dict[str, Any]:
        """Draw a function, one of its mistakes, and inputs; at least two of these show it.

        A mistake that is found by comparing the text with the code is drawn again, and one whose right line does the
        same with a number off by one.
        """
        random, settings = self.np_random.random, self.settings
        slots = _draw_slots(random)
        while True:
            function = draw(random, is_simple=settings["is_simple"], n_stages=settings["n_stages"])
            written = draw_written(random, function)
            numbers = near(written)
            inputs = _draw_inputs(random, numbers)
            expected = run(function, inputs)
            if len(set(expected)) < 3:
                continue
            around = neighbours(written)
            for number in sample(random, range(len(around)), min(_N_TRIES, len(around))):
                found = mistake(written, around[number])
                if found is None or _slot_of(written, around[number]) not in slots:
                    continue
                wrong = run(around[number], inputs)
                differing = [i for i, value in enumerate(expected) if value != wrong[i]]
                former = between(random, 0, len(neighbours(function)) - 1) if random() < settings["decoys"] else -1
                texts = [describe(function), _text(function, former)]
                if len(differing) < 2 or any(_is_compared(text, written, found, inputs) for text in texts):
                    continue
                if (more := _telling(random, written, found[0], inputs, numbers)) is not None:
                    return {
                        "function": function,
                        "written": written,
                        "mistake": number,
                        "names": sample(random, settings["names"], N_NAMES),
                        "inputs": inputs + more,
                        "shown": pick(random, differing) if settings["shown"] else -1,
                        "former": former,
                    }

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse parts that make no function, and unknown mistakes."""
        function, inputs = problem["function"], problem["inputs"]
        if not is_function(function):
            raise InvalidActionError("its function is none that tasks/code/programs.py makes")
        written = problem["written"]
        if not is_function(written) or key_of(written) != key_of(function):
            raise InvalidActionError("what is written does not do the same as its function")
        around = neighbours(written)
        found = mistake(written, around[problem["mistake"]]) if 0 <= problem["mistake"] < len(around) else None
        lines = () if found is None else (source(written)[found[0]], found[1])
        if found is None or changes(*(line.format(*LETTERS) for line in lines)) > MOST_CHANGES:
            raise InvalidActionError(f"its mistake must be below {len(around)}, and be in one line")
        if not inputs or not all(isinstance(xs, list) and all(type(x) is int for x in xs) for xs in inputs):
            raise InvalidActionError("its inputs must be lists of whole numbers")
        if not -1 <= problem["shown"] < len(inputs):
            raise InvalidActionError("its shown input does not exist")
        if not -1 <= problem["former"] < len(neighbours(function)):
            raise InvalidActionError("its former must be -1, or the number of a neighbour of its function")
        names = problem["names"]
        if not all(isinstance(n, str) and n.isidentifier() for n in names) or len(set(names)) < N_NAMES:
            raise InvalidActionError(f"it must have {N_NAMES} different names of variables")
        if any(keyword.iskeyword(name) or hasattr(builtins, name) for name in names):
            raise InvalidActionError("its names must not be Python's own")
        if run(function, inputs) == run(around[problem["mistake"]], inputs):
            raise InvalidActionError("no input shows its mistake")

    def split_key(self, problem: Mapping[str, Any]) -> Any:
        """Return the function: another mistake, other names and inputs do not make another problem."""
        return key_of(problem["function"])

    def begin(self) -> None:
        """Write the function, and find its mistake."""
        written = self.problem["written"]
        found = mistake(written, neighbours(written)[self.problem["mistake"]])
        assert found is not None
        self._place, wrong = found
        self._right = [line.format(*self.problem["names"]) for line in source(written)]
        self._lines = list(self._right)
        self._lines[self._place] = wrong.format(*self.problem["names"])

    def shortcuts(self) -> Mapping[str, str]:
        """Return what is found by comparing the numbers and signs of the code with those of the purpose.

        At the expert level also the answer of a reader that reads the purpose once, keeps the last 10 of its numbers
        and signs, and judges each line rightly by these.
        """
        function, former, replies = self.problem["function"], self.problem["former"], {}
        for said, text in (("", describe(function)), (", of both versions", _text(function, former))):
            for name, lines in compared_repairs(text, self._lines).items():
                changed = [i for i, line in enumerate(lines) if line != self._lines[i]]
                replies[name + said] = self.write_answer(f"{changed[0] + 1}: {lines[changed[0]].strip()}")
        if "state" in function:
            lines = self._right if self._is_kept() else self._lines
            replies[f"reader({_KEPT})"] = self.write_answer(f"{self._place + 1}: {lines[self._place].strip()}")
        return replies

    def _is_kept(self) -> bool:
        """Whether the mistake is in one of the last facts of the purpose."""
        written = self.problem["written"]
        right, wrong = facts_of(written), facts_of(neighbours(written)[self.problem["mistake"]])
        n_before = next((i for i, (a, b) in enumerate(zip(right, wrong, strict=False)) if a != b), 0)
        return n_before >= len(right) - _KEPT

    def prompt(self) -> str:
        """Return the purpose and the function with its mistake."""
        numbered = "\n".join(f"{i:2}: {line}" for i, line in enumerate(self._lines, 1))
        text = (
            "This function takes a list of whole numbers. It should do this:\n"
            f"{_text(self.problem['function'], self.problem['former'], self.settings['is_spoken'])}\n{numbered}"
        )
        if (shown := self.problem["shown"]) >= 0:
            xs = self.problem["inputs"][shown]
            text += f"\nBut f({xs}) does not give {run(self.problem['function'], [xs])[0]}."
        return text

    def solution(self) -> str:
        """Return the right line with its number."""
        return f"{self._place + 1}: {self._right[self._place].strip()}"

    def is_correct(self, answer: str) -> bool:
        """Put the line in and run every test."""
        found = _ANSWER.fullmatch(_FENCE.sub(" ", answer).strip())
        if found is None:
            raise InvalidActionError("the answer is not the number of a line, a colon and the line")
        lines, place = list(self._lines), int(found[1]) - 1
        if not 0 <= place < len(lines):
            raise InvalidActionError(f"the function has {len(lines)} lines, and no line {found[1]}")
        line = found[2].strip(" `*").partition("#")[0].strip()
        if (n := changes(lines[place], line)) > MOST_CHANGES:
            raise InvalidActionError(f"line {found[1]} changes {n} words, numbers and signs, over {MOST_CHANGES}")
        indentation = lines[place][: len(lines[place]) - len(lines[place].lstrip())]
        lines[place] = indentation + line
        inputs = self.problem["inputs"]
        expected = [literal_eval(value) for value in run(self.problem["function"], inputs)]
        return passes("\n".join(lines), [f"f({xs})" for xs in inputs], expected)


def _text(function: Function, former: int, is_spoken: bool = False) -> str:
    """Return what a function should do, perhaps with what it did before: one of its neighbours, or none for -1."""
    text = describe(function, is_spoken=is_spoken)
    if former < 0:
        return text
    earlier = describe(neighbours(function)[former], is_spoken=is_spoken)
    return f"{text}\nUntil version 2 it did this instead:\n{earlier}"


def _draw_slots(random: Random) -> Collection[str]:
    """Draw where the mistake may be: no player that always mends one kind of part is often right.

    Without this, comparing words with signs would leave mostly other variables, other ranges and first numbers.
    """
    kind = random()
    if kind < _TWIN_SHARE:
        return ("shape",)
    return _FIRST if kind < _TWIN_SHARE + _FIRST_SHARE else _OTHER_SLOTS


def _slot_of(written: Function, other: Function) -> str:
    """Return the part in which two functions differ."""
    return next(slot for slot in written if written[slot] != other[slot])


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


def _is_compared(text: str, written: Function, found: tuple[int, str], inputs: Sequence[Sequence[int]]) -> bool:
    """Whether a player that compares the words with the signs mends a line of the mistake, here or in one answer."""
    right, place = [line.format(*LETTERS) for line in source(written)], found[0]
    wrong = [*right[:place], found[1].format(*LETTERS), *right[place + 1 :]]
    if changes(right[place], wrong[place]) > MOST_CHANGES:
        return True
    repairs = {lines[place] for lines in compared_repairs(text, wrong).values()} - {wrong[place]}
    if right[place] in repairs:
        return True
    expected = outcomes(right, inputs) if repairs else []
    return any(outcomes([*right[:place], line, *right[place + 1 :]], inputs) == expected for line in repairs)


def _telling(
    random: Random, written: Function, place: int, inputs: Sequence[list[int]], numbers: Sequence[int]
) -> list[list[int]] | None:
    """Draw inputs that tell the right line from its neighbours, as far as the given ones do not.

    Its neighbours are the lines with a number off by one, and all its mistakes; None if one of them is not told.
    """
    right = [line.format(*LETTERS) for line in source(written)]
    mistakes = [found[1] for other in neighbours(written) if (found := mistake(written, other)) and found[0] == place]
    lines = dict.fromkeys([*off_by_one(right[place]), *(line.format(*LETTERS) for line in mistakes)])
    others = [[*right[:place], line, *right[place + 1 :]] for line in lines]

    def probes() -> list[list[int]]:
        return [_draw_list(random, numbers, between(random, 1, 9)) for _ in range(_N_PROBES)]

    return telling(partial(outcomes, right), [partial(outcomes, lines) for lines in others], inputs, probes)


def _draw_inputs(random: Random, numbers: Sequence[int]) -> list[list[int]]:
    """Draw lists of whole numbers: an empty one, one of one number, and others with some of the numbers given."""
    sizes = [0, 1, *(between(random, 4, 9) for _ in range(_N_INPUTS - 2))]
    return [_draw_list(random, numbers, size) for size in sizes]


def _draw_list(random: Random, numbers: Sequence[int], size: int) -> list[int]:
    return [pick(random, numbers) if random() < 0.5 else between(random, -9, 20) for _ in range(size)]
