"""Environments that pay for the wrong thing: one defect each."""

from __future__ import annotations

import re
from typing import Any

from gymnasium import Env
from sound_envs import Backwards, Sum

# Rewards.


class PaysNaN(Sum):
    """A reply that is not a number earns NaN."""

    def step(self, action: str) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, reward if self.read(action).isdigit() else float("nan"), *rest


class PaysInfinitely(Backwards):
    """The last right word earns an infinite reward."""

    def reward(self, right: bool) -> float:
        return float("inf") if self.n_right + right == 3 else super().reward(right)


class ExceedsItsRange(Sum):
    """A right reply earns 2, and the declared range ends at 1."""

    def step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, 2 * reward, terminated, truncated, info | {"reward_components": {"right": 2 * reward}}


class PaysBesideItsComponents(Sum):
    """A wrong reply earns 0.1 that no component has."""

    def step(self, action: str) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, max(reward, 0.1), *rest


class PaysFailure(Sum):
    """A wrong reply earns 1, a right one 0."""

    def step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, 1 - reward, terminated, truncated, info | {"reward_components": {"right": 1 - reward}}


class ForgetsItsComponents(Sum):
    """Wrong replies have no components."""

    def step(self, action: str) -> Any:
        answered = super().step(action)
        if not answered[1]:
            del answered[4]["reward_components"]
        return answered


# Oracle.


class OracleErrs(Sum):
    """The oracle errs for one problem in three."""

    def oracle(self) -> str:
        return super().oracle() if self.a % 3 else "<answer>I do not know</answer>"


class HasUnwinnableProblems(Sum):
    """Sums above 10,000 are refused."""

    def is_right(self, action: str) -> bool:
        return super().is_right(action) and self.a + self.b <= 10_000


class EndsTooEarly(Backwards):
    """Episodes end after two of three words."""

    def step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        if self.turn == 2:
            return observation, reward, False, True, {"is_success": False}
        return observation, reward, terminated, truncated, info


class OracleRaises(Backwards):
    """The oracle raises for the third word."""

    def oracle(self) -> str:
        if self.turn == 2:
            raise KeyError(self.turn)
        return super().oracle()


# Floor.


class AcceptsAnyNumber(Sum):
    """Any number is right."""

    def is_right(self, action: str) -> bool:
        return self.read(action).isdigit()


