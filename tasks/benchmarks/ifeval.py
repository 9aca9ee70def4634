"""`llm/IFEval-v0`: write a text under instructions that a program can verify, judged by IFEval's own checkers."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from llm_envs.env import Difficulty, Outcome, SingleTurnEnv
from llm_envs.errors import InvalidActionError, InvalidConfigError, MissingExtraError
from llm_envs.parsers import ParsedReply
from llm_envs.processes import Shared
from llm_envs.sandbox.scorer import BoundedScorer
from llm_envs.sources.prompts import load_prompts
from llm_envs.spaces import MAX_TEXT_LENGTH
from llm_envs.tasks.benchmarks.ifeval_instructions import (
    INSTRUCTIONS,
    LANGUAGES,
    check_arguments,
    excludes,
    is_easily_followed,
)
from llm_envs.tasks.benchmarks.ifeval_writer import write
from llm_envs.tasks.data.loading import load_data_set
from llm_envs.tasks.draws import between, pick, shuffled

__all__ = ["IFEvalEnv"]

_NEEDS = ("if_verifiable", "nltk", "langdetect")
_scorer = Shared(lambda: BoundedScorer(Path(__file__).with_name("ifeval_scorer.py")))
_TIMEOUT_S = 3.0
"""Seconds for one reply; usual are 0.001 to 0.02."""
_KINDS = ("a letter", "an essay", "a story", "a speech", "a blog post", "an advertisement", "an e-mail", "a review")
_TOPICS = (
    *("a train journey", "a lost key", "the first day at school", "a new bakery", "learning to swim", "the night sky"),
    *("an old bicycle", "a garden in spring", "a football match", "moving to another town", "a broken phone", "tea"),
    *("a family dinner", "the value of sleep", "a mountain hike", "a museum visit", "a pet turtle", "winter clothes"),
)


class IFEvalEnv(SingleTurnEnv):
    """Write a text under instructions that a program can verify, judged by IFEval's own checkers.

    ## Description
    The benchmark IFEval (Zhou et al. 2023, arXiv:2311.07911): each prompt asks for a text, under one to three of 25
    kinds of instruction about its length, words, form, case or language. The checkers are Google's, of the package
    `if-verifiable`. `data` names the benchmark's prompts. Without it, and in the train split, prompts are made of the
    same 25 kinds, so that training does not touch the benchmark. Only the instructions are checked, as in the
    benchmark, not whether the text fits the topic. Teaches to keep constraints in mind while writing.

    ## Observation
    The prompt. After the reply the instructions that were not followed.

    ## Action
    The whole reply is the text, as the benchmark has it: no answer tags. Text before `</think>` does not count.

    ## Reward
    `correct` (weight 1): 1 if every instruction is followed ("prompt-level accuracy", strict). `instructions` (weight
    0): the share of those followed ("instruction-level"). A text that the checkers cannot judge in time follows none.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train": prompts made here, or those of `train_data`. "test": those of `data`.
    - `difficulty`: of prompts made here: "easy" (default): one instruction; "medium": two; "hard": three;
      "expert": eight.
    - `data`: the prompts of the test split: "google/IFEval" or another data set that `datasets` loads, the path of a
      JSONL file, or rows, with the columns `prompt`, `instruction_id_list` and `kwargs`. None: made here.
      Their oracle follows what it can: it has no answer key.
    - `train_data`: the same for the train split.
    - `loose`: True to judge by the benchmark's loose accuracy: also without the first line, the last line or asterisks.
    - `reset(options={"problem": {"prompt": "Write. Do not use commas.", "instruction_id_list":
      ["punctuation:no_comma"], "kwargs": [{}]}})` gives a prompt.

    ## Version History
    - v0: first version.
    """

    # Bounds on how often one text with everything that a prompt may ask for follows all instructions: measured 47%,
    # 28%, 17% and 1.3%; the oracle's texts for other prompts win 10%, 7%, 3% and 0%.
    difficulties = {
        "easy": Difficulty("one instruction", chance_rate=0.5, settings={"n": 1}),
        "medium": Difficulty("two instructions", chance_rate=0.3, settings={"n": 2}),
        "hard": Difficulty("three instructions", chance_rate=0.18, settings={"n": 3}),
        "expert": Difficulty(
            "eight instructions",
            chance_rate=0.02,
            settings={"n": 8},
            expected_hard="Eight instructions must all be followed; the best models follow 92% of IFEval's, and at 92% "
            "each, 51% of the prompts are met.",
        ),
    }
    default_difficulty = "easy"
    problem_fields = {"prompt": str, "instruction_id_list": list, "kwargs": list}
    reward_weights = {"correct": 1.0, "instructions": 0.0}
    blocking = True  # the checkers run in a child process
    has_natural_form = False
    clause_reasons = {
        "is_not_won_by_meaningless_text": "the benchmark judges only the form of a text, by its own checkers"
    }

    def __init__(
        self,
        split: str = "train",
        difficulty: str | None = None,
        render_mode: str | None = None,
        data: str | Path | Iterable[Mapping[str, Any]] | None = None,
        train_data: str | Path | Iterable[Mapping[str, Any]] | None = None,
        loose: bool = False,
    ) -> None:
        super().__init__(split, difficulty, render_mode)
        missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
        if missing:
            raise MissingExtraError(f"llm/IFEval-v0 needs {', '.join(missing)}: pip install 'llm-envs[benchmarks]'.")
        self.loose = loose
        given = data if split == "test" else train_data
        self._rows = None if given is None else _load(given)
        if self._rows is not None:
            self.difficulty, self.disjoint_splits, self.n_problems = "data", False, len(self._rows)
            self.chance_rate = self.difficulties["easy"].chance_rate
            self.oracle_is_exact = False  # type: ignore[misc]  # there is an oracle, but no answer key

    def problems(self, seed: int = 0) -> Iterator[dict[str, Any]]:
        """Yield each row of the data, in order.

        Raises:
            InvalidConfigError: If prompts are made here.
        """
        if self._rows is None:
            raise InvalidConfigError("IFEvalEnv: prompts are made here, without end; give data, such as google/IFEval.")
        return (dict(row) for row in self._rows)

    def generate(self) -> dict[str, Any]:
        """Draw a prompt of the data, or make one."""
        random = self.np_random.random
        if self._rows is not None:
            return dict(pick(random, self._rows))
        while True:
            names: list[str] = []
            for name in shuffled(random, list(INSTRUCTIONS)):
                if len(names) < self.settings["n"] and not any(excludes(name, other) for other in names):
                    names.append(name)
            kwargs = [INSTRUCTIONS[name].draw(random) for name in names]
            if len(names) == self.settings["n"] and not all(map(is_easily_followed, names, kwargs)):
                return {"prompt": _prompt(random, names, kwargs), "instruction_id_list": names, "kwargs": kwargs}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a problem without a prompt, or with instructions that do not exist."""
        _checked_row(problem)

    def prompt(self) -> str:
        """Return the prompt."""
        return str(self.problem["prompt"])

    def parse_reply(self, text: str) -> ParsedReply:
        """Take the whole reply as the text."""
        return ParsedReply(None, text, (), text, ())

    def play(self, action: str) -> Outcome:
        """Check the instructions."""
        names = self.problem["instruction_id_list"]
        follows = self._follows(action)
        is_correct = bool(follows) and all(follows)
        components = {"correct": float(is_correct), "instructions": sum(follows) / len(names)}
        missed = [name for name, ok in zip(names, follows or [False] * len(names), strict=True) if not ok]
        return Outcome(f"Not followed: {', '.join(missed)}." if missed else "Correct.", components, True, is_correct)

    def _follows(self, text: str) -> list[bool]:
        """Return which instructions are followed; nothing if that cannot be told."""
        if len(text) > MAX_TEXT_LENGTH:
            return []
        found = _scorer().ask({**self.problem, "response": text}, _TIMEOUT_S)
        return [] if found is None else found["loose" if self.loose else "strict"]

    def solution(self) -> str:
        """Return a text that follows the instructions, on no topic."""
        return write(self.problem["instruction_id_list"], self.problem["kwargs"])

    def next_action(self) -> str:
        """Return that text."""
        return self.solution()


