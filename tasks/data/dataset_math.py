"""`llm/DatasetMath-v0`: mathematics from any data set of questions and answers."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from llm_envs.env import Difficulty, SingleTurnEnv, split_of
from llm_envs.errors import InvalidActionError, InvalidConfigError, MissingExtraError
from llm_envs.mathematics.equality import prepare_comparison
from llm_envs.mathematics.lists import based_number
from llm_envs.parsers import extract_boxed, without_unit
from llm_envs.rewards import math_match, parse_number
from llm_envs.sources.prompts import PROMPT, load_prompts
from llm_envs.tasks.data.loading import FILES, load_data_set
from llm_envs.tasks.data.plain_math import as_latex, is_sentence
from llm_envs.tasks.data.problems import make_problems
from llm_envs.tasks.draws import pick, sample

__all__ = ["DatasetMathEnv", "final_answer", "has_value"]

_MARKER = "####"
_LONGEST = 500
"""Characters of an answer: longer ones are wrong, and are not compared."""

_DENIAL = re.compile(r"\b(?:not|no|never|neither|wrong|false)\b", re.IGNORECASE)
_PERCENT = re.compile(r"\s*(?:\\?%|\bpercent(?:age)?\b)")
_BASE = re.compile(r"\b(?:base|binary|octal|hexadecimal)\b", re.IGNORECASE)
_UNIT = re.compile(r"[^\W\d_]{2}|^\\?[$\u20ac\u00a3]")
_ASKED_UNITS = (
    (re.compile(r"\b(?:what|which|how many|as a|in|the|by) percent", re.IGNORECASE), _PERCENT),
    (re.compile(r"\bdegrees?\b|\bangle|\\circ", re.IGNORECASE), re.compile(r"\s*\^\s*\\circ\s*\Z")),
)
"""Questions that ask for a unit, and the sign of the unit in an answer."""
_WHOLE = re.compile(r"-?[0-9]{1,12}")
_SUM_OF_ALL = "Solve all of these problems, and add up their results. What is the sum?"


class DatasetMathEnv(SingleTurnEnv):
    r"""Solve a mathematics problem from a data set; answers are compared by value.

    ## Description
    Each episode asks one question of the data. The default data are problems made from 81 templates, with exact
    answers: fractions, equations, divisors; roots, intervals, derivatives, series; integrals, remainders, expansions;
    towers of powers, long recurrences, counting with conditions. With `data` it is any JSONL, CSV or Parquet file, or
    any data set of the library `datasets`, that has a column of questions and one of answers. Teaches mathematics as
    far as the data do.

    ## Observation
    The question. After the reply "Correct.", "Incorrect." or what was malformed.

    ## Action
    `<answer>\frac{3}{4}</answer>` or `<answer>3/4</answer>`: only the result, in LaTeX or plain text. Thinking in
    `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 if the answer has the value of the right one (`llm_envs.rewards.math_match`): "0.75" is
    "3/4", "x=5" is "5", a list may be in any order. An answer that leaves operations to be carried out which the right
    one does not have is wrong, so the question's own expression is. `malformed` (weight -0.1): 1 for a reply without an
    answer or with broken tags.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train" or "test", by a hash of the question: one in five is in the test.
    - `difficulty`: of the default data "easy" (default), "medium", "hard" or "expert", where the sum of the results
      of six problems is asked for. With `data` there is no choice.
    - `data`: path of a file, or of a folder that `datasets` saved, or the name of a data set that `datasets` loads; or
      rows. None: the default data.
    - `subset`, `data_split`: of a data set: its configuration, and which of its splits is read ("train" by default).
    - `question`, `answer`: names of the columns. Of the answer's text the part that counts is what follows the last
      "####", or the last `\boxed{...}`; without either, all of it.
    - `divide`: False to have all rows in both splits, where the data are for a test only.
    - `reset(options={"problem": {"question": "What is 1+2?", "answer": "3"}})` asks a given question.

    ## Version History
    - v0: first version.
    """

    # The chance rates bound the share of the commonest answer in either split (1.6%, 0.8%, 1.6%, 1.1%), and how often
    # one rule for the numbers of any question (their sum, median, greatest common divisor; the first times the second)
    # is right: 5.3%, 0.5%, 1.5%, 1.2%. For other data the share of the commonest answer is counted.
    difficulties = {
        "easy": Difficulty("fractions, equations, divisors, means", chance_rate=0.06, n_problems=4_467),
        "medium": Difficulty("roots, intervals, derivatives, series", chance_rate=0.012, n_problems=3_788),
        "hard": Difficulty("integrals, remainders, logarithms", chance_rate=0.02, n_problems=3_891),
        "expert": Difficulty(
            "six at once: towers of powers, long recurrences, counting",
            chance_rate=0.001,
            settings={"at_once": 6},
            expected_hard="The sum of six results is asked for, each of which takes an idea and some fifty steps "
            "without a calculator; at one wrong result in nine, 49% of the sums are right.",
        ),
    }
    default_difficulty = "easy"
    problem_fields = {"question": str, "answer": str}
    blocking = True  # formulas are compared in a worker process
    instructions = (
        "Solve the problem. The answer is only the result, worked out and in lowest terms, in LaTeX or plain text."
    )
    answer_example = r"\frac{17}{23}"

    def __init__(
        self,
        split: str = "train",
        difficulty: str | None = None,
        render_mode: str | None = None,
        data: str | Iterable[Mapping[str, Any]] | None = None,
        subset: str | None = None,
        data_split: str = "train",
        question: str = "question",
        answer: str = "answer",
        divide: bool = True,
        answer_form: str | None = None,
    ) -> None:
        super().__init__(split, difficulty, render_mode, answer_form)
        if importlib.util.find_spec("math_verify") is None:
            raise MissingExtraError("DatasetMathEnv compares by math-verify: pip install 'llm-envs[tools]'.")
        if data is None:
            rows = make_problems(self.difficulty)
        else:
            if difficulty is not None:
                raise InvalidConfigError(
                    f"DatasetMathEnv: difficulty={difficulty!r} is of the default data, not of others."
                )
            rows = _load(data, subset, data_split, question, answer)
            self.difficulty = "data"
            self.n_problems = len({asked for asked, _ in rows})
        self.disjoint_splits = divide
        self._rows = [row for row in rows if not divide or split_of(_key(row[0])) == split]
        if not self._rows:
            raise InvalidConfigError(
                f"DatasetMathEnv: of {len(rows)} questions none is in the split {split!r}; "
                "divide=False has all of them in both."
            )
        if data is not None:
            self.chance_rate = max(Counter(right for _, right in self._rows).values()) / len(self._rows)

    def generate(self) -> dict[str, Any]:
        """Draw a row of the split, or several at once: then the sum of their results is asked for."""
        at_once = self.settings.get("at_once", 1) if self.difficulty != "data" else 1
        if at_once > 1:
            rows = [row for row in self._rows if _WHOLE.fullmatch(row[1])]
            drawn = sample(self.np_random.random, rows, at_once)
            lines = [f"{i}. {question}" for i, (question, _) in enumerate(drawn, 1)]
            question = "\n".join([_SUM_OF_ALL, *lines])
            return {"question": question, "answer": str(sum(int(answer) for _, answer in drawn))}
        question, answer = pick(self.np_random.random, self._rows)
        return {"question": question, "answer": answer}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a problem without a question, or without an answer that can be given."""
        if not problem["question"].strip() or not 0 < len(problem["answer"].strip()) <= _LONGEST:
            raise InvalidActionError(f"there must be a question, and an answer of 1 to {_LONGEST} characters")

    def split_key(self, problem: Mapping[str, Any]) -> str:
        """Return the question, white space aside; of several at once the first, since all are of its split."""
        question = str(problem["question"])
        first = question.split("\n")[1].removeprefix("1. ") if question.startswith(_SUM_OF_ALL) else question
        return _key(first)

    def begin(self) -> None:
        """Have the comparison ready by the time that the agent answers."""
        prepare_comparison(self.problem["answer"])

    def prompt(self) -> str:
        """Return the question."""
        return str(self.problem["question"])

    def solution(self) -> str:
        """Return the answer."""
        return str(self.problem["answer"])

    def is_correct(self, answer: str) -> bool:
        """Compare the values."""
        return has_value(answer, self.problem["answer"], self.problem["question"])


def has_value(answer: str, target: str, question: str = "", *, lowest_terms: bool = True) -> bool:
    r"""Return whether an answer has the value of the right one.

    Args:
        answer: The answer.
        target: The right one.
        question: The problem: where it asks for percent or degrees, an answer may have the sign; where it names the
            base, an answer may leave it out.
        lowest_terms: Whether `\frac{6}{8}` and `10^4` are not worked out.

    Raises:
        InvalidActionError: If the answer is a sentence, or denied.
    """
    if _DENIAL.search(answer) and not _DENIAL.search(target):  # as a formula, "not 0" is n·o·t·0
        raise InvalidActionError("the answer is denied; give only the result")
    if len(answer) > _LONGEST:
        return False
    text = as_latex(answer)
    for asked, sign in _ASKED_UNITS:
        text = sign.sub("", text) if asked.search(question) and not sign.search(target) else text
    if _BASE.search(question) and (based := based_number(target)) is not None and text.isalnum():
        text = f"{text}_{based[1]}"
    match = partial(math_match, target=target, lowest_terms=lowest_terms)
    if answer.split() == target.split() or match(text) == 1.0:
        return True
    if is_sentence(answer):
        raise InvalidActionError("the answer has the words of a sentence; give only the result")
    bare = without_unit(text) if _UNIT.search(text) and not _PERCENT.search(text) else text
    return bare != text and parse_number(target) is not None and match(bare) == 1.0


def final_answer(text: str) -> str:
    r"""Return what counts of a worked answer: what follows the last "####", or the last `\boxed{...}`, or all of it."""
    _, marker, after = text.rpartition(_MARKER)
    if marker:
        return after.strip()
    boxed = extract_boxed(text)
    return text.strip() if boxed is None else boxed


def _key(question: str) -> str:
    return " ".join(question.split())


def _load(data: Any, subset: str | None, data_split: str, question: str, answer: str) -> tuple[tuple[str, str], ...]:
    """Return the questions of some data with their answers; those of a name or path are kept for the next instance."""
    if isinstance(data, (str, Path)):
        path = Path(data)
        changed = path.stat().st_mtime_ns if path.is_file() else 0
        return _load_named(str(data), subset, data_split, question, answer, changed)
    return _rows_of(data, question, answer)


@lru_cache(maxsize=8)
def _load_named(
    name: str, subset: str | None, data_split: str, question: str, answer: str, changed: int
) -> tuple[tuple[str, str], ...]:
    if name.endswith(FILES):
        return _rows_of(name, question, answer)
    return _rows_of(load_data_set(name, subset, data_split), question, answer)


def _rows_of(data: Any, question: str, answer: str) -> tuple[tuple[str, str], ...]:
    found = []
    for number, row in enumerate(load_prompts(data, prompt_field=question, fields=[answer])):
        asked, right = row[PROMPT], row[answer]
        right = final_answer(right) if isinstance(right, str) else right
        if isinstance(right, bool) or not isinstance(right, (str, int, float)) or not isinstance(asked, str):
            raise InvalidConfigError(f"row {number} has the answer {right!r:.60}; question and answer must be texts.")
        right = str(right)
        if not 0 < len(right) <= _LONGEST:
            raise InvalidConfigError(
                f"row {number} has an answer of {len(right)} characters; it must have 1 to {_LONGEST}."
            )
        found.append((asked, right))
    return tuple(found)
