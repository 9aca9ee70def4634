"""`--agent FILE.py:NAME`: the `AgentEnv` of a module, which stands where a command takes environments.

The hooks are described in `llm_envs.cli.room_options`.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llm_envs.errors import InvalidConfigError, counted
from llm_envs.objects import absolute_name, load_object, named_source

if TYPE_CHECKING:
    from llm_envs.agents import AgentEnv
    from llm_envs.chat.codec import ChatCodec
    from llm_envs.types import Trajectory

__all__ = ["PLAYED", "TrainingOptions", "add_arguments", "examine", "load_agent", "played_settings", "read_played"]

PLAYED = "--agent"
EXAMPLES = {
    "collect": "  llm-envs collect --agent my_agent.py:ENV --model DIR -n 100 --group-size 4 "
    "--workers 8 --out runs/agent\n",
    "eval": "  llm-envs eval --agent my_agent.py:ENV --model DIR -n 100 --out runs/agent\n",
    "doctor": "  llm-envs doctor DIR --agent my_agent.py:ENV\n",
}
AGENT_HELP = "an AgentEnv (FILE.py:NAME or module:NAME)"


@dataclass
class TrainingOptions:
    """The agent that is trained."""

    agent: str | None = field(default=None, metadata={"help": f"{AGENT_HELP}, in place of --env."})

    def played(self) -> AgentEnv | None:
        """Return the agent, if it is given."""
        return load_agent(self.agent) if self.agent else None


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Add `--agent`."""
    if command != "doctor":
        parser.add_argument(PLAYED, metavar="FILE:NAME", help=f"{AGENT_HELP}, in place of ENV; needs --model")
        return
    parser.add_argument(
        PLAYED, metavar="FILE:NAME", help=f"{AGENT_HELP}: play one episode with the model, and show each request"
    )
    parser.add_argument("--agent-seed", type=int, default=0, metavar="SEED", help="seed of that episode; default 0")


def load_agent(name: str) -> AgentEnv:
    """Return the `AgentEnv` that `FILE.py:NAME` or `module:NAME` names.

    Raises:
        InvalidConfigError: If it cannot be imported, or has no such `AgentEnv`.
    """
    from llm_envs.agents import AgentEnv

    found: AgentEnv = load_object("--agent", name, AgentEnv)
    return found


def read_played(arguments: argparse.Namespace) -> AgentEnv | None:
    """Return the agent of `collect` or `eval`, if it is given.

    Raises:
        InvalidConfigError: If another option has no meaning for an agent.
    """
    if arguments.agent is None:
        return None
    refused = {
        "exclude": "--agent is one environment: leave out --exclude.",
        "window": "the agent chooses what the model sees: leave out --window.",
        "env_servers": "agents ask a server on this machine: leave out --env-servers, and give --workers.",
        "ray": "agents do not play in Ray actors: leave out --ray.",
    }
    for option, why in refused.items():
        if getattr(arguments, option, None):
            raise InvalidConfigError(why)
    if arguments.model is None or "api" in (arguments.engine, arguments.policy):
        raise InvalidConfigError(
            "--agent needs --model with an engine whose tokens are kept: transformers, vllm, server."
        )
    return load_agent(arguments.agent)


def played_settings(arguments: argparse.Namespace, agent: Any) -> dict[str, Any]:
    """Return what identifies an agent in the settings of a run; nothing without one."""
    from llm_envs.sources.source import fingerprint_of

    if (name := arguments.agent) is None:
        return {}
    tasks = {split: fingerprint_of(tasks) for split, tasks in (agent.tasks or {}).items()}
    found = {"agent": absolute_name(name)} | ({"agent_tasks": tasks} if tasks else {})
    return found if agent.reward_fn is None else found | {"agent_reward": named_source(agent.reward_fn)}


def examine(arguments: argparse.Namespace) -> Callable[[ChatCodec, bool], str | None] | None:
    """Return the function that plays and shows `doctor`'s agent and returns what is wrong, if one is given."""
    if arguments.agent is None:
        return None
    agent = load_agent(arguments.agent)
    return lambda codec, colour: _show_agent(agent, arguments, codec, colour)


def _show_agent(agent: AgentEnv, arguments: argparse.Namespace, codec: ChatCodec, colour: bool) -> str | None:
    """Play one episode of the agent with the model, print its requests and rows, and return why it has no score."""
    from llm_envs import doctor
    from llm_envs.agents.report import show_session
    from llm_envs.agents.session import PolicySession
    from llm_envs.policies.transformers import TransformersPolicy
    from llm_envs.sources.source import EpisodeSpec

    sessions: list[PolicySession] = []

    async def play() -> Trajectory:
        policy = TransformersPolicy.from_pretrained(arguments.model)
        try:
            spec = EpisodeSpec(agent.env_id, {}, arguments.agent_seed)
            return await agent.play_episode(spec, policy, codec=codec, on_session=sessions.append)
        finally:
            await policy.aclose()

    trajectory = asyncio.run(play())
    print(f"\n{agent.env_id}, an episode of the agent with the model")
    print(show_session(sessions[0], trajectory))
    for number, row in enumerate(trajectory.rows):
        print(f"\nrow {number}: {counted(len(row), 'token')}; trained: {int(row.mask.sum())}, marked")
        print(doctor.show_row(codec, row, colour=colour))
    why = trajectory.why_unscored
    return None if why is None else f"the agent's episode has no score: {why}"
