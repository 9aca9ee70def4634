"""`--agent FILE.py:NAME`: the `AgentEnv` of a module, which stands where a command takes environments."""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_envs.errors import InvalidConfigError

if TYPE_CHECKING:
    from llm_envs.agents import AgentEnv

__all__ = ["AGENT_HELP", "add_agent_argument", "agent_settings", "check_one", "load_agent", "read_agent"]

AGENT_HELP = "an AgentEnv (FILE.py:NAME or module:NAME)"


def add_agent_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--agent`, in place of ENV."""
    parser.add_argument("--agent", metavar="FILE:NAME", help=f"{AGENT_HELP}, in place of ENV; needs --model")


def load_agent(name: str) -> AgentEnv:
    """Return the `AgentEnv` that `FILE.py:NAME` or `module:NAME` names.

    A file is imported as a module of its folder, so it can import its neighbours, and worker processes can import it.

    Raises:
        InvalidConfigError: If it cannot be imported, or has no such `AgentEnv`.
    """
    from llm_envs.agents import AgentEnv

    place, _, variable = name.rpartition(":")
    if not place or not variable:
        raise InvalidConfigError(f"--agent {name}: it must be FILE.py:NAME or module:NAME of an AgentEnv.")
    path = Path(place).resolve() if place.endswith(".py") else None
    if path is not None and not path.is_file():
        raise InvalidConfigError(f"--agent {name}: the file {place} does not exist.")
    try:
        if path is not None and str(path.parent) not in sys.path:
            sys.path.insert(0, str(path.parent))
        module = importlib.import_module(place if path is None else path.stem)
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        where = f", {Path(frames[-1].filename).name} line {frames[-1].lineno}" if frames else ""
        what = f"{type(error).__name__}: {error}{where}"
        raise InvalidConfigError(f"--agent {name}: {place} cannot be imported ({what}).") from error
    if path is not None and Path(getattr(module, "__file__", None) or "").resolve() != path:
        raise InvalidConfigError(
            f"--agent {name}: a module {path.stem!r} is loaded already; give the file another name."
        )
    found = getattr(module, variable, None)
    if not isinstance(found, AgentEnv):
        what = "nothing" if found is None else f"a {type(found).__name__}"
        raise InvalidConfigError(f"--agent {name}: it is {what}; it must be an AgentEnv.")
    return found


def read_agent(arguments: argparse.Namespace) -> AgentEnv | None:
    """Return the agent of `collect` or `eval`; None: environments are given.

    Raises:
        InvalidConfigError: If both or neither are given, or another option has no meaning for an agent.
    """
    check_one({"ENV": arguments.envs, "--agent": arguments.agent})
    if arguments.agent is None:
        return None
    refused = {
        "exclude": "--agent is one environment: leave out --exclude.",
        "window": "the agent chooses what the model sees: leave out --window.",
        "env_servers": "agents ask a server on this machine: leave out --env-servers, and give --workers.",
        "ray": "agents do not play in Ray actors: leave out --ray.",
    }
    for option, why in refused.items():
        if getattr(arguments, option):
            raise InvalidConfigError(why)
    if arguments.model is None or "api" in (arguments.engine, arguments.policy):
        raise InvalidConfigError(
            "--agent needs --model with an engine whose tokens are kept: transformers, vllm, server."
        )
    return load_agent(arguments.agent)


def agent_settings(name: str | None, agent: Any) -> dict[str, Any]:
    """Return what identifies an agent in the settings of a run; nothing without one.

    Args:
        name: The option's value.
        agent: Its `AgentEnv`.
    """
    from llm_envs.sources.source import fingerprint_of

    if name is None:
        return {}
    place, _, variable = name.rpartition(":")
    place = str(Path(place).resolve()) if place.endswith(".py") else place
    tasks = {split: fingerprint_of(tasks) for split, tasks in (agent.tasks or {}).items()}
    return {"agent": f"{place}:{variable}"} | ({"agent_tasks": tasks} if tasks else {})


def check_one(given: dict[str, Any]) -> None:
    """Check that exactly one of several options is given.

    Args:
        given: The option -> its value.

    Raises:
        InvalidConfigError: If none or several are.
    """
    names = [name for name, value in given.items() if value]
    if len(names) != 1:
        found = f"{' and '.join(names)} are given" if names else "none is given"
        raise InvalidConfigError(f"{' or '.join(given)}: {found}, one is needed.")
