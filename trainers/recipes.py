"""Published algorithms as settings of `EnvGRPOConfig` and functions for `EnvGRPOTrainer`: values, not branches.

recipe = make_recipe("dapo", max_completion_length=512)
args = EnvGRPOConfig(output_dir="runs/dapo", max_completion_length=512, **recipe.settings)
EnvGRPOTrainer(model, env, args, **recipe.hooks)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from llm_envs.errors import InvalidConfigError
from llm_envs.rewards import create_overlong_penalty
from llm_envs.rollout.filters import create_spread_filter
from llm_envs.trainers.functional.advantages import (
    batch_leave_one_out_baseline,
    create_reinforce,
    leave_one_out,
)
from llm_envs.trainers.functional.losses import policy_gradient
from llm_envs.trainers.functional.turn_advantages import create_per_turn

__all__ = ["RECIPES", "Recipe", "make_recipe"]


@dataclass(frozen=True)
class Recipe:
    """What makes an algorithm."""

    settings: Mapping[str, Any]
    """Fields of `EnvGRPOConfig`."""
    hooks: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of `EnvGRPOTrainer`."""


def _grpo(max_completion_length: int) -> Recipe:
    """Group-normalised advantages, each sequence weighs the same (DeepSeekMath, arXiv 2402.03300)."""
    return Recipe({"loss_type": "grpo", "scale_rewards": "group"})


def _dr_grpo(max_completion_length: int) -> Recipe:
    """No division by lengths or standard deviations (arXiv 2503.20783)."""
    return Recipe({"loss_type": "dr_grpo", "scale_rewards": "none"})


def _dapo(max_completion_length: int) -> Recipe:
    """All four parts of DAPO (arXiv 2503.14476).

    Decoupled clipping (0.2 and 0.28), dynamic sampling (groups without spread are replaced), a loss per token, and the
    soft punishment of over-long answers, over the last fifth of the length. No KL.
    """
    overlong = create_overlong_penalty(max_completion_length, max(max_completion_length // 5, 1))
    settings = {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28, "beta": 0.0, "scale_rewards": "group"}
    return Recipe(settings, {"group_filter": create_spread_filter(), "reward_fns": {"overlong": overlong}})


def _gspo(max_completion_length: int) -> Recipe:
    """One importance ratio a sequence, clipped closely (arXiv 2507.18071)."""
    settings = {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4}
    return Recipe(settings | {"scale_rewards": "group"})


def _cispo(max_completion_length: int) -> Recipe:
    """Clipped importance weights in front of the log-probability (MiniMax-M1, arXiv 2506.13585)."""
    return Recipe({"loss_type": "cispo", "epsilon_high": 5.0, "scale_rewards": "group"})


def _rloo(max_completion_length: int) -> Recipe:
    """Each episode against the mean of the others of its group (arXiv 2402.14740)."""
    return Recipe({"loss_type": "dapo"}, {"advantage_fn": leave_one_out})


def _reinforce(max_completion_length: int) -> Recipe:
    """Log-probabilities weighted by the reward less the mean of all other episodes of the batch (Williams, 1992)."""
    advantage_fn = create_reinforce(batch_leave_one_out_baseline)
    return Recipe({"loss_type": "dapo"}, {"advantage_fn": advantage_fn, "loss_fn": policy_gradient})


def _per_turn(max_completion_length: int) -> Recipe:
    """Each turn's return-to-go against the group's others at that turn (arXiv 2505.11821); a loss per token."""
    return Recipe({"loss_type": "dapo"}, {"advantage_fn": create_per_turn(scale=True)})


RECIPES: Mapping[str, Callable[[int], Recipe]] = MappingProxyType(
    {
        "grpo": _grpo,
        "dr_grpo": _dr_grpo,
        "dapo": _dapo,
        "gspo": _gspo,
        "cispo": _cispo,
        "rloo": _rloo,
        "reinforce": _reinforce,
        "per_turn": _per_turn,
    }
)
"""Name -> (max_completion_length) -> recipe."""


def make_recipe(name: str, *, max_completion_length: int = 256) -> Recipe:
    """Return a recipe by name.

    Args:
        name: One of `RECIPES`.
        max_completion_length: As in the config: the over-long punishment of "dapo" depends on it.

    Raises:
        InvalidConfigError: If there is none of the name.
    """
    if name not in RECIPES:
        raise InvalidConfigError(f"there is no recipe {name!r}; there are {', '.join(RECIPES)}.")
    return RECIPES[name](max_completion_length)
