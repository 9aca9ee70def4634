"""`llm/HotpotQA-v0`: questions over two articles of Wikipedia, from memory or by searching the given passages."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from llm_envs.env import Difficulty, ToolEnv
from llm_envs.errors import InvalidActionError, InvalidConfigError
from llm_envs.parsers import ParsedReply, format_tool_call
from llm_envs.problems import Outcome
from llm_envs.tasks.benchmarks.generous import GenerousForm, read_span, span_readings
from llm_envs.tasks.benchmarks.published import Layout, PublishedData, require_texts
from llm_envs.tasks.draws import Random
from llm_envs.tasks.tools.bm25 import Bm25
from llm_envs.tools.toolset import Toolset, tool
from llm_envs.types import ToolResult

__all__ = ["HotpotQAEnv", "f1_score", "normal_answer"]

_N_FOUND = 3
"""Passages that a search shows, as in Search-R1."""
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CLOSED = ("yes", "no", "noanswer")


class Passages(Toolset):
    """The passages of a question, which can be searched. The index is made with the first search."""

    def reset(self, problem: Mapping[str, Any], rng: np.random.Generator) -> None:
        """Take the problem's passages."""
        self.passages: list[list[str]] = problem["passages"]
        self.was_asked = False
        self._index: Bm25 | None = None

    @tool
    def search(self, query: str) -> str:
        """Search the passages by words. Returns the three best, with their titles.

        Args:
            query: Words to look for.
        """
        self.was_asked = True
        if self._index is None:
            self._index = Bm25([f"{title} {text}" for title, text in self.passages])
        found = [self.passages[i] for i, _ in self._index.search(query, _N_FOUND)]
        lines = [f'Doc {number} (Title: "{title}") {text}' for number, (title, text) in enumerate(found, 1)]
        return "\n".join(lines) or "No passage has any of these words."


