"""`llm/MMLU-v0` and `llm/GPQA-v0`: questions with four choices, asked and read as in OpenAI's simple-evals."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from llm_envs.env import Difficulty
from llm_envs.errors import InvalidActionError, InvalidConfigError
from llm_envs.parsers import ParsedReply, is_doubtful
from llm_envs.parsers.answers import split_thinking
from llm_envs.tasks.benchmarks.generous import read_letter
from llm_envs.tasks.benchmarks.published import Layout, PublishedEnv, require_texts
from llm_envs.tasks.draws import Random, shuffled

__all__ = ["GPQAEnv", "MMLUEnv"]

LETTERS = "ABCD"
_TEMPLATE = """\
Answer the following multiple choice question. The last line of your response should be of the following format: \
'Answer: $LETTER' (without quotes) where LETTER is one of ABCD. Think step by step before answering.

{question}

A) {0}
B) {1}
C) {2}
D) {3}"""
_LINE = re.compile(r"answer[ \t]*:[ \t]*([^\n]*)", re.IGNORECASE)
_DECORATION = re.compile(r"\*\*|\$|\\(?:boxed|text|mathrm|mathbf)(?=\{)|[{}]|\\[()]")
_LETTER = re.compile(r"([A-D])\b[.:)]?[ \t]*(.*)")
_OTHER_LETTER = re.compile(r"\b[A-D]\b(?!['\u2019])")


class _FourChoices(PublishedEnv):
    """Base of the two."""

    problem_fields = {"question": str, "choices": list, "answer": str}
    answer_template = "Answer: ..."

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a problem without four choices, or whose answer is not one of their letters."""
        choices = problem["choices"]
        if not problem["question"].strip() or len(choices) != 4 or not all(isinstance(c, str) for c in choices):
            raise InvalidActionError("there must be a question, and four choices that are texts")
        if len(problem["answer"]) != 1 or problem["answer"] not in LETTERS:
            raise InvalidActionError("the answer must be A, B, C or D")

    def checked(self, problem: dict[str, Any]) -> dict[str, Any]:
        """Return a problem of the data.

        Raises:
            InvalidConfigError: If it is wrong.
        """
        require_texts(problem, "question")
        try:
            self.check_problem(problem)
        except InvalidActionError as error:
            raise InvalidConfigError(f"{problem!r:.300}: {error}.") from error
        return problem

    def split_key(self, problem: Mapping[str, Any]) -> Any:
        """Return the question with its choices, in whatever order."""
        return [problem["question"], sorted(problem["choices"])]

    def parse_reply(self, text: str) -> ParsedReply:
        """Read the letters behind "Answer:"."""
        reply = split_thinking(text)
        found = {letter for line in _LINE.findall(reply.content) if (letter := _letter_of(line)) is not None}
        if reply.problems or not found:
            return reply
        if len(found) > 1 or "" in found:
            return reply._replace(problems=("there are two answers, or one that is denied; give one letter",))
        return reply._replace(answer=found.pop())

    def read_generously(self, text: str) -> str:
        """Read the letter in any of the forms that models use."""
        return read_letter(text, self.problem["choices"])

    def prompt(self) -> str:
        """Return the question and its choices, in the words of simple-evals."""
        return _TEMPLATE.format(*self.problem["choices"], question=self.problem["question"])

    def solution(self) -> str:
        """Return the letter."""
        return str(self.problem["answer"])

    def is_correct(self, answer: str) -> bool:
        """Compare the letters."""
        return answer == self.problem["answer"]


