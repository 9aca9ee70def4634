"""A curriculum: chooses difficulties by the success measured so far. Pure functions, and one state.

Levels are ordered, the easiest first. The first is open; the next opens when the last open one is mastered. Each open
level gets at least the floor, so the policy does not forget it. The rest of the share goes to the levels that are
sometimes solved and sometimes not, because the policy can learn most from them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from llm_envs.errors import InvalidConfigError
from llm_envs.sources.mixture import choose, derive_fraction
from llm_envs.types import Trajectory

__all__ = ["Curriculum", "WeightFn", "create_band_weight", "level_shares", "next_open", "variance_weight"]

WeightFn = Callable[[float], float]
"""Success of a level, in [0, 1] -> its weight above the floor, at least 0."""


def create_band_weight(low: float, high: float) -> WeightFn:
    """Return the weight 1 for a success in [low, high], else 0."""
    if not 0 <= low < high <= 1:
        raise InvalidConfigError(f"the band is [{low!r}, {high!r}]; it must be 0 <= low < high <= 1.")
    return lambda success: 1.0 if low <= success <= high else 0.0


def variance_weight(success: float) -> float:
    """Return 4·p·(1−p), the variance of success: 1 if half of the episodes succeed, 0 if none or all do."""
    return 4.0 * success * (1.0 - success)


def level_shares(
    success: Sequence[float | None], n_open: int, *, floor: float, weight_fn: WeightFn
) -> tuple[float, ...]:
    """Return the share of each level; they sum to 1.

    An open level gets `floor`, and a share of the rest by `weight_fn`. A level without a measurement has weight 1; if
    all weights are 0, the shares are equal.

    Args:
        success: Success of each level, in order; None if too few episodes were played.
        n_open: Number of open levels, from the first; the others get no share.
        floor: Minimum share of each open level.
        weight_fn: Success -> weight.
    """
    weights = [1.0 if value is None else weight_fn(value) for value in success[:n_open]]
    total = sum(weights)
    if total <= 0:
        weights, total = [1.0] * n_open, float(n_open)
    rest = 1.0 - floor * n_open
    return (*(floor + rest * weight / total for weight in weights), *([0.0] * (len(success) - n_open)))


def next_open(success: Sequence[float | None], n_open: int, *, mastered: float) -> int:
    """Return the new number of open levels: one more for each mastered last level."""
    while n_open < len(success):
        last = success[n_open - 1]
        if last is None or last <= mastered:
            break
        n_open += 1
    return n_open


class Curriculum:
    """Chooses a level for each episode, and learns the shares of the levels from finished episodes.

    Shares change only in `update`, so the choices between two updates depend only on (seed, index).

    Args:
        levels: Names of the levels, the easiest first, or `{name: keyword arguments of the environment}`.
        kwarg: The keyword argument for a level's name, if only names are given.
        band: A level whose success is in [low, high] has a full share; above `high` it is mastered.
        window: Number of last episodes of a level over which its success is measured.
        min_episodes: With fewer episodes, a level's success is unknown.
        floor: Minimum share of each open level.
        weight_fn: Success -> weight, instead of the band's.
        seed: Decides, together with the index, which level is chosen.

    Raises:
        InvalidConfigError: If a setting is wrong.
    """

    def __init__(
        self,
        levels: Sequence[str] | Mapping[str, Mapping[str, Any]],
        *,
        kwarg: str = "difficulty",
        band: tuple[float, float] = (0.2, 0.8),
        window: int = 64,
        min_episodes: int = 16,
        floor: float = 0.05,
        weight_fn: WeightFn | None = None,
        seed: int = 0,
    ) -> None:
        if isinstance(levels, Mapping):
            self.levels = {name: dict(kwargs) for name, kwargs in levels.items()}
        else:
            self.levels = {name: {kwarg: name} for name in levels}
        if not self.levels or isinstance(levels, str) or len(self.levels) < len(levels):
            raise InvalidConfigError(f"Curriculum: levels are {levels!r}; give different names, at least one.")
        if any(not kwargs for kwargs in self.levels.values()):
            raise InvalidConfigError(f"Curriculum: a level has no keyword arguments: {self.levels}.")
        if not 1 <= min_episodes <= window:
            raise InvalidConfigError(f"Curriculum: {min_episodes=}, {window=}; it must be 1 <= min_episodes <= window.")
        if not 0 <= floor * len(self.levels) < 1:
            raise InvalidConfigError(
                f"Curriculum: floor is {floor!r}; {len(self.levels)} levels of it must be below 1."
            )
        self.weight_fn = weight_fn or create_band_weight(*band)
        self.band, self.window, self.min_episodes, self.floor, self.seed = band, window, min_episodes, floor, seed
        self.n_open = 1
        """Number of open levels."""
        self._recent: dict[str, deque[bool]] = {name: deque(maxlen=window) for name in self.levels}

    @property
    def success(self) -> dict[str, float | None]:
        """Success of each level over its window; None if too few episodes were played."""
        return {
            name: sum(recent) / len(recent) if len(recent) >= self.min_episodes else None
            for name, recent in self._recent.items()
        }

    @property
    def shares(self) -> dict[str, float]:
        """Current share of each level."""
        shares = level_shares(list(self.success.values()), self.n_open, floor=self.floor, weight_fn=self.weight_fn)
        return dict(zip(self.levels, shares, strict=True))

    def chooser(self) -> Callable[[int], str]:
        """Return a function, index of an episode (or group) -> level. Later updates do not affect it."""
        names, cumulative = list(self.levels), list(accumulate(self.shares.values()))
        return lambda index: names[choose(derive_fraction(self.seed, "level", index), cumulative)]

    def level_of(self, env_kwargs: Mapping[str, Any]) -> str | None:
        """Return the level of an environment with these keyword arguments; None if it is not one of the levels."""
        for name, kwargs in self.levels.items():
            if all(key in env_kwargs and env_kwargs[key] == value for key, value in kwargs.items()):
                return name
        return None

    def update(self, trajectories: Iterable[Trajectory]) -> None:
        """Learn from finished episodes. Episodes without a score, or with another level, are ignored.

        Args:
            trajectories: Training episodes, in a fixed order if runs must be repeatable.
        """
        for trajectory in trajectories:
            level = self.level_of(trajectory.env_kwargs)
            if level is not None and trajectory.status == "ok":
                self._recent[level].append(bool(trajectory.is_success))
        self._open()

    def record(self, level: str, success: bool) -> None:
        """Learn from one episode of a level."""
        self._recent[level].append(success)
        self._open()

    def _open(self) -> None:
        self.n_open = next_open(list(self.success.values()), self.n_open, mastered=self.band[1])

    def metrics(self) -> dict[str, float]:
        """Return shares, and known successes, as `curriculum/share/LEVEL` and the like."""
        found = {f"curriculum/share/{name}": share for name, share in self.shares.items()}
        found |= {f"curriculum/success/{name}": value for name, value in self.success.items() if value is not None}
        return found | {"curriculum/open": float(self.n_open)}

    def state_dict(self) -> dict[str, Any]:
        """Return the state that decides the choices, as JSON types."""
        recent = {name: [int(success) for success in window] for name, window in self._recent.items()}
        return {"settings": self._settings(), "n_open": self.n_open, "recent": recent}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`; other settings are refused."""
        if state["settings"] != self._settings():
            raise InvalidConfigError(
                f"the saved curriculum has the settings {state['settings']!r}, this one {self._settings()!r}."
            )
        self.n_open = state["n_open"]
        for name, recent in state["recent"].items():
            self._recent[name] = deque(map(bool, recent), maxlen=self.window)

    def _settings(self) -> dict[str, Any]:
        return {
            "levels": {name: dict(kwargs) for name, kwargs in self.levels.items()},
            "band": list(self.band),
            "window": self.window,
            "min_episodes": self.min_episodes,
            "floor": self.floor,
            "seed": self.seed,
        }
