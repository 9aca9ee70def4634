r"""`llm/GSM8K-v0`, `llm/MATH500-v0`, `llm/AIME-v0`: mathematics with worked answers, in the form of each benchmark."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from llm_envs.errors import InvalidActionError, InvalidConfigError
from llm_envs.mathematics.decisions import bare_number
from llm_envs.parsers import ParsedReply, extract_boxed, parse_boxed
from llm_envs.parsers.answers import split_thinking
from llm_envs.rewards import numeric_match
from llm_envs.tasks.benchmarks.generous import read_number
from llm_envs.tasks.benchmarks.published import Layout, PublishedEnv, require_texts
from llm_envs.tasks.data.dataset_math import has_value
from llm_envs.tasks.draws import Random

__all__ = ["AIMEEnv", "GSM8KEnv", "MATH500Env"]

_MARKED = re.compile(r"#### (\-?[0-9\.\,]+)")
_AIME = re.compile(r"[0-9]{1,3}")
_STEPS = "Let's think step by step and output the final answer"


class GSM8KEnv(PublishedEnv):
    """GSM8K: grade school mathematics in words; the answer is the number after `####`.

    ## Description
    One question of GSM8K (Cobbe et al., arXiv 2110.14168) in each episode: two to eight steps of arithmetic, a whole
    number as the result. The data are yours to name. Teaches to work through a story step by step.

    ## Observation
    The question, and verl's request for steps and for the form of the answer, a bare number. After the reply
    "Correct.", "Incorrect." or what was malformed.

    ## Action
    The steps, then `#### 42`. Thinking in `<think>...</think>` is allowed before them, and is not read.

    ## Reward
    `correct` (weight 1): 1 if the text behind `####` is the published one, by the rule of the benchmark's repository:
    digits, full stops and commas are read, commas are dropped. Departures: a full stop at the end is dropped, and two
    different answers are malformed (the repository takes the first). `malformed` (weight -0.1): 1 for a reply without
    an answer, or with broken tags.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train" (7,473 questions) or "test" (1,319), as published.
    - `difficulty`: "published".
    - `data`: "openai/gsm8k", or a file with the fields `question` and `answer`, or rows. "{split}" in a path is
      replaced by the split.
    - `subset`: configuration of the data set; "main" by default.
    - `form`: "official" (default), as above; or "generous", for training: `#### $18`, `#### **18**`, `####18`,
      `#### 18.00`, a unit, a box and "The answer is 18." are read too, and a hedge is malformed.
    - `reset(options={"problem": {"question": "What is 1+2?", "answer": "3"}})` asks a given question.

    ## Version History
    - v0: first version.
    """

    layout = Layout(
        hub="openai/gsm8k",
        subset="main",
        splits={"train": "train", "test": "test"},
        fields={"question": ("question",), "answer": ("answer",)},
        sample="gsm8k",
    )
    problem_fields = {"question": str, "answer": str}
    read_generously = staticmethod(read_number)
    answer_template = "#### ..."

    def to_problem(self, fields: Mapping[str, Any], random: Random) -> dict[str, Any]:
        """Take the number that the worked answer ends with."""
        require_texts(fields, "question", "answer")
        if (found := _MARKED.search(fields["answer"])) is None:
            raise InvalidConfigError(f'the answer {fields["answer"][-60:]!r} lacks "#### " with a number.')
        self._worked = fields["question"], fields["answer"]
        return {"question": fields["question"], "answer": _unmarked(found[1])}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a problem without a question, or whose answer cannot be written in the form."""
        if not problem["question"].strip() or _MARKED.fullmatch(f"#### {problem['answer']}") is None:
            raise InvalidActionError("there must be a question, and an answer of digits, full stops and commas")

    def parse_reply(self, text: str) -> ParsedReply:
        """Read what stands behind `####`."""
        reply = split_thinking(text)
        found = {_unmarked(marked) for marked in _MARKED.findall(reply.content)}
        if reply.problems or not found:
            return reply
        if len(found) > 1:
            return reply._replace(problems=("there are two answers; give one",))
        return reply._replace(answer=found.pop())

    def prompt(self) -> str:
        """Return the question, and how to answer."""
        return f'{self.problem["question"]} {_STEPS} after "####", as a bare number.'

    def solution(self) -> str:
        """Return the number."""
        return str(self.problem["answer"])

    def worked_answer(self) -> str:
        """Return the published steps of the row drawn last, for `FewShot`; of another problem, the number."""
        question, steps = self._worked
        return steps if question == self.problem["question"] else self.oracle()

    def is_correct(self, answer: str) -> bool:
        """Compare the texts; in the generous form the numbers."""
        right = _unmarked(self.problem["answer"])
        return answer == right or (self.form == "generous" and numeric_match(answer, right) == 1.0)


