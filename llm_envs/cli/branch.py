"""`llm-envs branch`: play a stored episode again from one of its turns on, many times, and show what comes of it."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from llm_envs.cli.arguments import (
    add_rollout_arguments,
    add_sampling_arguments,
    arrangement_of,
    positive,
    rules_of,
)
from llm_envs.cli.next_line import name_next
from llm_envs.cli.parser import Flag
from llm_envs.cli.policy_options import add_player_arguments, open_player, player_settings
from llm_envs.errors import InvalidConfigError, LLMEnvsError, counted
from llm_envs.objects import env_id
from llm_envs.tracking.loggers import visible_text

if TYPE_CHECKING:
    from llm_envs.types import Trajectory, TrajectoryGroup

__all__ = ["add_arguments", "run"]

EXAMPLES = """
examples:
  llm-envs branch runs/eval --episode 3/0 --turn 1 --times 16 --model DIR
  llm-envs branch runs/eval --episode 3/0 --turn 0 --times 64 --model DIR --policy vllm --out runs/branches
  llm-envs branch runs/eval --episode 3/0 --turn 2 --policy oracle --json
  llm-envs branch runs/eval --episode 3/0 --turn all --times 32 --model DIR

The options of sampling and history should equal the stored run's.
"""
MAX_REPLIES = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("folder", metavar="RUN", help="folder of the run that has the episode")
    parser.add_argument("--env", metavar="ENV", help="FILE.py:NAME of the episode's environment, if it was so named")
    parser.add_argument("--episode", required=True, metavar="GROUP/MEMBER", help="the episode; its report names it")
    parser.add_argument(
        "--turn", type=_turn, required=True, metavar="T", help="the first new turn, from 0; all: the value of each turn"
    )
    parser.add_argument("--times", type=positive, default=16, metavar="N", help="how often to play on; default 16")
    parser.add_argument("--seed", type=int, default=0, help="the run's seed: of the new turns; default 0")
    parser.add_argument("--out", metavar="DIR", help="output folder of the new episodes")
    parser.add_argument("--json", action=Flag, help="print the outcomes as JSON")
    add_sampling_arguments(parser)
    add_rollout_arguments(parser)
    add_player_arguments(parser)


def _turn(text: str) -> int | str:
    if text != "all" and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is neither a number from 0 nor all")
    return text if text == "all" else int(text)


def run(arguments: argparse.Namespace) -> int:
    """Branch, and return the exit code."""
    from llm_envs.data.writer import TrajectoryWriter, check_folder
    from llm_envs.rollout.fork import branch_each, replay_to

    if arguments.env is not None:
        env_id(arguments.env)  # registers it
    episode = _episode(arguments.folder, arguments.episode)
    turns = range(len(episode.turns)) if arguments.turn == "all" else [arguments.turn]
    replay_to(episode, min(max([0, *turns]), len(episode.turns))).env.close()  # before a model is loaded
    settings = {
        "branch_of": {"run": arguments.folder, "episode": arguments.episode, "turn": arguments.turn},
        "seed": arguments.seed,
        "temperature": arguments.temperature,
        **player_settings(arguments),
    }
    if arguments.out is not None:
        check_folder(arguments.out, settings, resume=False)
    with open_player(arguments) as (policy, codec):
        groups = branch_each(
            episode,
            turns,
            arguments.times,
            policy,
            codec=codec,
            seed=arguments.seed,
            progress=arguments.model is not None,
            **rules_of(arguments),
            **arrangement_of(arguments),
        )
    if arguments.out is not None:
        with TrajectoryWriter(arguments.out, settings=settings) as writer:
            for trajectory in (member for group in groups for member in group):
                writer.write(trajectory)
    by = str(settings.get("model", settings["policy"]))
    if arguments.turn == "all":
        values = _values(episode, groups) | {"policy": by}
        print(json.dumps(values, indent=2) if arguments.json else visible_text(_shown_values(values)))
    else:
        outcomes = _outcomes(episode, groups[0], arguments.turn) | {"policy": by}
        print(json.dumps(outcomes, indent=2) if arguments.json else visible_text(_shown(outcomes)))
    if arguments.out is not None:
        name_next("report", arguments.out)
    failures = [member.error for group in groups for member in group if member.error is not None]
    if failures:
        n = sum(map(len, groups))
        raise LLMEnvsError(f"{len(failures)} of {n} episodes failed; the first by {failures[0].message:.300}")
    return 0


def _values(episode: Trajectory, groups: Sequence[TrajectoryGroup]) -> dict[str, Any]:
    """Return the value of each turn, as JSON types."""
    from llm_envs.evaluation.turn_values import values_of

    stored = {"is_success": episode.is_success, "reward": episode.reward, "turns": len(episode.turns)}
    values = [
        {"turn": value.turn, "n": value.n, "value": value.mean, "interval": list(value.interval)}
        for value in values_of(groups, range(len(groups)))
    ]
    rows = [value | {"reward": turn.reward} for value, turn in zip(values, episode.turns, strict=True)]
    return {
        "env_id": episode.env_id,
        "episode": f"{episode.group_id}/{episode.member}",
        "stored": stored,
        "turns": rows,
    }


def _shown_values(values: dict[str, Any]) -> str:
    lines = [
        f"{values['env_id']}, episode {values['episode']}, played on by {values['policy']}",
        "reward from each turn on, and the stored turn's reward:",
    ]
    for row in values["turns"]:
        low, high = row["interval"]
        lines.append(f"  turn {row['turn']:3d}  {row['value']:7.3f} [{low:.3f}, {high:.3f}]  {row['reward']:7.3f}")
    return "\n".join(lines)


def _episode(folder: str, name: str) -> Trajectory:
    from llm_envs.data.writer import iter_trajectories

    group, _, member = name.rpartition("/")
    if not group or not member.isdecimal():
        raise InvalidConfigError(f"--episode {name}: an episode is GROUP/MEMBER, such as 3/0.")
    some: list[str] = []
    found = None
    for trajectory in iter_trajectories(folder):
        if (trajectory.group_id, trajectory.member) == (group, int(member)):
            found = trajectory  # a later record replaces an earlier one
        elif len(some) < 5:
            some.append(f"{trajectory.group_id}/{trajectory.member}")
    if found is None:
        raise InvalidConfigError(f"--episode {name}: {folder} has no such episode; it has {', '.join(some)}, ...")
    return found


def _outcomes(episode: Trajectory, group: TrajectoryGroup, turn: int) -> dict[str, Any]:
    """Return the distribution of outcomes, as JSON types."""
    from llm_envs.evaluation.statistics import mean_interval, wilson_interval

    scored = group.scored
    replies: dict[str, list[Trajectory]] = {}
    n_before = len([m for m in episode.messages if m.role == "assistant"]) - len(episode.turns) + turn
    for member in scored:
        said = [message.content for message in member.messages if message.role == "assistant"]
        replies.setdefault(said[n_before] if len(said) > n_before else "", []).append(member)
    successes = sum(bool(member.is_success) for member in scored)
    rewards = [member.reward for member in scored]
    return {
        "env_id": episode.env_id,
        "episode": f"{episode.group_id}/{episode.member}",
        "turn": turn,
        "stored": {"is_success": episode.is_success, "reward": episode.reward, "turns": len(episode.turns)},
        "n": len(scored),
        "success": successes / len(scored) if scored else None,
        "success_interval": list(wilson_interval(successes, len(scored))) if scored else None,
        "reward": sum(rewards) / len(rewards) if rewards else None,
        "reward_interval": list(mean_interval(rewards)) if len(rewards) > 1 else None,
        "stop_reasons": dict(Counter(member.stop_reason.value for member in group).most_common()),
        "turns": dict(sorted(Counter(len(member.turns) for member in scored).items())),
        "replies": [
            {
                "text": text,
                "n": len(members),
                "success": sum(bool(member.is_success) for member in members) / len(members),
                "reward": sum(member.reward for member in members) / len(members),
            }
            for text, members in sorted(replies.items(), key=lambda item: -len(item[1]))
        ],
    }


def _shown(outcomes: dict[str, Any]) -> str:
    stored = outcomes["stored"]
    lines = [
        f"{outcomes['env_id']}, episode {outcomes['episode']} from turn {outcomes['turn']} on, {outcomes['n']} times",
        f"policy    {outcomes['policy']}",
        f"stored    success {stored['is_success']}, reward {stored['reward']:g}, {counted(stored['turns'], 'turn')}",
    ]
    if outcomes["n"]:
        low, high = outcomes["success_interval"]
        lines.append(f"success   {outcomes['success']:.1%} [{low:.1%}, {high:.1%}]")
        interval = outcomes["reward_interval"]
        around = f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else ""
        lines.append(f"reward    {outcomes['reward']:.3f}{around}")
    for title, key in (("ended by", "stop_reasons"), ("turns", "turns")):
        lines.append(f"{title:9} " + ", ".join(f"{name} x{count}" for name, count in outcomes[key].items()))
    replies = outcomes["replies"]
    if replies:
        lines.append(f"{len(replies)} different replies at turn {outcomes['turn']}; times, success, reward:")
    for reply in replies[:MAX_REPLIES]:
        text = " ".join(reply["text"].split())
        lines.append(f"  {reply['n']:4d}  {reply['success']:6.1%}  {reply['reward']:7.3f}  {text:.90}")
    return "\n".join(lines)