class HotpotQAEnv(PublishedData, GenerousForm, ToolEnv):
    """HotpotQA: questions that need two articles of Wikipedia; the answer is a name, a date, yes or no.

    ## Description
    One question of HotpotQA (Yang et al., arXiv 1809.09600) in each episode. At the level "closed" it has no tools;
    at the level "search" the tool `search(query)` finds the three best of the passages that the row has (BM25), as
    Search-R1 (arXiv 2503.09516) does over Wikipedia. The data are yours to name. Teaches to answer from memory, or to
    search step by step.

    ## Observation
    First the question, then what the searches find, then "Correct." or "Incorrect."; after a malformed reply a readable
    error.

    ## Action
    The answer, `<answer>Beijing</answer>`; at the level "search" also calls of `search`. Thinking in
    `<think>...</think>` is allowed.

    ## Reward
    `correct` (weight 1): 1 for an exact match by the benchmark's own script: lower case, without punctuation and
    articles. `f1` (weight 0, a metric): that script's F1 of the words. `malformed` (weight -0.1): 1 for a reply that is
    neither a call nor an answer, or is broken.

    ## Episode End
    Terminates with the first answer. Truncated after `max_turns` replies.

    ## Arguments
    - `split`: "train" (90,447 questions) or "test" (published as `validation`, 7,405; the test set has no answers).
    - `difficulty`: "closed" (default) or "search".
    - `max_turns`: 1 and 4 by default.
    - `data`: "hotpotqa/hotpot_qa", or a file with the fields `question`, `answer` and `context` (`{"title": [...],
      "sentences": [[...], ...]}`, or `[[title, [sentence, ...]], ...]` as in the benchmark's JSON), or rows. "{split}"
      in a path is replaced by the split.
    - `subset`: configuration of the data set: "distractor" by default, or "fullwiki".
    - `form`: "official" (default), as above; or "generous", for training: "The answer is Beijing." and
      a box are read too, with or without tags, and a reason behind the answer does not matter.
    - `reset(options={"problem": {"question": "...", "answer": "Beijing", "passages": [["title", "text"]]}})` asks a
      given question.

    ## Version History
    - v0: first version.
    """

    # Of the validation questions 6% are answered by yes or no, yes the more often.
    difficulties = {
        "closed": Difficulty("from memory", chance_rate=0.06, settings={"turns": 1}),
        "search": Difficulty("with a search over the passages of the row", chance_rate=0.06, settings={"turns": 4}),
    }
    default_difficulty = "closed"
    has_natural_form = False
    read_generously = staticmethod(read_span)
    plain_answer = staticmethod(str.strip)  # the script removes punctuation itself
    problem_fields = {"question": str, "answer": str, "passages": list}
    reward_weights = {"correct": 1.0, "f1": 0.0, "malformed": -0.1}
    instructions = "Answer the question with a name, a date, a number, yes or no, and with nothing else."
    answer_example = "Beijing"
    layout = Layout(
        hub="hotpotqa/hotpot_qa",
        subset="distractor",
        splits={"train": "train", "test": "validation"},
        fields={"question": ("question",), "answer": ("answer",), "context": ("context",)},
        sample="hotpot_qa",
    )

    def __init__(
        self,
        split: str | None = None,
        difficulty: str | None = None,
        max_turns: int | None = None,
        render_mode: str | None = None,
        data: str | Iterable[Mapping[str, Any]] | None = None,
        subset: str | None = None,
        form: str = "official",
    ) -> None:
        self._searches = difficulty == "search"
        super().__init__(self.splits[0] if split is None else split, difficulty, max_turns, render_mode)
        if max_turns is None:
            self.max_turns = self.settings["turns"]
        self.use_form(form)
        self.use_data(data, subset)

    def make_tools(self) -> Sequence[Toolset]:
        """Return the passages at the level "search"."""
        self.passages = Passages()
        return [self.passages] if self._searches else []

    def to_problem(self, fields: Mapping[str, Any], random: Random) -> dict[str, Any]:
        """Join the sentences of each passage."""
        require_texts(fields, "question", "answer")
        context = fields["context"]
        try:
            pairs = zip(context["title"], context["sentences"], strict=True) if isinstance(context, dict) else context
            passages = [[str(title), "".join(sentences).strip()] for title, sentences in pairs]
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidConfigError(
                f"context is {context!r:.80} ({error!r}); it must have titles and lists of sentences."
            ) from error
        return {"question": fields["question"], "answer": fields["answer"], "passages": passages}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a problem without a question, with an answer of nothing but articles, or with wrong passages."""
        if not problem["question"].strip() or not normal_answer(problem["answer"]):
            raise InvalidActionError("there must be a question, and an answer with a word in it")
        if not all(isinstance(p, list) and list(map(type, p)) == [str, str] for p in problem["passages"]):
            raise InvalidActionError("each passage must be [title, text]")

    def split_key(self, problem: Mapping[str, Any]) -> Any:
        """Return the question."""
        return problem["question"]

    def begin(self) -> None:
        """Forget the last answer."""
        self._f1 = 0.0

    def prompt(self) -> str:
        """Return the question."""
        return str(self.problem["question"])

    def is_correct(self, answer: str) -> bool:
        """Compare as the benchmark's script does; in the generous form each reading of the answer."""
        if not normal_answer(answer):
            raise InvalidActionError("the answer has no word")
        readings, right = [answer], self.problem["answer"]
        if self.form == "generous":
            if answer.endswith("?") > right.endswith("?"):
                raise InvalidActionError("the answer is a question")
            readings = list(span_readings(answer))
        self._f1 = max(f1_score(reading, right) for reading in readings)
        return any(normal_answer(reading) == normal_answer(right) for reading in readings)

    def play(self, action: str) -> Outcome:
        """Play a turn; the only one at the level "closed"."""
        outcome = super().play(action)
        return outcome if self._searches else outcome._replace(terminated=True)

    def score(
        self, reply: ParsedReply, results: Sequence[ToolResult], *, correct: bool, malformed: bool
    ) -> dict[str, float]:
        """Add F1."""
        components = super().score(reply, results, correct=correct, malformed=malformed)
        return components | {"f1": 0.0 if malformed else self._f1}

    def next_action(self) -> str:
        """Search for the question at the level "search", then answer."""
        if self._searches and not self.passages.was_asked and self.n_turns + 1 < self.max_turns:
            return format_tool_call("search", query=self.problem["question"])
        return self.write_answer(self.problem["answer"])


def normal_answer(text: str) -> str:
    """Return an answer as the benchmark's script compares it: `normalize_answer` of `hotpot_evaluate_v1.py`."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def f1_score(answer: str, target: str) -> float:
    """Return F1 of the words, as the benchmark's script computes it; yes and no count only if they are the same."""
    said, right = normal_answer(answer), normal_answer(target)
    if said != right and (said in _CLOSED or right in _CLOSED):
        return 0.0
    n_common = (Counter(said.split()) & Counter(right.split())).total()
    if n_common == 0:
        return 0.0
    precision, recall = n_common / len(said.split()), n_common / len(right.split())
    return 2 * precision * recall / (precision + recall)