class _BoxedEnv(PublishedEnv):
    r"""Base of the two whose answers are in `\boxed{}`."""

    problem_fields = {"question": str, "answer": str}
    answer_template = r"\boxed{...}"
    parse_reply = staticmethod(parse_boxed)

    def to_problem(self, fields: Mapping[str, Any], random: Random) -> dict[str, Any]:
        r"""Take the answer, or what its `\boxed{}` has."""
        answer = fields["answer"]
        if isinstance(answer, str):
            boxed = extract_boxed(answer)
            answer = answer if boxed is None else boxed
        problem = {"question": fields["question"], "answer": str(answer).strip()}
        require_texts(problem, "question", "answer")
        try:
            self.check_problem(problem)
        except InvalidActionError as error:
            raise InvalidConfigError(f"the answer is {problem['answer']!r:.80}: {error}.") from error
        return problem

    def prompt(self) -> str:
        """Return the question, and how to answer."""
        return f"{self.problem['question']} {_STEPS} within \\boxed{{}}."

    def solution(self) -> str:
        """Return the answer."""
        return str(self.problem["answer"])


class MATH500Env(_BoxedEnv):
    r"""MATH-500: competition mathematics; the answer is in `\boxed{}` and compared by value.

    ## Description
    One of the 500 problems of the test set of MATH (Hendrycks et al., arXiv 2103.03874) that PRM800K holds out
    (Lightman et al., arXiv 2305.20050), in each episode. The data are yours to name. They are for tests only: train on
    other mathematics. Measures competition mathematics; teaches nothing, because it has only a test split.

    ## Observation
    The problem, and verl's request for steps and for the form of the answer. After the reply "Correct.", "Incorrect."
    or what was malformed.

    ## Action
    The steps, then `\boxed{\frac{3}{4}}`. Thinking in `<think>...</think>` is allowed before them, and is not read.

    ## Reward
    `correct` (weight 1): 1 if the box has the value of the published answer, as in `llm/DatasetMath-v0`: by
    math-verify, behind rules for units, lists, and answers that are not worked out. `malformed` (weight -0.1): 1 for a
    reply without a box, with two that differ, or with broken tags.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "test", the only one.
    - `difficulty`: "published".
    - `data`: "HuggingFaceH4/MATH-500", or a file with the fields `problem` and `answer`, or rows.
    - `subset`: configuration of the data set; there is one.
    - `reset(options={"problem": {"question": "What is 1+2?", "answer": "3"}})` asks a given question.

    ## Version History
    - v0: first version.
    """

    splits = ("test",)
    layout = Layout(
        hub="HuggingFaceH4/MATH-500",
        subset=None,
        splits={"test": "test"},
        fields={"question": ("problem",), "answer": ("answer",)},
        sample="math500",
    )
    blocking = True  # formulas are compared in a worker process
    needs = {"math_verify": "tools"}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a problem without a question or an answer."""
        if not problem["question"].strip() or not problem["answer"].strip():
            raise InvalidActionError("there must be a question and an answer")

    def is_correct(self, answer: str) -> bool:
        """Compare the values."""
        return has_value(answer, self.problem["answer"], self.problem["question"], lowest_terms=False)


class AIMEEnv(_BoxedEnv):
    r"""AIME: problems of the American Invitational Mathematics Examination; a whole number from 0 to 999.

    ## Description
    One problem of a year of AIME in each episode, 30 a year. The data are yours to name. They are for tests only: train
    on other mathematics. Measures hard competition mathematics; teaches nothing, because it has only a test split.

    ## Observation
    The problem, and verl's request for steps and for the form of the answer. After the reply "Correct.", "Incorrect."
    or what was malformed.

    ## Action
    The steps, then `\boxed{204}`. Thinking in `<think>...</think>` is allowed before them, and is not read.

    ## Reward
    `correct` (weight 1): 1 if the box has the published number; zeros before it do not matter. `malformed` (weight
    -0.1): 1 for a reply without a box, with two that differ, with anything in it but one to three digits, or with
    broken tags.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "test", the only one.
    - `difficulty`: "published".
    - `data`: "Maxwell-Jia/AIME_2024", or another in its layout or in that of "math-ai/aime25", or a file with the
      fields `Problem` and `Answer`, `problem` and `answer`, or `problem` and `solution` with the answer in a box; or
      rows.
    - `subset`: configuration of the data set; there is one.
    - `reset(options={"problem": {"question": "What is 1+2?", "answer": "3"}})` asks a given question.

    ## Version History
    - v0: first version.
    """

    splits = ("test",)
    layout = Layout(
        hub="Maxwell-Jia/AIME_2024",
        subset=None,
        splits={"test": "train"},  # the only split on the hub
        fields={"question": ("Problem", "problem", "question"), "answer": ("Answer", "answer", "solution")},
        sample="aime",
    )

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a problem without a question, or with an answer that AIME cannot have."""
        if not problem["question"].strip() or _AIME.fullmatch(problem["answer"]) is None:
            raise InvalidActionError("there must be a question, and an answer of one to three digits")

    def is_correct(self, answer: str) -> bool:
        """Compare the numbers."""
        number = bare_number(answer)
        if _AIME.fullmatch(number) is None:
            raise InvalidActionError("the answer is not a whole number from 0 to 999")
        return int(number) == int(self.problem["answer"])


def _unmarked(number: str) -> str:
    """Return a number in the repository's normal form."""
    return number.replace(",", "").removesuffix(".")
