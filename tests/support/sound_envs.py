"""Two small sound environments that know nothing of us; the planted defects change one thing each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium as gym

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