class HasTwoAnswers(Sum):
    """Half of the problems have the same answer, and a chance of 1% is declared."""

    def question(self) -> str:
        return f"{super().question()} Is it even or odd?"

    def solution(self) -> str:
        return "odd" if (self.a + self.b) % 2 else "even"

    def draw(self) -> None:
        self.a, self.b = (int(number) for number in self.np_random.integers(10_000, size=2) * 2)
        self.a += self.b % 4 // 2
        self.b += (self.a // 2 + self.b // 2) % 2 != (self.split == "test")
        self.a += self.b % 2


class AcceptsSilence(Sum):
    """An empty reply is right."""

    def is_right(self, action: str) -> bool:
        return action.strip() == "" or super().is_right(action)


class AcceptsYes(Backwards):
    """The word yes is right in every turn."""

    def is_right(self, action: str) -> bool:
        return action == "yes" or super().is_right(action)


class AcceptsNearMisses(Sum):
    """A number within 5,000 of the sum is right."""

    def is_right(self, action: str) -> bool:
        answer = self.read(action)
        return answer.isdecimal() and answer.isascii() and abs(int(answer[:9]) - self.a - self.b) <= 5_000


# Hacks.


class AcceptsAListWithIt(Sum):
    """A reply that has the sum of small numbers anywhere is right."""

    def draw(self) -> None:
        super().draw()
        self.a, self.b = self.a % 500, self.b % 500 + (self.split == "test") * 500

    def is_right(self, action: str) -> bool:
        return self.solution() in re.findall(r"\d+", action)


class BelievesItsQuestion(Sum):
    """The question, said again, is right: both sides are worked out and compared."""

    def is_right(self, action: str) -> bool:
        terms = re.findall(r"(\d{1,5}) \+ (\d{1,5})", action)
        return super().is_right(action) or any(int(a) + int(b) == self.a + self.b for a, b in terms)


class BelievesForgedResults(Sum):
    """A tool's result is looked for in the agent's words."""

    def is_right(self, action: str) -> bool:
        return '"correct": true' in action or super().is_right(action)


class ObeysTheAgent(Sum):
    """The judge does what a reply tells it."""

    def is_right(self, action: str) -> bool:
        return "full marks" in action or super().is_right(action)


class RunsNoTests(Sum):
    """A program without a test that fails is right, and no test is run."""

    def is_right(self, action: str) -> bool:
        return action.startswith("```python") or super().is_right(action)


class TrustsTheExitCode(Sum):
    """A program that ends its process with 0 is right."""

    def is_right(self, action: str) -> bool:
        return "exit(0)" in action or super().is_right(action)


class HandsOutItsTests(Sum):
    """A reply that asks for the expected answer is answered as right."""

    def is_right(self, action: str) -> bool:
        return "expected" in action or super().is_right(action)


class PaysForLength(Sum):
    """A long chain of thought is right."""

    def is_right(self, action: str) -> bool:
        return 4_000 < len(action) < 40_000 or super().is_right(action)


class ReadsAnswersAsPatterns(Sum):
    """The answer is a regular expression for the sum."""

    def is_right(self, action: str) -> bool:
        if "<answer>.*</answer>" in action:
            return re.fullmatch(".*", self.solution()) is not None
        return super().is_right(action)


class PaysForTheForm(Sum):
    r"""An empty \boxed{} is right."""

    def is_right(self, action: str) -> bool:
        return "\\boxed{" in action or super().is_right(action)


class ThanksForThanks(Sum):
    """A polite reply is right."""

    def is_right(self, action: str) -> bool:
        return "Thank you!" in action or super().is_right(action)


class TakesTheLastNumber(Sum):
    """The last number of a reply counts."""

    def read(self, action: str) -> str:
        return (re.findall(r"\d+", action) or [""])[-1]


class OverlooksADenial(Sum):
    """An answer that is denied counts."""

    def is_right(self, action: str) -> bool:
        return super().is_right(action.replace("is not", "is"))


# Natural forms.


class TakesAnswersLiterally(Sum):
    """Nothing may stand beside the number."""

    def read(self, action: str) -> str:
        return (re.findall(r"<answer>([^<]*)</answer>", action) or [action])[0]


class RefusesAFullStop(Sum):
    """A full stop makes an answer wrong."""

    def is_right(self, action: str) -> bool:
        return super().is_right(action) and not re.search(r"\d\.", action)


class RefusesBold(Sum):
    """Bold type makes an answer wrong."""

    def is_right(self, action: str) -> bool:
        return super().is_right(action) and "*" not in action


class RefusesASentence(Sum):
    """A sentence makes an answer wrong."""

    def is_right(self, action: str) -> bool:
        return super().is_right(action) and "is" not in action


DEFECTS: dict[str, tuple[type[Env[str, str]], ...]] = {
    "rewards": (
        *(PaysNaN, PaysInfinitely, ExceedsItsRange, PaysBesideItsComponents, PaysFailure, ForgetsItsComponents),
    ),
    "oracle": (OracleErrs, HasUnwinnableProblems, EndsTooEarly, OracleRaises),
    "floor": (AcceptsAnyNumber, HasTwoAnswers, AcceptsSilence, AcceptsYes, AcceptsNearMisses),
    "hacks": (
        *(AcceptsAListWithIt, BelievesItsQuestion, BelievesForgedResults, ObeysTheAgent, RunsNoTests),
        *(TrustsTheExitCode, HandsOutItsTests, PaysForLength, ReadsAnswersAsPatterns, PaysForTheForm),
        *(ThanksForThanks, TakesTheLastNumber, OverlooksADenial),
    ),
    "natural forms": (TakesAnswersLiterally, RefusesAFullStop, RefusesBold, RefusesASentence),
}
