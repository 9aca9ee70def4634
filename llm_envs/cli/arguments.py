"""Arguments and argument types that several commands share."""

from __future__ import annotations

import argparse
import ipaddress
import math
import re
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from llm_envs.cli.parser import json_object
from llm_envs.errors import InvalidConfigError
from llm_envs.objects import env_id

if TYPE_CHECKING:
    from llm_envs.data.shards import Shard

ENV_HELP = "a task id, or FILE.py:NAME of an environment of yours"

__all__ = [
    "ENV_HELP",
    "add_env_arguments",
    "add_host_argument",
    "add_rollout_arguments",
    "add_sampling_arguments",
    "add_shard_argument",
    "arrangement_of",
    "check_one",
    "env_kwargs_of",
    "number",
    "port",
    "positive",
    "require_model",
    "require_text",
    "rules_of",
    "seconds",
    "temperature",
    "warn_of_every_address",
]

HUB_NAME = re.compile(r"\w[\w.-]*/[\w.-]+")
_MODEL_MARKS = ("config.json", "adapter_config.json", "params.json", "tokenizer_config.json", "tokenizer.json")
"""A saved model, or the tokenizer of a served one, has at least one of these files."""
"""A model name on a hub: `owner/name`."""


def check_one(given: dict[str, Any]) -> None:
    """Check that exactly one of several options is given.

    Args:
        given: The option -> its value.

    Raises:
        InvalidConfigError: If none or several are.
    """
    names = [name for name, value in given.items() if value]
    if len(names) != 1:
        found = f"{' and '.join(names)} exclude each other" if names else f"{' or '.join(given)} is missing"
        raise InvalidConfigError(f"{found}{': give one' if len(given) > 1 else ''}.")


def number(what: str, is_valid: Callable[[Any], bool], kind: Callable[[str], Any] = float) -> Callable[[str], Any]:
    """Return the type of an option that is a finite number.

    Args:
        what: The numbers that it takes, for the error.
        is_valid: Whether a number is one of them.
        kind: Reads a number.
    """

    def read(text: str) -> Any:
        with suppress(ValueError, OverflowError):
            value = kind(text)
            if math.isfinite(value) and is_valid(value):
                return value
        raise argparse.ArgumentTypeError(f"{text} is not {what}")

    return read


positive = number("an integer of at least 1", lambda value: value >= 1, int)
port = number("a port, 0 to 65535", lambda value: 0 <= value < 65536, int)
seconds = number("a number of seconds above 0", lambda value: value > 0)
temperature = number("a number of at least 0 (0 is greedy)", lambda value: value >= 0)


def concurrency(text: str) -> int | Literal["auto"]:
    """Read a number of episodes, or "auto"."""
    read = number("an integer of at least 1, or auto", lambda value: value >= 1, int)
    return "auto" if text == "auto" else int(read(text))


def add_shard_argument(parser: argparse._ActionsContainer) -> None:
    """Add `--shard`."""
    parser.add_argument(
        "--shard",
        type=shard,
        metavar="I/N",
        help="play only shard I of N, into a folder of that name in --out; llm-envs merge joins them",
    )


def shard(text: str) -> Shard:
    """Read "0/4"."""
    from llm_envs.data.shards import Shard

    try:
        return Shard.parse(text)
    except InvalidConfigError as error:
        raise argparse.ArgumentTypeError(str(error).rstrip(".")) from error


