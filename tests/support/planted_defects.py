"""Environments with one planted defect each, and the sound ones that they differ from. None of them knows of us.

`python tests/support/planted_defects.py` certifies them all and writes the table of docs/guides/certify.md.
"""

from __future__ import annotations

import os
import random
import re
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from llm_envs.checker.candidate import Settings
from llm_envs.checker.certification import Certificate, certify

SETTINGS = Settings(n_episodes=12, max_step_s=0.004, max_reset_s=0.004)
TEXT = gym.spaces.Text(1_000_000)
_DECORATED = re.compile(r"(?:Let me think\.\s+)?(?:The answer is )?\*{0,2}(-?\w+)\*{0,2}\.?")


class Sum(gym.Env[str, str]):
    """Asks for a sum; one reply."""

    observation_space: gym.Space[str] = TEXT
    action_space: gym.Space[str] = TEXT
    chance_rate = 0.01
    return_range = (0.0, 1.0)
    reward_weights: ClassVar[Mapping[str, float]] = {"right": 1.0}

    def __init__(self, split: str = "train") -> None:
        self.split = split

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.draw()
        return self.question(), {}

    def draw(self) -> None:
        while True:
            self.a, self.b = (int(number) for number in self.np_random.integers(10_000, size=2))
            if (self.a * 31 + self.b * 17) % 2 == (self.split == "test"):
                return

    def question(self) -> str:
        return f"What is {self.a} + {self.b}?"

    def solution(self) -> str:
        return str(self.a + self.b)

    def oracle(self) -> str:
        return f"<answer>{self.solution()}</answer>"

    def read(self, action: str) -> str:
        answers = re.findall(r"<answer>([^<]*)</answer>", action)
        found = _DECORATED.fullmatch((answers[0] if len(answers) == 1 else action).strip())
        return found[1] if found else ""

    def is_right(self, action: str) -> bool:
        return self.read(action) == self.solution()

    def step(self, action: str) -> Any:
        right = self.is_right(action)
        info = {"is_success": right, "reward_components": {"right": float(right)}}
        return "Right." if right else "Wrong.", float(right), True, False, info


class Backwards(gym.Env[str, str]):
    """Asks for three words, one a turn, each spelled backwards."""

    observation_space: gym.Space[str] = TEXT
    action_space: gym.Space[str] = TEXT
    chance_rate = 0.01
    max_turns = 3

    def __init__(self, split: str = "train") -> None:
        self.split = split

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.begin()
        self.draw()
        return self.question(), {}

    def begin(self) -> None:
        self.turn = self.n_right = 0

    def draw(self) -> None:
        while True:
            letters = self.np_random.integers(26, size=(3, 6))
            self.words = ["".join(chr(97 + letter) for letter in word) for word in letters]
            if sum(map(ord, self.words[0])) % 2 == (self.split == "test"):
                return

    def question(self) -> str:
        return f"Spell {self.words[self.turn]} backwards."

    def oracle(self) -> str:
        return self.words[self.turn][::-1]

    def is_right(self, action: str) -> bool:
        return action.strip() == self.words[self.turn][::-1]

    def reward(self, right: bool) -> float:
        return right / 3

    def step(self, action: str) -> Any:
        right = self.is_right(action)
        reward = self.reward(right)
        self.turn += 1
        self.n_right += right
        over = self.turn == 3
        info = {"is_success": self.n_right == 3} if over else {}
        return "The end." if over else self.question(), reward, over, False, info


SOUND = (Sum, Backwards)


# Interface.


class ResetsToTextOnly(Sum):
    """`reset` returns the observation without info."""

    def reset(self, **kwargs: Any) -> Any:
        return super().reset(**kwargs)[0]


class ShowsNumbers(Sum):
    """Observations are numbers."""

    def question(self) -> Any:
        return self.a


class StepsAsGymOnceDid(Sum):
    """`step` returns four values."""

    def step(self, action: str) -> Any:
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, info


class EndsWithAWord(Sum):
    """`terminated` is a text."""

    def step(self, action: str) -> Any:
        return (*super().step(action)[:2], "yes", False, {})


class PaysInWords(Sum):
    """The reward is a text."""

    def step(self, action: str) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, str(reward), *rest


class AnswersWithSurrogates(Sum):
    """An observation has a lone surrogate, which UTF-8 cannot encode."""

    def step(self, action: str) -> Any:
        return "\ud800", *super().step(action)[1:]


# Determinism.


class DrawsFromRandom(Sum):
    """Problems come from the module `random`."""

    def draw(self) -> None:
        self.a, self.b = random.randrange(10_000), random.randrange(10_000)


class DrawsFromNumpy(Backwards):
    """The second word comes from `numpy.random`."""

    def draw(self) -> None:
        super().draw()
        self.words[1] = "".join(chr(97 + letter) for letter in np.random.randint(26, size=6))


