"""The base class of tasks with one question and one reply."""

from __future__ import annotations

from abc import abstractmethod

from llm_envs.env.text import TextEnv
from llm_envs.errors import InvalidActionError
from llm_envs.parsers import ParsedReply
from llm_envs.problems import Outcome
from llm_envs.rewards import exact_match

__all__ = ["SingleTurnEnv"]


class SingleTurnEnv(TextEnv):
    """One question, one reply. The reply's `<answer>` is judged, and the episode terminates.

    A task writes `generate`, `prompt`, `solution` and, unless the answer must equal the solution, `is_correct`.
    """

    def __init__(
        self,
        split: str = "train",
        difficulty: str | None = None,
        render_mode: str | None = None,
        answer_form: str | None = None,
    ) -> None:
        super().__init__(split, difficulty, 1, render_mode, answer_form)

    @abstractmethod
    def solution(self) -> str:
        """Return a right answer to `self.problem`."""

    def is_correct(self, answer: str) -> bool:
        """Return whether the answer is right; raise a readable `InvalidActionError` if it has the wrong form."""
        return exact_match(answer, self.solution()) == 1.0

    def score(self, reply: ParsedReply, *, correct: bool, malformed: bool) -> dict[str, float]:
        """Return the reward components. Override this to add components."""
        return {"correct": 1.0 if correct else 0.0, "malformed": 1.0 if malformed else 0.0}

    def play(self, action: str) -> Outcome:
        """Judge the reply."""
        reply = self.read(action)
        try:
            correct = bool(self.judge(reply, self.is_correct))
        except InvalidActionError as refusal:
            components = self.score(reply, correct=False, malformed=True)
            return Outcome(f"Error: {refusal}.", components, True, False)
        components = self.score(reply, correct=correct, malformed=False)
        return Outcome("Correct." if correct else "Incorrect.", components, True, correct)

    def next_action(self) -> str:
        """Return the solution as the final answer."""
        return self.write_answer(self.solution())
