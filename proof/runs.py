"""The runs: every one a value, with its seeds fixed in advance. A run is repeated by its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

__all__ = ["CREDIT", "RUNS", "Run"]


@dataclass(frozen=True)
class Run:
    """A training from a warm start, for each of its seeds, measured before and after on the same test episodes."""

    name: str
    task: str
    """Of `proof.tasks.TASKS`."""
    table: Literal["grpo", "algorithms", "credit"]
    """Of the document."""
    recipe: str = "grpo"
    """Of `llm_envs.trainers.recipes.RECIPES`."""
    per_turn_gamma: float | None = None
    """Discount of per-turn credit, in place of the recipe's advantages."""
    engine: Literal["transformers", "vllm"] = "transformers"
    """What samples in training. Measuring is done with transformers always."""
    seeds: tuple[int, ...] = (0,)
    """Of the training: of its episodes and its sampling. The warm start and the test episodes are the same for all."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of `EnvGRPOConfig`."""

    @property
    def algorithm(self) -> str:
        """What it is called in the tables."""
        if self.table == "credit" and self.per_turn_gamma is None:
            return f"whole episode, rate {self.settings['learning_rate']:g}"
        return self.recipe if self.per_turn_gamma is None else f"turn, discount {self.per_turn_gamma:g}"


_SHORT = {"max_steps": 30, "per_device_train_batch_size": 128, "num_generations": 8, "learning_rate": 6e-4}
_GENTLE = {**_SHORT, "max_steps": 60, "learning_rate": 3e-4, "warmup_steps": 5}
# The same loss for the three, one value a token: they differ in the advantages alone.
_LETTERS = {
    "max_steps": 40,
    "per_device_train_batch_size": 8,  # one group: few episodes are where credit matters
    "num_generations": 8,
    "learning_rate": 1e-3,
    "loss_type": "dapo",
}
_FIVE = (0, 1, 2, 3, 4)

CREDIT = ("credit-trajectory", "credit-trajectory-slow", "credit-return-to-go", "credit-turn")
"""The baseline, and what is compared with it: first itself at a third of the learning rate, in case that is better."""

_ALL = (
    Run("grpo-arithmetic", "arithmetic", "grpo", settings=_GENTLE),
    Run("grpo-calculator", "calculator", "grpo", settings=_GENTLE),
    Run("grpo-guess", "guess", "grpo", settings=_SHORT),
    Run("grpo-arithmetic-vllm", "arithmetic", "grpo", engine="vllm", settings=_GENTLE),
    Run("grpo-calculator-vllm", "calculator", "grpo", engine="vllm", settings=_GENTLE),
    Run("grpo-guess-vllm", "guess", "grpo", engine="vllm", settings=_SHORT),
    Run("dapo-guess", "guess", "algorithms", "dapo", settings=_SHORT),
    Run("rloo-arithmetic", "arithmetic", "algorithms", "rloo", settings=_GENTLE),
    Run("reinforce-guess", "guess", "algorithms", "reinforce", settings=_GENTLE),
    Run("per-turn-guess", "guess", "algorithms", "per_turn", settings=_GENTLE),
    Run(CREDIT[0], "letters", "credit", seeds=_FIVE, settings=_LETTERS),
    Run(CREDIT[1], "letters", "credit", seeds=_FIVE, settings={**_LETTERS, "learning_rate": 3e-4}),
    Run(CREDIT[2], "letters", "credit", per_turn_gamma=1.0, seeds=_FIVE, settings=_LETTERS),
    Run(CREDIT[3], "letters", "credit", per_turn_gamma=0.0, seeds=_FIVE, settings=_LETTERS),
)

RUNS: Mapping[str, Run] = MappingProxyType({run.name: run for run in _ALL})
