"""reasoning-gym's data sets as environments: `gym.make("reasoning_gym/chain_sum-v0")`.

Problems and scores come from a child process with limits of time and memory (`reasoning_gym_scorer.py`), so nothing of
the package runs here. Departures from the package:

1. An item is made from a seed drawn by the episode's generator. The package takes item `i` of seed `s` from `s + i`, so
   adjacent seeds share all but one of their items.
2. Only full credit counts. The package also gives partial credit for wrong answers: 0.01 for any text, a third for one
   that contains the right one.
3. Scorers that give full credit to a fixed text which is not the answer are off (`FLAWED`).
4. Text that a scorer would evaluate is refused unless it is a literal, or arithmetic of known names.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llm_envs.bridges.ids import FLAWED, REASONING_GYM
from llm_envs.env import Difficulty, Outcome, SingleTurnEnv
from llm_envs.errors import BridgeError, InvalidActionError, InvalidConfigError, MissingExtraError, NoOracleError
from llm_envs.problems import check_choice
from llm_envs.processes import Shared
from llm_envs.sandbox.scorer import BoundedScorer

__all__ = ["ReasoningGymEnv"]

_child = Shared(lambda: BoundedScorer(Path(__file__).with_name("reasoning_gym_scorer.py")))
_START_S = 60.0
"""Seconds for a new item; usual are 0.0001 to 1."""
_SCORE_S = 6.0
"""Seconds for a score; usual are 0.0001 to 1 (integrals)."""


class ReasoningGymEnv(SingleTurnEnv):
    """Answer a question of one of reasoning-gym's data sets, judged by its own scorer.

    ## Description
    Each episode has one item of the data set (Stojanovski et al., arXiv 2505.24760): algebra, algorithms, arithmetic,
    code, games, geometry, graphs, logic. The package `reasoning-gym` makes and scores it. Teaches what the data set
    asks for.

    ## Observation
    The question. After the reply "Correct.", "Incorrect." or what was malformed.

    ## Action
    `<answer>42</answer>`, in the form that the question asks for. Thinking in `<think>...</think>` is
    allowed before it.

    ## Reward
    `correct` (weight 1): 1 if the package's scorer gives full credit. `score` (weight 0): the package's score, with
    partial credit. `malformed` (weight -0.1): 1 for a reply without an answer, or with broken tags.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `dataset`: name of the data set; the ids have it.
    - `split`: "train" or "test", by a hash of the question: one in five is in the test.
    - `difficulty`: "default".
    - `config`: settings of the data set, such as {"max_terms": 6}; the package's by default.
    - `allow_flawed`: True to play a data set that `FLAWED` names.
    - `reset(options={"problem": {"item_seed": 5, "question": "...", "answer": "..."}})` asks the item of a seed again.

    ## Version History
    - v0: first version, reasoning-gym 0.1.
    """

    difficulties = {"default": Difficulty("the package's default settings", chance_rate=1.0)}
    default_difficulty = "default"
    problem_fields = {"item_seed": int, "question": str, "answer": str}
    reward_weights = {"correct": 1.0, "score": 0.0, "malformed": -0.1}
    blocking = True
    has_natural_form = False
    slow_reset_reason = "The package makes the item in another process, and some take a second."
    plain_answer = staticmethod(str.strip)
    instructions = (
        "Answer the question. You may think first. Where the question shows an example, give the answer in the form of "
        "the example."
    )
    answer_example = "your answer"

    def __init__(
        self,
        split: str = "train",
        difficulty: str | None = None,
        render_mode: str | None = None,
        dataset: str = "chain_sum",
        config: Mapping[str, Any] | None = None,
        allow_flawed: bool = False,
    ) -> None:
        super().__init__(split, difficulty, render_mode)
        check_choice("reasoning_gym", "data set", dataset, REASONING_GYM)
        if dataset in FLAWED and not allow_flawed:
            raise InvalidConfigError(
                f"reasoning_gym/{dataset}-v0 is off, because its scorer pays for garbage: {FLAWED[dataset]}. "
                "allow_flawed=True plays it anyway."
            )
        if importlib.util.find_spec("reasoning_gym") is None:
            raise MissingExtraError(
                f"reasoning_gym/{dataset}-v0 needs `reasoning-gym`: pip install 'llm-envs[suites]'."
            )
        self.dataset, self.config = dataset, dict(config or {})

    def generate(self) -> dict[str, Any]:
        """Draw an item."""
        return self._item(int(self.np_random.integers(2**31)))

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a problem that the installed package does not make from its seed."""
        if self._item(problem["item_seed"]) != problem:
            raise InvalidActionError("the installed version of reasoning-gym makes another item from this seed")

    def split_key(self, problem: Mapping[str, Any]) -> str:
        """Return the question: different seeds may have the same."""
        return str(problem["question"])

    def prompt(self) -> str:
        """Return the question."""
        return str(self.problem["question"])

    def solution(self) -> str:
        """Return the answer."""
        if not self.problem["answer"]:
            raise NoOracleError(f"reasoning_gym/{self.dataset}-v0 has no oracle: its items have no stored answer.")
        return str(self.problem["answer"])

    def play(self, action: str) -> Outcome:
        """Score the reply."""
        reply = self.read(action)
        try:
            score = self.judge(reply, self.score_text)
        except InvalidActionError as refusal:
            return Outcome(f"Error: {refusal}.", {"correct": 0.0, "score": 0.0, "malformed": 1.0}, True)
        is_correct = score >= 1.0
        components = {"correct": float(is_correct), "score": score, "malformed": 0.0}
        return Outcome("Correct." if is_correct else "Incorrect.", components, True, is_correct)

    def _item(self, seed: int) -> dict[str, Any]:
        request = {"dataset": self.dataset, "config": self.config, "seed": seed}
        item = _child().ask(request, _START_S)
        if item is None or "error" in item:
            why = "it took too long, or crashed" if item is None else item["error"]
            raise BridgeError(f"reasoning_gym/{self.dataset}-v0: no item from seed {seed}, config {self.config}: {why}")
        return {"item_seed": seed, **item}

    def score_text(self, answer: str) -> float:
        """Return the package's score, from 0 to 1; 0 if the scorer fails or takes too long."""
        request = {"dataset": self.dataset, "config": self.config, "seed": self.problem["item_seed"], "answer": answer}
        scored = _child().ask(request, _SCORE_S)
        return 0.0 if scored is None else float(scored.get("score", 0.0))