class ShowsTheTime(Sum):
    """The question has the time in it."""

    def question(self) -> str:
        return f"It is {time.perf_counter_ns()}. {super().question()}"


class ShowsItsNumber(Backwards):
    """The question has the number of the instance in it."""

    made = 0

    def __init__(self, split: str = "train") -> None:
        super().__init__(split)
        ShowsItsNumber.made += 1
        self.number = self.made

    def question(self) -> str:
        return f"Game {self.number}. {super().question()}"


class PaysWithNoise(Backwards):
    """Rewards have noise from the operating system."""

    def reward(self, right: bool) -> float:
        return super().reward(right) + os.urandom(1)[0] * 1e-6


class SeedsTheModules(Sum):
    """`reset` seeds `numpy.random`."""

    def draw(self) -> None:
        np.random.seed(0)
        super().draw()


# Seeds.


class IgnoresTheSeed(Backwards):
    """Every seed gives the same words."""

    def draw(self) -> None:
        self.np_random = np.random.default_rng(0)
        super().draw()


class SharesSeeds(Backwards):
    """Fifty seeds in a row share one problem."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=None if seed is None else seed // 50)


class SeedsEveryReset(Sum):
    """A reset without a seed repeats the last seed's problem."""

    last = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.last = self.last if seed is None else seed
        return super().reset(seed=self.last)


class HasSixProblems(Backwards):
    """There are six problems, and nothing declares it."""

    def draw(self) -> None:
        number = int(self.np_random.integers(6))
        self.words = [letter * 3 + other * 3 for letter, other in zip("abc", "uvw", strict=True)]
        self.words = [f"{word}{'abcdef'[number]}" for word in self.words]


class UsesEightSeeds(Backwards):
    """Only the last three bits of the seed count."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=None if seed is None else seed % 8)


# Splits.


class IgnoresTheSplit(Sum):
    """Train and test draw alike."""

    def draw(self) -> None:
        self.a, self.b = (int(number) for number in self.np_random.integers(10_000, size=2))


class TestsOnTrain(Backwards):
    """The test split plays the train split's problems under other seeds."""

    def __init__(self, split: str = "train") -> None:
        super().__init__("train")
        self.shift = 7 * (split == "test")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=None if seed is None else seed + self.shift)


