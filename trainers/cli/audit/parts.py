"""The result of an audit, as data: for each part how much was compared, what could not be, and the differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["PARTS", "Audit", "Difference", "Part", "function_name", "is_close"]

PARTS: Mapping[str, str] = {
    "episodes": "each episode is whole, once, of its group, and of the weights of its step",
    "observations": "the environment answers the stored actions with the stored observations, tool results and ends",
    "tokens": "the codec makes the stored token rows of the messages, and sampled tokens read as the replies",
    "masks": "the mask is True on the policy's tokens, and the rows that the loss saw are the stored ones",
    "rewards": "the environment pays the stored rewards, and columns and shaping add up to those of each turn",
    "baselines": "the mean reward of each group",
    "advantages": "the algorithm's advantages of the stored rewards",
    "log-probabilities": "the model that sampled gives the sampled tokens the stored log-probabilities",
    "loss": "the loss of the steps whose weights are stored",
    "metrics": "the logged loss, reward and success are those of the stored steps and episodes",
}
"""Each part, in the order of the data: what is computed again. The first difference is in the earliest part."""


@dataclass(frozen=True)
class Difference:
    """A stored value that comes out differently."""

    part: str
    file: str
    """The file or folder with the stored value, relative to the run."""
    what: str
    """The name of the value."""
    stored: Any
    recomputed: Any
    by: str
    """The function that recomputed it, `module.name`."""
    step: int | None = None
    """Optimizer steps before the generation, or the step itself for a loss."""
    episode: str | None = None
    """GROUP/MEMBER."""
    turn: int | None = None
    token: int | None = None
    """Place in the row, from 0."""

    def __str__(self) -> str:
        """Return the difference in a few lines."""
        places = [("step", self.step), ("episode", self.episode), ("turn", self.turn), ("token", self.token)]
        where = ", ".join(f"{name} {value}" for name, value in places if value is not None)
        return (
            f"{self.part}: {self.what}\n  in          {self.file}{f' ({where})' if where else ''}\n"
            f"  stored      {self.stored!r:.200}\n  recomputed  {self.recomputed!r:.200}\n  by          {self.by}"
        )


@dataclass
class Part:
    """The result of one part."""

    n: int = 0
    """Values compared."""
    unit: str = "values"
    missing: dict[str, int] = field(default_factory=dict)
    """Why something could not be recomputed -> how often. It never counts as equal."""
    differences: list[Difference] = field(default_factory=list)
    limits: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Value -> the greatest difference that was taken for noise, and its unit: what is smaller is not found."""

    def could_find(self, name: str, limit: float, unit: str) -> None:
        """Note a difference that was taken for noise."""
        self.limits[name] = max((limit, unit), self.limits.get(name, (0.0, unit)))


@dataclass
class Audit:
    """The result of an audit."""

    parts: dict[str, Part] = field(default_factory=lambda: {name: Part() for name in PARTS})

    @property
    def differences(self) -> list[Difference]:
        """All differences, earlier parts first."""
        return [found for part in self.parts.values() for found in part.differences]

    @property
    def first(self) -> Difference | None:
        """The first difference; None: the run is clean."""
        return next(iter(self.differences), None)

    def lack(self, why: str, *parts: str, n: int = 1) -> None:
        """Note in some parts, or in all, that something could not be recomputed."""
        for name in parts or self.parts:
            missing = self.parts[name].missing
            missing[why] = missing.get(why, 0) + n

    def add(self, difference: Difference) -> None:
        """Add a difference to its part."""
        self.parts[difference.part].differences.append(difference)

    def compare(
        self,
        part: str,
        stored: Any,
        recomputed: Any,
        *,
        by: Callable[..., Any],
        unit: str = "values",
        tolerance: tuple[float, float] | None = None,
        **where: Any,
    ) -> bool:
        """Count a comparison, add a difference if there is one, and return whether the values are equal.

        Args:
            part: One of `PARTS`.
            stored: The stored value.
            recomputed: The value of now.
            by: The function that recomputed it.
            unit: The name of the things counted.
            tolerance: (relative, absolute) for numbers; None: they are exactly equal.
            **where: The other fields of `Difference`.
        """
        self.parts[part].n += 1
        self.parts[part].unit = unit
        is_equal = stored == recomputed if tolerance is None else is_close(stored, recomputed, tolerance)
        if not is_equal:
            self.add(Difference(part, stored=stored, recomputed=recomputed, by=function_name(by), **where))
        return is_equal


def function_name(function: Callable[..., Any]) -> str:
    """Return `module.name`."""
    return f"{function.__module__}.{function.__qualname__}"


def is_close(one: Any, other: Any, tolerance: tuple[float, float]) -> bool:
    """Return whether two numbers, or two lists of numbers, are equal within (relative, absolute); None is NaN."""
    relative, absolute = tolerance
    first, second = (np.atleast_1d(np.asarray(value, dtype=np.float64)) for value in (one, other))
    return first.shape == second.shape and bool(
        np.allclose(first, second, rtol=relative, atol=absolute, equal_nan=True)
    )