def add_env_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the environment."""
    parser.add_argument("--split", help="train or test; default: the task's default")
    parser.add_argument("--difficulty", metavar="LEVEL", help="level of the task; default: the task's default")
    parser.add_argument(
        "--env-kwargs", type=json_object, metavar="JSON", help="more arguments of the task, as a JSON object"
    )


def env_kwargs_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the values of `add_env_arguments`.

    Raises:
        InvalidConfigError: If two values contradict each other.
    """
    kwargs: dict[str, Any] = dict(arguments.env_kwargs or {})
    for name in ("split", "difficulty"):
        value = getattr(arguments, name)
        if value is not None and kwargs.setdefault(name, value) != value:
            raise InvalidConfigError(f"--{name} is {value!r} but --env-kwargs has {kwargs[name]!r}: give only one.")
    return kwargs


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sampling options."""
    parser.add_argument(
        "--temperature", type=temperature, default=1.0, help="sampling temperature, default 1; 0 is greedy"
    )
    parser.add_argument("--max-turn-tokens", type=positive, default=512, help="tokens per turn, default 512")


def add_host_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--host`; the command calls `warn_of_every_address`."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; default: only for this machine")


def warn_of_every_address(host: str, can: str) -> None:
    """Warn if a host means every address of this machine, however it is written (0.0.0.0, ::, 0).

    Args:
        host: The value of `--host`.
        can: The action that the token allows.
    """
    addresses = []
    with suppress(OSError):  # a name that nobody knows: listening on it fails
        addresses = [str(found[4][0]) for found in socket.getaddrinfo(host or "0.0.0.0", None, type=socket.SOCK_STREAM)]
    if any(ipaddress.ip_address(address).is_unspecified for address in addresses):
        print(
            f"llm-envs: warning: --host {host} listens on every address of this machine: whoever reaches one and has "
            f"the token can {can}, and nothing is encrypted. Give the address of a trusted network, or use an SSH "
            "tunnel.",
            file=sys.stderr,
        )


def add_rollout_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that limit and arrange the episodes of a run."""
    parser.add_argument("--max-turns", type=positive, help="turns per episode; default: the task's limit")
    parser.add_argument("--max-step-s", type=seconds, help="seconds allowed for one step of the task")
    parser.add_argument(
        "--max-concurrency",
        type=concurrency,
        default=64,
        metavar="N",
        help="concurrent episodes, or auto: as many as raise the throughput; default 64",
    )
    parser.add_argument(
        "--workers", type=positive, metavar="N", help="run tasks in N processes, in case they hang or crash"
    )
    parser.add_argument(
        "--env-servers",
        nargs="+",
        metavar="HOST:PORT",
        help="addresses of llm-envs serve-envs, which run tasks; --workers limits them",
    )
    parser.add_argument(
        "--history",
        choices=["append", "template"],
        default="append",
        help="show the model its earlier turns as it wrote them, or as the chat template renders them",
    )
    parser.add_argument("--window", type=positive, metavar="TURNS", help="show the model only its last turns")


def rules_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the sampling, the limits and the history of a collector; without a temperature it is 1."""
    from llm_envs.rollout import RolloutLimits
    from llm_envs.types import SamplingParams

    heat = 1.0 if arguments.temperature is None else arguments.temperature
    return {
        "sampling": SamplingParams(temperature=heat, max_new_tokens=arguments.max_turn_tokens or 512),
        "limits": RolloutLimits(max_turns=arguments.max_turns, max_step_s=arguments.max_step_s),
        "history": arguments.history,
    }


def arrangement_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the other arguments of a collector that `add_rollout_arguments` has."""
    from llm_envs.rollout import create_window

    return {
        "max_concurrency": arguments.max_concurrency,
        "workers": arguments.workers or 0,
        "env_servers": arguments.env_servers or (),
        "context_fn": None if arguments.window is None else create_window(arguments.window),
    }


def require_text(task: str, env_kwargs: dict[str, Any]) -> str:
    """Return an environment's id; refuse an unknown one, one without text spaces, or arguments that it does not take.

    Args:
        task: An id, or `FILE.py:NAME` (`llm_envs.objects`).
        env_kwargs: The environment's arguments.
    """
    import gymnasium as gym

    from llm_envs.registration import task_spec
    from llm_envs.rollout.workers.runner import close_env, make_env

    task_id = env_id(task)
    task_spec(task_id)
    env = make_env(task_id, env_kwargs)
    try:
        if not all(isinstance(space, gym.spaces.Text) for space in (env.observation_space, env.action_space)):
            raise InvalidConfigError(
                f"{task} has the spaces {str(env.observation_space)[:80]} and {str(env.action_space)[:80]}; both "
                "must be gymnasium.spaces.Text. llm_envs.bridges.gymnasium.GymnasiumEnv puts small spaces into words."
            )
    finally:
        close_env(env)
    return task_id


def require_model(name: str, option: str) -> None:
    """Refuse a missing path, which a loader would look for on a model hub, and a folder without model and tokenizer."""
    if not Path(name).is_dir() and HUB_NAME.fullmatch(name) is None:
        raise InvalidConfigError(f"{option} {name}: there is no such folder. Give a folder with a saved model.")
    if Path(name).is_dir() and not any((Path(name) / mark).is_file() for mark in _MODEL_MARKS):
        raise InvalidConfigError(f"{option} {name}: the folder holds no model, it has no {_MODEL_MARKS[0]}.")
