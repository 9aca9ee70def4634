"""Environments whose episodes do not repeat, do not differ, or leak: one defect each."""

from __future__ import annotations

import os
import random
import time
from typing import Any, ClassVar

import numpy as np
from gymnasium import Env
from sound_envs import Backwards, Sum

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


DEFECTS: dict[str, tuple[type[Env[str, str]], ...]] = {
    "interface": (
        *(ResetsToTextOnly, ShowsNumbers, StepsAsGymOnceDid, EndsWithAWord, PaysInWords, AnswersWithSurrogates),
    ),
    "determinism": (*(DrawsFromRandom, DrawsFromNumpy, ShowsTheTime, ShowsItsNumber, PaysWithNoise, SeedsTheModules),),
    "seeds": (IgnoresTheSeed, SharesSeeds, SeedsEveryReset, HasSixProblems, UsesEightSeeds),
    "splits": (IgnoresTheSplit, TestsOnTrain, LeaksOneProblemInTen),
    "isolation": (CountsItsEpisodes, SharesItsProblem, KeepsItsTurn, SeedsOnce, GetsHarder, ClosesForAll),
}
