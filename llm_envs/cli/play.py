"""`llm-envs play`: play a task, and print the conversation with its rewards."""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from llm_envs.cli.arguments import (
    ENV_HELP,
    add_env_arguments,
    add_sampling_arguments,
    env_kwargs_of,
    positive,
    require_text,
)
from llm_envs.cli.policy_options import add_player_arguments, open_player
from llm_envs.errors import LLMEnvsError, RolloutFailedError
from llm_envs.tracking.loggers import visible_text

if TYPE_CHECKING:
    import gymnasium as gym

    from llm_envs.types import Trajectory

__all__ = ["HumanPolicy", "add_arguments", "run"]

EXAMPLES = """
examples:
  llm-envs play llm/Calculator-v0 --difficulty easy
  llm-envs play llm/GuessNumber-v0 --policy human
  llm-envs play llm/Calculator-v0 --model runs/demo/model -n 20 --split test
  llm-envs play llm/Calculator-v0 --model NAME --engine api --url https://host/v1
  llm-envs play --config play.yaml --seed 3
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("env", metavar="ENV", help=ENV_HELP)
    parser.add_argument("-n", type=positive, default=1, metavar="N", help="problems, each played once; default 1")
    parser.add_argument(
        "--seed", type=int, default=0, help="the run's seed; equal seeds play equal episodes; default 0"
    )
    add_env_arguments(parser)
    add_sampling_arguments(parser)
    add_player_arguments(parser, "human")


class HumanPolicy:
    """A person at the terminal: prints the text that a model would see, and reads one line per turn."""

    def __init__(self, has_left: threading.Event | None = None) -> None:
        self.has_left = has_left or threading.Event()
        """Set when the input has ended; shared by all episodes."""
        self._has_begun = False

    def for_episode(self, seed: int) -> HumanPolicy:
        """Return a new policy that has printed nothing yet; see `policies.base.EpisodicPolicy`."""
        return HumanPolicy(self.has_left)

    def act(self, env: gym.Env[str, str], observation: str) -> str:
        """Print the new messages, and read the reply."""
        if self.has_left.is_set():
            raise EOFError("the input has ended")
        if not self._has_begun:
            self._has_begun = True
            if system_prompt := env.get_wrapper_attr("system_prompt"):
                print(visible_text(f"system: {system_prompt}"))
            for tool in env.get_wrapper_attr("tools"):
                print(visible_text(f"tool: {json.dumps(tool['function'], ensure_ascii=False)}"))
        print(visible_text(observation))
        try:
            return input("> ")
        except EOFError:
            self.has_left.set()
            print()
            raise


def run(arguments: argparse.Namespace) -> None:
    """Play, and print the episodes."""
    from llm_envs.rollout import Collector
    from llm_envs.types import SamplingParams

    sampling = SamplingParams(temperature=arguments.temperature, max_new_tokens=arguments.max_turn_tokens)
    env_kwargs = env_kwargs_of(arguments)
    arguments.env = require_text(arguments.env, env_kwargs)
    episodes: list[Trajectory] = []
    with (
        open_player(arguments, {"human": HumanPolicy}) as (policy, codec),
        Collector(
            arguments.env,
            policy,
            codec=codec,
            env_kwargs=env_kwargs,
            sampling=sampling,
            seed=arguments.seed,
            max_concurrency=1 if isinstance(policy, HumanPolicy) else 64,
            max_retries=0,
            progress=arguments.model is not None,
        ) as collector,
    ):
        try:
            episodes = [episode for group in collector.collect(arguments.n) for episode in group]
        except RolloutFailedError:
            if not (isinstance(policy, HumanPolicy) and policy.has_left.is_set()):
                raise
    if isinstance(policy, HumanPolicy) and policy.has_left.is_set():
        played = [episode for episode in episodes if episode.status == "ok"]
        _show(played, only_the_end=True)
        raise LLMEnvsError(f"the input ended: {len(played)} of {arguments.n} episodes were played to their end.")
    _show(episodes, only_the_end=isinstance(policy, HumanPolicy))
    failures = [episode.error for episode in episodes if episode.error is not None]
    if failures:
        first = f"{failures[0].kind} in {failures[0].where}: {failures[0].message}"
        is_oracle = failures[0].where == "policy" and arguments.policy == "oracle"
        hint = " To play without an oracle, give --policy human or random, or a --model." if is_oracle else ""
        raise LLMEnvsError(f"{len(failures)} of {len(episodes)} episodes failed; the first by {first}{hint}")


def _show(episodes: Sequence[Trajectory], *, only_the_end: bool) -> None:
    from llm_envs.evaluation.run import summarize
    from llm_envs.types import inspect_trajectory

    for episode in episodes:
        if only_the_end:
            print(visible_text("\n".join(_last_words(episode))))
        else:
            print(visible_text(inspect_trajectory(episode)), end="\n\n")
    if any(episode.status == "ok" for episode in episodes):
        print(visible_text(str(summarize(episodes))))


def _last_words(episode: Trajectory) -> list[str]:
    """Return the lines that the person has not seen yet: the messages after their last turn, and the outcome."""
    words: list[str] = []
    for message in reversed(episode.messages):
        if message.role == "assistant":
            break
        words.insert(0, message.content)
    if last := episode.metadata.get("final_observation"):  # it needs no answer, so it is not in `messages`
        words.append(str(last))
    return [
        *(words if episode.turns else []),
        f"[{episode.stop_reason.value}, success={episode.is_success}, reward {episode.reward:g}]",
    ]
