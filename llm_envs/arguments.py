"""What the arguments of several commands have in common: their types, and what they stand for."""

from __future__ import annotations

import argparse
import json
import math
import re
from pathlib import Path
from typing import Any

from llm_envs.errors import InvalidConfigError

__all__ = [
    "add_env_arguments",
    "add_sampling_arguments",
    "env_kwargs_of",
    "positive",
    "require_model",
    "require_text",
    "temperature",
]

HUB_NAME = re.compile(r"\w[\w.-]*/[\w.-]+")
"""What a model that is no folder may look like: `owner/name`."""


def positive(text: str) -> int:
    """Read a whole number of at least 1."""
    try:
        value = int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1") from error
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def seconds(text: str) -> float:
    """Read a duration."""
    value = float(text)
    if not math.isfinite(value) or value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds above 0")
    return value


def temperature(text: str) -> float:
    """Read a sampling temperature."""
    value = float(text)
    if not math.isfinite(value) or value < 0:
        raise argparse.ArgumentTypeError(f"{text} is not a number of at least 0 (0 is greedy)")
    return value


def json_object(text: str) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f'{text} is no JSON object; for example \'{{"difficulty": "easy"}}\'')
    return value


def add_env_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what is handed to the environment."""
    parser.add_argument("--split", help="train or test; default: the task's own")
    parser.add_argument("--difficulty", help="one of the task's levels")
    parser.add_argument(
        "--env-kwargs", type=json_object, metavar="JSON", help="further arguments of the task, as a JSON object"
    )


def env_kwargs_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what `add_env_arguments` was given.

    Raises:
        InvalidConfigError: If a value was given twice, and not the same.
    """
    kwargs: dict[str, Any] = dict(arguments.env_kwargs or {})
    for name in ("split", "difficulty"):
        value = getattr(arguments, name)
        if value is not None and kwargs.setdefault(name, value) != value:
            raise InvalidConfigError(f"--{name} says {value!r} but --env-kwargs {kwargs[name]!r}: give one of them.")
    return kwargs


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """Add how a model samples."""
    parser.add_argument(
        "--temperature", type=temperature, default=1.0, help="of the model's sampling, default 1; 0 is greedy"
    )
    parser.add_argument("--max-new-tokens", type=positive, default=512, help="per turn of the model, default 512")


def require_text(task_id: str, env_kwargs: dict[str, Any]) -> None:
    """Refuse an environment of Gymnasium's that is none of texts, and arguments that it does not take."""
    import gymnasium as gym

    env = gym.make(task_id, **env_kwargs)
    try:
        if not all(isinstance(space, gym.spaces.Text) for space in (env.observation_space, env.action_space)):
            raise InvalidConfigError(f"{task_id} is no text environment; `llm-envs list` names those that are.")
    finally:
        env.close()


def require_model(name: str, option: str) -> None:
    """Refuse a path to nothing, which would otherwise be looked for on a model hub."""
    if not Path(name).is_dir() and HUB_NAME.fullmatch(name) is None:
        raise InvalidConfigError(f"{option} {name}: there is no such folder. It takes one with a saved model.")
