"""Held-out problems of the train split, to choose the best checkpoint without the test split.

A hash of the problem (the task's `split_key`, else the first observation) assigns it to one part, whatever the seed.
So no held-out problem is ever trained on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from llm_envs.errors import InvalidConfigError
from llm_envs.evaluation.run import summarize
from llm_envs.policies.base import Policy
from llm_envs.rollout import Collector, EnvChoice, SeedSource, derive_seed
from llm_envs.sources.source import Envs
from llm_envs.trainers.episodes.items import epoch_length

if TYPE_CHECKING:
    from llm_envs.trainers.loop.state import TrainingState

__all__ = ["HeldOutEnv", "create_eval_fn", "hold_out", "is_held_out"]

# Enough even for a share of 0.01: the chance to draw none is 0.99^1000, about 1 in 20,000.
_MAX_DRAWS = 1000


def is_held_out(key: Any, share: float) -> bool:
    """Return whether a problem is held out, by a hash of its canonical JSON. This holds for about `share` of them."""
    text = json.dumps(key, sort_keys=True, separators=(",", ":"), default=str)
    digest = hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8, person=b"held-out").digest()
    return int.from_bytes(digest, "big") < share * 2**64


class HeldOutEnv(gym.Wrapper[str, str, str, str]):
    """An environment that plays the problems of one part only: `reset` redraws until it gets one.

    A given problem (`options={"problem": ...}`) is played in either part.

    Args:
        env: The environment.
        share: Share of the problems that are held out.
        held_out: Whether to play the held-out part.
    """

    def __init__(self, env: gym.Env[str, str], share: float, held_out: bool) -> None:
        super().__init__(env)
        self.share, self.held_out = share, held_out

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode; the same seed gives the same problem.

        Raises:
            InvalidConfigError: If none of many problems drawn belongs to the part.
        """
        result = self.env.reset(seed=seed, options=options)
        # The caller chose the problem: `hold_out` has divided a list of problems already.
        if options and options.get("problem") is not None:
            return result
        for number in range(_MAX_DRAWS):
            if is_held_out(_key(self.env.unwrapped, result[0]), self.share) == self.held_out:
                return result
            # Derived from the seed, so that the same seed always gives the same problem.
            next_seed = None if seed is None else derive_seed(seed, "held out", number)
            result = self.env.reset(seed=next_seed, options=options)
        part = "held out" if self.held_out else "trained on"
        raise InvalidConfigError(
            f"{_MAX_DRAWS} problems of {type(self.env.unwrapped).__name__} were drawn and none is {part} "
            f"(share={self.share}): it has too few."
        )


def hold_out(
    envs: Envs, *, share: float = 0.1, env_kwargs: Mapping[str, Any] | None = None
) -> tuple[list[EnvChoice], list[EnvChoice]]:
    """Return environments for training, and the same for held-out problems, for `Collector` or `SeedSource`.

    Args:
        envs: Environments, as for `Collector`.
        share: Share of the problems that are held out, between 0 and 1.
        env_kwargs: Arguments common to all environments; `split` defaults to "train" (None omits it).

    Raises:
        InvalidConfigError: If `share` is out of range, or the split is "test".
    """
    if not 0.0 < share < 1.0:
        raise InvalidConfigError(f"share is {share!r}; it must lie between 0 and 1.")
    common = {"split": "train"} | dict(env_kwargs or {})
    choices = SeedSource(envs, env_kwargs=common).choices
    parts: list[list[EnvChoice]] = []
    for held_out in (False, True):
        part = []
        for choice in choices:
            kwargs = {k: v for k, v in choice.kwargs.items() if not (k == "split" and v is None)}
            _check_split(choice.env_id, kwargs)
            problems = choice.problems
            if problems is not None:
                problems = [p for p in problems if is_held_out(dict(p), share) == held_out]
            factory = _Maker(choice.env_id, choice.factory, share, held_out)
            part.append(replace(choice, kwargs=kwargs, factory=factory, problems=problems))
        parts.append(part)
    return parts[0], parts[1]


def create_eval_fn(
    envs: Envs, policy: Policy, *, n: int = 64, seed: int = 0, **settings: Any
) -> Callable[[TrainingState], dict[str, float]]:
    """Return a function that measures the policy on the same `n` episodes each time.

    Args:
        envs: The second part of `hold_out`.
        policy: The trained policy; its weights are up to date when `train` calls the function.
        n: Number of episodes, each with another seed; fewer if there are fewer problems.
        seed: Seed of the choice of episodes.
        **settings: Other arguments of `Collector`: `codec`, `sampling`, `limits`, ...

    Returns:
        A function of the state that returns `success`, `reward`, `n` (scored episodes) and `turns`.

    Raises:
        InvalidConfigError: If an environment would play the test split.
    """
    choices = SeedSource(envs).choices
    for choice in choices:
        _check_split(choice.env_id, choice.kwargs)
    n_episodes = epoch_length(choices, n)

    def measure(state: TrainingState) -> dict[str, float]:
        with Collector(envs, policy, seed=seed, **({"progress": False} | settings)) as collector:
            result = summarize([t for group in collector.collect(n_episodes) for t in group])
        return {
            "success": result.success_rate,
            "reward": result.mean_reward,
            "turns": result.mean_turns,
            "n": float(result.n),
        }

    return measure


@dataclass(frozen=True)
class _Maker:
    """Makes environments of one part. A class, so that it pickles."""

    env_id: str
    factory: Callable[..., gym.Env[str, str]] | None
    share: float
    held_out: bool

    def __call__(self, **kwargs: Any) -> gym.Env[str, str]:
        make = self.factory
        env = gym.make(self.env_id, disable_env_checker=True, **kwargs) if make is None else make(**kwargs)
        return HeldOutEnv(env, self.share, self.held_out)


def _check_split(env_id: str, kwargs: Mapping[str, Any]) -> None:
    if kwargs.get("split") == "test":
        raise InvalidConfigError(f"{env_id}: split='test' is for measuring, not for choosing (hold_out).")


def _key(env: gym.Env[Any, Any], observation: str) -> Any:
    """Return the key of a problem: the task's own, or its first observation."""
    problem, split_key = getattr(env, "problem", None), getattr(env, "split_key", None)
    return observation if problem is None or split_key is None else split_key(problem)