def _prompt(random: Any, names: list[str], kwargs: list[dict[str, Any]]) -> str:
    lines = [f"Write {pick(random, _KINDS)} about {pick(random, _TOPICS)}."]
    for name, given in zip(names, kwargs, strict=True):
        said = {key: ", ".join(value) if isinstance(value, list) else value for key, value in given.items()}
        if "language" in said:
            said["language"] = LANGUAGES[said["language"]]
        lines.append(INSTRUCTIONS[name].say.format(**said))
    return " ".join(lines) if between(random, 0, 1) else "\n".join(lines)


def _checked_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a row that are played.

    Raises:
        InvalidActionError: If a column is missing or wrong.
    """
    prompt, names, kwargs = (row.get(name) for name in IFEvalEnv.problem_fields)
    if not isinstance(prompt, str) or not prompt.strip():
        raise InvalidActionError(f"prompt is {prompt!r:.80}; it must be a text")
    if not isinstance(names, list) or not isinstance(kwargs, list) or len(names) != len(kwargs) or not names:
        raise InvalidActionError("instruction_id_list and kwargs must be lists of one length, at least 1")
    given = [check_arguments(*each) for each in zip(names, kwargs, strict=True)]
    return {"prompt": prompt, "instruction_id_list": names, "kwargs": given}


def _load(data: str | Path | Iterable[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    if isinstance(data, (str, Path)):
        return _load_named(str(data), Path(data).stat().st_mtime_ns if Path(data).is_file() else 0)
    return _checked_rows(data)


@lru_cache(maxsize=4)
def _load_named(name: str, changed: int) -> tuple[dict[str, Any], ...]:
    if name.endswith((".jsonl", ".parquet")):
        return _checked_rows(name)
    return _checked_rows(load_data_set(name, None, "train"))  # the hub's only split


def _checked_rows(data: Any) -> tuple[dict[str, Any], ...]:
    rows = []
    for number, row in enumerate(load_prompts(data)):
        try:
            rows.append(_checked_row(row))
        except InvalidActionError as refusal:
            raise InvalidConfigError(f"IFEvalEnv: row {number} of the data: {refusal}.") from refusal
    return tuple(rows)
