"""What is played: episodes with their turns' tokens and their tools' times, drawn before anything runs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Episodes:
    """N episodes of T turns. A tool runs after each turn but the last; after a single turn, its judge."""

    tokens_NT: Counts
    """Sampled tokens of each turn."""
    tools_NT: Array
    """Seconds of the tool after each turn; 0 after the last of several."""
    n_prompt: int
    """Tokens of the first prompt."""
    n_added: int
    """Tokens that the environment adds after each turn."""

    def __len__(self) -> int:
        """Return the number of episodes."""
        return len(self.tokens_NT)

    @property
    def n_turns(self) -> int:
        """Turns of an episode."""
        return int(self.tokens_NT.shape[1])

    @property
    def n_sampled(self) -> int:
        """Sampled tokens of all episodes."""
        return int(self.tokens_NT.sum())

    @property
    def n_context(self) -> float:
        """Mean tokens of an episode at its end, the environment's included."""
        return self.n_prompt + (self.n_turns - 1) * self.n_added + self.n_sampled / len(self)

    def part(self, n: int) -> Episodes:
        """Return n of the episodes that stand for all: evenly spaced in length, the longest among them."""
        if n >= len(self):
            return self
        order = np.argsort(self.tokens_NT.sum(1) + 50 * self.tools_NT.sum(1))
        chosen = np.sort(order[np.linspace(len(self) - 1, 0, n).round().astype(int)])
        return Episodes(self.tokens_NT[chosen], self.tools_NT[chosen], self.n_prompt, self.n_added)


@dataclass(frozen=True)
class Workload:
    """How episodes are drawn."""

    n_turns: int = 4
    n_tokens: float = 256.0
    """Mean tokens of a turn."""
    spread: float = 0.0
    """Standard deviation of the logarithm of a turn's tokens, half of whose variance all turns of an episode share."""
    n_prompt: int = 512
    n_added: int = 128
    tool_s: float = 1.0
    """Mean of the tools' times."""
    slow_share: float = 0.0
    """Share of the calls that take ten times as long."""


def draw(work: Workload, n: int, seed: int) -> Episodes:
    """Draw episodes: log-normal tokens, exponential tools."""
    rng = np.random.default_rng(seed)
    size = (n, work.n_turns)
    shared, own = rng.normal(size=(n, 1)), rng.normal(size=size)
    logs = math.log(work.n_tokens) - work.spread**2 / 2 + work.spread * (shared + own) / math.sqrt(2)
    tools = rng.exponential(work.tool_s, size) if work.tool_s else np.zeros(size)
    tools = np.where(rng.random(size) < work.slow_share, 10 * tools, tools)
    if work.n_turns > 1:
        tools[:, -1] = 0.0
    return Episodes(np.maximum(1, np.exp(logs).round()).astype(np.int64), tools, work.n_prompt, work.n_added)


def pages(n: int, n_tools: int, tool_s: float) -> Episodes:
    """Return the episodes of `benchmarks/pages.py`, with the same times of the tools (`draw_latencies`)."""
    drawn = np.random.default_rng(0).exponential(size=(n, n_tools))
    tools = np.zeros((n, n_tools + 1))
    tools[:, :-1] = tool_s * drawn / drawn.mean()
    tokens = np.full((n, n_tools + 1), 21)
    tokens[:, -1] = 9
    return Episodes(tokens, tools, 342, 111)
