"""Environments composed of others: a mixture of tasks, and one task whose difficulty adapts to its success.

Both are ordinary Gymnasium environments, for places that take a single environment: a vector environment, a notebook,
another trainer. Our collector and trainers take mixtures and curricula directly (`Envs`, `Curriculum`), and then keep
groups, resuming and metrics by level.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any, SupportsFloat

import gymnasium as gym

from llm_envs.env import TextEnv
from llm_envs.errors import InvalidConfigError, ResetNeededError
from llm_envs.problems import check_choice
from llm_envs.registration import task_spec
from llm_envs.sources.curriculum import Curriculum
from llm_envs.sources.mixture import choose
from llm_envs.spaces import TextSpace

__all__ = ["CurriculumEnv", "MixtureEnv"]

_SEEDS = 2**31


def _of_current(name: str) -> property:
    return property(lambda self: self.current.get_wrapper_attr(name))


class _ComposedEnv(gym.Env[str, str]):
    """Plays one of several environments in each episode, and forwards its attributes."""

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 (Gymnasium declares it so)

    def __init__(self, parts: Mapping[str, gym.Env[str, str]], render_mode: str | None) -> None:
        self.parts = dict(parts)
        self.render_mode = render_mode
        self.observation_space = TextSpace()
        self.action_space = TextSpace()
        self.blocking = any(bool(env.get_wrapper_attr("blocking")) for env in self.parts.values())
        self._current: str | None = None

    @property
    def current(self) -> gym.Env[str, str]:
        """The environment of this episode.

        Raises:
            ResetNeededError: Before the first `reset`.
        """
        if self._current is None:
            raise ResetNeededError(f"{type(self).__name__}: no episode has begun yet: call reset() first.")
        return self.parts[self._current]

    system_prompt = _of_current("system_prompt")
    tools = _of_current("tools")
    tool_results = _of_current("tool_results")
    problem = _of_current("problem")
    max_turns = _of_current("max_turns")

    @property
    def reward_weights(self) -> Mapping[str, float]:
        """Weights of all parts' components. If two parts give a name different weights, this episode's applies."""
        weights: dict[str, float] = {}
        for env in [*self.parts.values(), *([] if self._current is None else [self.current])]:
            weights |= env.get_wrapper_attr("reward_weights")
        return weights

    def oracle(self) -> str:
        return str(self.current.unwrapped.oracle())  # type: ignore[attr-defined]

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        return self.current.step(action)

    def render(self) -> Any:
        return self.current.render()

    def close(self) -> None:
        for env in self.parts.values():
            env.close()

    def _begin(self, name: str, options: dict[str, Any] | None) -> tuple[str, dict[str, Any]]:
        self._current = name
        return self.parts[name].reset(seed=int(self.np_random.integers(_SEEDS)), options=options)


class MixtureEnv(_ComposedEnv):
    """Plays one of several tasks in each episode, drawn by weight.

    register_task("my/Mixed-v0", MixtureEnv, envs={"llm/Calculator-v0": 2, "llm/Countdown-v0": 1})

    A seed decides the task and its problem. `reset(options={"env_id": ...})` plays a given part; other options are
    passed to it.

    Args:
        envs: Weight by id; or by id a mapping with "weight" and the task's keyword arguments.
        split: Split of all parts, unless one has its own: "train" or "test".
        render_mode: None or "ansi".

    Raises:
        InvalidConfigError: If no part is given, or a weight is not above 0.
        UnknownTaskError: If a task does not exist.
    """

    def __init__(
        self,
        envs: Mapping[str, float | Mapping[str, Any]],
        split: str = "train",
        render_mode: str | None = None,
    ) -> None:
        if not isinstance(envs, Mapping) or not envs:
            raise InvalidConfigError(f"MixtureEnv: envs is {envs!r}; give weights by id, at least one.")
        self.weights: dict[str, float] = {}
        parts = {}
        for env_id, given in envs.items():
            kwargs = dict(given) if isinstance(given, Mapping) else {"weight": given}
            weight = kwargs.pop("weight", 1.0)
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < float("inf"):
                raise InvalidConfigError(f"MixtureEnv: the weight of {env_id} is {weight!r}; it must be above 0.")
            task_spec(env_id)
            self.weights[env_id] = float(weight)
            parts[env_id] = gym.make(env_id, **{"split": split, "render_mode": render_mode, **kwargs})
        super().__init__(parts, render_mode)
        self._cumulative = list(accumulate(weight / sum(self.weights.values()) for weight in self.weights.values()))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Draw a task and start an episode of it; its id is in `info["env_id"]`."""
        super().reset(seed=seed)
        name = list(self.weights)[choose(float(self.np_random.random()), self._cumulative)]
        options = dict(options or {})
        wanted = options.pop("env_id", name)
        check_choice("MixtureEnv", "part", wanted, self.parts)
        observation, info = self._begin(wanted, options or None)
        return observation, {**info, "env_id": wanted}


class CurriculumEnv(_ComposedEnv):
    """Plays one task, at a level that depends on the success so far.

    register_task("my/Climb-v0", CurriculumEnv, env_id="llm/Countdown-v0")

    The easiest level is played first; the next one opens when the last open one is mastered (see `Curriculum`). The
    level of an episode depends on the episodes before it, so a seed gives the same episode only after the same history.

    Args:
        env_id: The task's id.
        levels: Some of its levels, the easiest first; None: all, in the order of their declaration.
        split: "train" or "test".
        render_mode: None or "ansi".
        **curriculum: Arguments of `Curriculum`: `band`, `window`, `min_episodes`, `floor`.

    Raises:
        InvalidConfigError: If a setting is wrong.
        UnknownTaskError: If the task does not exist.
    """

    def __init__(
        self,
        env_id: str,
        levels: list[str] | None = None,
        split: str = "train",
        render_mode: str | None = None,
        **curriculum: Any,
    ) -> None:
        task_spec(env_id)
        task = gym.make(env_id).unwrapped
        if levels is None:
            if not isinstance(task, TextEnv):
                raise InvalidConfigError(f"CurriculumEnv: {env_id} declares no levels: pass them as levels=.")
            levels = list(task.difficulties)
        self.curriculum = Curriculum(levels, **curriculum)
        made = {name: gym.make(env_id, split=split, difficulty=name, render_mode=render_mode) for name in levels}
        super().__init__(made, render_mode)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Choose a level and start an episode of it; its name is in `info["difficulty"]`."""
        super().reset(seed=seed)
        cumulative = list(accumulate(self.curriculum.shares.values()))
        name = list(self.parts)[choose(float(self.np_random.random()), cumulative)]
        observation, info = self._begin(name, options)
        return observation, {**info, "difficulty": name}

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """Take a turn; the last one reports the episode's success to the curriculum."""
        observation, reward, terminated, truncated, info = super().step(action)
        if (terminated or truncated) and self._current is not None:
            self.curriculum.record(self._current, bool(info["is_success"]))
        return observation, reward, terminated, truncated, info

    def state_dict(self) -> dict[str, Any]:
        """Return the state that the choice of levels depends on, as JSON types."""
        return self.curriculum.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.curriculum.load_state_dict(state)