class LeaksOneProblemInTen(Sum):
    """One test problem in ten is the train problem of the same seed."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        wanted = self.split
        self.split = "train" if seed is not None and seed % 10 == 0 else wanted
        returned = super().reset(seed=seed)
        self.split = wanted
        return returned


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


# Isolation.


class CountsItsEpisodes(Sum):
    """The question has the number of the episode in it."""

    n_episodes = 0

    def question(self) -> str:
        self.n_episodes += 1
        return f"Question {self.n_episodes}. {super().question()}"


class SharesItsProblem(Backwards):
    """The words are kept in the class."""

    def draw(self) -> None:
        super().draw()
        SharesItsProblem.shared = self.words
        del self.words

    def __getattr__(self, name: str) -> Any:
        if name == "words":
            return SharesItsProblem.shared
        raise AttributeError(name)

    shared: ClassVar[list[str]] = []


class KeepsItsTurn(Backwards):
    """The turn is set back only at the end of an episode, not after one that was left."""

    turn = n_right = 0

    def begin(self) -> None:
        if self.turn == 3:
            super().begin()


class SeedsOnce(Backwards):
    """Only the first seed of an environment counts."""

    is_seeded = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        seed, self.is_seeded = None if self.is_seeded else seed, True
        return super().reset(seed=seed)


class GetsHarder(Sum):
    """From the third episode on, numbers have another digit."""

    n_episodes = 0

    def draw(self) -> None:
        super().draw()
        self.n_episodes += 1
        self.a += 10_000 * 2 * (self.n_episodes > 2)


class ClosesForAll(Backwards):
    """Closing one environment changes what the others show."""

    n_closed = 0

    def close(self) -> None:
        ClosesForAll.n_closed += 1

    def __init__(self, split: str = "train") -> None:
        super().__init__(split)
        self.n_closed_before = ClosesForAll.n_closed

    def question(self) -> str:
        changed = "please " if ClosesForAll.n_closed > self.n_closed_before else ""
        return f"{changed}{super().question()}"


# Latency.


class ResetsSlowly(Sum):
    """A reset takes 6 ms, and 4 ms are allowed."""

    def draw(self) -> None:
        time.sleep(0.006)
        super().draw()


class StepsSlowly(Backwards):
    """The third turn takes 8 ms, and 4 ms are allowed."""

    def step(self, action: str) -> Any:
        if self.turn == 2:
            time.sleep(0.008)
        return super().step(action)


class ReadsLongRepliesSlowly(Sum):
    """A reply of 90,000 characters or more takes over a second."""

    def step(self, action: str) -> Any:
        if len(action) >= 90_000:
            time.sleep(1.1)
        return super().step(action)


# Memory.


class KeepsItsEpisodes(Sum):
    """Each environment keeps a log of all its episodes."""

    def __init__(self, split: str = "train") -> None:
        super().__init__(split)
        self.log: list[str] = []

    def step(self, action: str) -> Any:
        self.log.append(f"{action}{'.' * 4_000}")
        return super().step(action)


class KeepsEverything(Backwards):
    """The class keeps a log of all episodes."""

    log: ClassVar[list[list[int]]] = []

    def draw(self) -> None:
        super().draw()
        self.log.append(list(range(1_000)))


class LeavesFilesOpen(Sum):
    """Each environment opens a file, and nothing closes it."""

    files: ClassVar[list[Any]] = []

    def __init__(self, split: str = "train") -> None:
        super().__init__(split)
        self.files.append(tempfile.TemporaryFile())  # noqa: SIM115  # left open on purpose


class LeavesThreads(Sum):
    """Each environment starts a thread that never ends."""

    ends = threading.Event()

    def __init__(self, split: str = "train") -> None:
        super().__init__(split)
        threading.Thread(target=self.ends.wait, daemon=True).start()


# Crashes.


class RaisesOnWords(Sum):
    """A reply that is not a number raises."""

    def is_right(self, action: str) -> bool:
        return int(self.read(action)) == self.a + self.b


class RaisesOnSurrogates(Sum):
    """A reply is encoded as UTF-8 without a thought of what it may hold."""

    def is_right(self, action: str) -> bool:
        action.encode()
        return super().is_right(action)


class RaisesOnSilence(Backwards):
    """An empty reply raises."""

    def is_right(self, action: str) -> bool:
        return action.strip()[0].islower() and super().is_right(action)


class RaisesOnLength(Sum):
    """A long reply raises."""

    def is_right(self, action: str) -> bool:
        if len(action) > 50_000:
            raise ValueError("too long")
        return super().is_right(action)


class NeverEnds(Backwards):
    """A wrong word is asked for again, for ever."""

    def step(self, action: str) -> Any:
        if not self.is_right(action):
            return self.question(), 0.0, False, False, {}
        return super().step(action)


DEFECTS: Mapping[str, tuple[type[gym.Env[str, str]], ...]] = {
    "interface": (
        *(ResetsToTextOnly, ShowsNumbers, StepsAsGymOnceDid, EndsWithAWord, PaysInWords, AnswersWithSurrogates),
    ),
    "determinism": (*(DrawsFromRandom, DrawsFromNumpy, ShowsTheTime, ShowsItsNumber, PaysWithNoise, SeedsTheModules),),
    "seeds": (IgnoresTheSeed, SharesSeeds, SeedsEveryReset, HasSixProblems, UsesEightSeeds),
    "splits": (IgnoresTheSplit, TestsOnTrain, LeaksOneProblemInTen),
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
    "isolation": (CountsItsEpisodes, SharesItsProblem, KeepsItsTurn, SeedsOnce, GetsHarder, ClosesForAll),
    "latency": (ResetsSlowly, StepsSlowly, ReadsLongRepliesSlowly),
    "memory": (KeepsItsEpisodes, KeepsEverything, LeavesFilesOpen, LeavesThreads),
    "crashes": (RaisesOnWords, RaisesOnSurrogates, RaisesOnSilence, RaisesOnLength, NeverEnds),
}
"""The check that should catch a defect -> environments with one."""
PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "certify.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


@cache
def measured(cls: type[gym.Env[str, str]]) -> Certificate:
    """Certify an environment, once in this process."""
    return certify(cls, SETTINGS)


def table() -> str:
    """Return the table of the page: the planted defects by the checks that failed for them."""
    lines = ["| check | planted | caught by it | by another check too | defects |", "|---|---|---|---|---|"]
    totals = [0, 0, 0]
    for check, planted in DEFECTS.items():
        failed = [measured(cls).failed for cls in planted]
        counts = len(planted), sum(check in names for names in failed), sum(len(names) > 1 for names in failed)
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
        about = "; ".join(str(cls.__doc__).rstrip(".") for cls in planted)
        lines.append(f"| {check} | {' | '.join(map(str, counts))} | {about} |")
    lines.append(f"| all | {' | '.join(map(str, totals))} | |")
    n_alarms = sum(len(measured(cls).failed) for cls in SOUND)
    lines.append(f"| none: {len(SOUND)} sound environments | 0 | {n_alarms} | 0 | |")
    return "\n".join(lines)


def main() -> int:
    """Write the table; return 1 if a defect was not caught by just its check."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    wrong = {cls.__name__: measured(cls).failed for check, planted in DEFECTS.items() for cls in planted
             if measured(cls).failed != (check,)}  # fmt: skip
    wrong |= {cls.__name__: measured(cls).failed for cls in SOUND if measured(cls).failed}
    print(wrong or "each defect was caught by just its check")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