class MMLUEnv(_FourChoices):
    """MMLU: multiple choice about 57 subjects, from school to professional examinations.

    ## Description
    One question of MMLU (Hendrycks et al., arXiv 2009.03300) in each episode, with its four choices in the published
    order. The data are yours to name. Teaches to answer questions of many subjects by reasoning.

    ## Observation
    The question and the choices, in the words of simple-evals. After the reply "Correct.", "Incorrect." or what was
    malformed.

    ## Action
    Reasoning, then a line `Answer: B`. `**Answer: B**`, `Answer: B)`, and `Answer: B` with the choice's text behind it
    are read too. Thinking in `<think>...</think>` is not read.

    ## Reward
    `correct` (weight 1): 1 for the published letter, where simple-evals reads it. Departures: the letter must be a word
    (simple-evals reads "Answer: Because" as B), and a reply with two letters, one that hedges ("A or B") or that denies
    its answer is malformed (simple-evals takes the first letter). `malformed` (weight -0.1): 1 for these, for a reply
    without an answer, and for broken tags.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train" (published as `auxiliary_train`, questions of other examinations) or "test" (14,042).
    - `difficulty`: "published".
    - `data`: "cais/mmlu", or a file with the fields `question`, `choices` (four texts) and `answer` (0 to 3, or a
      letter), or rows. "{split}" in a path is replaced by the split.
    - `subset`: configuration of the data set: "all" by default, or a subject such as "anatomy", which has no train
      split.
    - `form`: "official" (default), as above; or "generous", for training: `(B)`, `b`, the letter on the next
      line or in a box, and with a reason behind it are read too, and a hedge is malformed.
    - `reset(options={"problem": {"question": "What is 1+2?", "choices": ["1", "2", "3", "4"], "answer": "C"}})` asks a
      given question.

    ## Version History
    - v0: first version.
    """

    difficulties = {"published": Difficulty("the rows as published", chance_rate=0.3)}  # 27% of the test are D
    layout = Layout(
        hub="cais/mmlu",
        subset="all",
        splits={"train": "auxiliary_train", "test": "test"},
        fields={"question": ("question",), "choices": ("choices",), "answer": ("answer",)},
        sample="mmlu",
    )

    def to_problem(self, fields: Mapping[str, Any], random: Random) -> dict[str, Any]:
        """Write the answer as a letter."""
        answer = fields["answer"]
        if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(LETTERS):
            answer = LETTERS[answer]
        choices = fields["choices"]
        if not isinstance(answer, str) or not isinstance(choices, list):
            raise InvalidConfigError(
                f"answer is {answer!r:.60}, choices {choices!r:.60}: choices must be a list, and answer a "
                "letter or a place in it, from 0."
            )
        return self.checked({"question": fields["question"], "choices": choices, "answer": answer})


class GPQAEnv(_FourChoices):
    """GPQA: multiple choice about biology, physics and chemistry that experts wrote and searches do not answer.

    ## Description
    One question of GPQA (Rein et al., arXiv 2311.12022) in each episode. The published rows name the right choice
    first; the seed of the episode decides the order, as in simple-evals. The data are yours to name; on the hub their
    terms must be accepted first. They are for tests only. Measures knowledge and reasoning of graduates; teaches
    nothing, because it has only a test split.

    ## Observation
    The question and the choices, in the words of simple-evals. After the reply "Correct.", "Incorrect." or what was
    malformed.

    ## Action
    Reasoning, then a line `Answer: B`, as in `llm/MMLU-v0`.

    ## Reward
    `correct` and `malformed` as in `llm/MMLU-v0`.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "test", the only one.
    - `difficulty`: "published".
    - `data`: "Idavidrein/gpqa", or a file with the fields `Question`, `Correct Answer` and `Incorrect Answer 1` to
      `Incorrect Answer 3`, such as the published CSV files, or rows.
    - `subset`: configuration of the data set: "gpqa_diamond" (198 questions) by default, "gpqa_main", "gpqa_extended".
    - `form`: as in `llm/MMLU-v0`.
    - `reset(options={"problem": {"question": "What is 1+2?", "choices": ["1", "2", "3", "4"], "answer": "C"}})` asks a
      given question.

    ## Version History
    - v0: first version.
    """

    difficulties = {"published": Difficulty("the rows as published, choices in random order", chance_rate=0.25)}
    splits = ("test",)
    layout = Layout(
        hub="Idavidrein/gpqa",
        subset="gpqa_diamond",
        splits={"test": "train"},  # the only split on the hub
        fields={
            "question": ("Question",),
            "right": ("Correct Answer",),
            **{f"wrong {i}": (f"Incorrect Answer {i}",) for i in (1, 2, 3)},
        },
        sample="gpqa",
    )

    def to_problem(self, fields: Mapping[str, Any], random: Random) -> dict[str, Any]:
        """Shuffle the choices."""
        require_texts(fields, *fields)
        question, *choices = (str(text).strip() for text in fields.values())
        order = shuffled(random, range(4))
        return self.checked(
            {"question": question, "choices": [choices[i] for i in order], "answer": LETTERS[order.index(0)]}
        )


def _letter_of(line: str) -> str | None:
    """Return the letter of a line behind "Answer:"; "" if it hedges or denies, None without a letter."""
    plain = _DECORATION.sub("", line).strip()
    if (match := _LETTER.match(plain)) is None:
        return None
    letter, rest = match.groups()
    return "" if is_doubtful(rest) or _OTHER_LETTER.search(rest) else letter
