"""`llm-envs collect`: play a mixture of tasks into a folder, with live progress, and go on where a run stopped.

However the command ends, the finished episodes are in the folder. After Ctrl-C or SIGTERM it stops everything that it
started, compacts the log, and prints how to resume.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from llm_envs.cli.arguments import (
    ENV_HELP,
    add_env_arguments,
    add_rollout_arguments,
    add_sampling_arguments,
    add_shard_argument,
    arrangement_of,
    env_kwargs_of,
    positive,
    require_text,
    rules_of,
    seconds,
)
from llm_envs.cli.next_line import name_merge, name_next
from llm_envs.cli.parser import Flag, Parser, Repeatable
from llm_envs.cli.policy_options import add_player_arguments, check_player, player_settings
from llm_envs.cli.room_options import add_room_arguments, open_collector, played_settings, read_played
from llm_envs.cli.tracking_options import add_tracking_arguments, check_tracking, tracker_of
from llm_envs.errors import LLMEnvsError, StoreError, counted
from llm_envs.tracking.loggers import visible_text
from llm_envs.tracking.reasons import describe_reasons

if TYPE_CHECKING:
    from llm_envs.rollout.collect_run import CollectedRun
    from llm_envs.sources.source import EnvChoice

__all__ = ["add_arguments", "run"]

EXAMPLES = """
examples:
  llm-envs collect llm/Calculator-v0:2 llm/GuessNumber-v0 -n 100 --group-size 4 --out runs/oracle
  llm-envs collect 'llm/*' --exclude llm/Countdown-v0 --model DIR -n 100 --out runs/all
  llm-envs collect llm/Calculator-v0 --model DIR --serve 2 -n 1000 --out runs/served --resume
  llm-envs collect llm/Calculator-v0 --model DIR --url http://a:8000 --url http://b:8000 -n 1000 --out runs/servers
  llm-envs collect llm/Calculator-v0 --model https://host/v1 --model-name NAME -n 50 --out runs/api
  llm-envs collect llm/Calculator-v0 --model DIR -n 1000 --out runs/parts --shard 0/4
  llm-envs collect llm/Calculator-v0 --model DIR --policy vllm -n 50 --out runs/logged --report-to tensorboard jsonl

Ctrl-C ends it in order; the same command with --resume goes on. llm-envs export writes what was collected for others.
"""


def add_arguments(parser: Parser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "envs",
        nargs="*",
        metavar="ENV",
        help=f"{ENV_HELP}, or a pattern ('llm/*'); ENV:WEIGHT sets its share of the groups",
    )
    parser.add_argument("--exclude", action=Repeatable, metavar="PATTERN", help="exclude matching tasks")
    parser.add_argument(
        "--out",
        required=True,
        metavar="DIR",
        help="output folder of the run, or its address on object storage (s3://...)",
    )
    parser.add_argument(
        "-n", type=positive, required=True, metavar="N", help="problems in all, each played --group-size times"
    )
    parser.add_argument("--group-size", type=positive, default=1, metavar="G", help="episodes per problem; default 1")
    parser.add_argument("--resume", action=Flag, help="resume the run in the folder, if any")
    add_shard_argument(parser)
    parser.add_argument(
        "--upload-every-s",
        type=seconds,
        default=60.0,
        metavar="S",
        help="seconds between uploads, if --out is on object storage; default 60",
    )
    parser.add_argument("--seed", type=int, default=0, help="the run's seed; default 0")
    add_env_arguments(parser)
    add_sampling_arguments(parser)
    add_rollout_arguments(parser)
    add_room_arguments(parser, "collect")
    add_tracking_arguments(parser)
    add_player_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Collect, and return the exit code."""
    from llm_envs.data.folder import MANIFEST_NAME
    from llm_envs.data.storage import as_path, exists
    from llm_envs.data.writer import check_folder, finished_keys
    from llm_envs.rollout.collect_run import collect_run, run_settings
    from llm_envs.tracking.progress import live_progress

    check_tracking(arguments)
    check_player(arguments)
    own_env = read_played(arguments)
    envs = _envs(arguments) if own_env is None else own_env
    collector: dict[str, Any] = {
        "seed": arguments.seed,
        "env_kwargs": env_kwargs_of(arguments),
        **rules_of(arguments),
    }
    if own_env is not None:
        own_env(**collector["env_kwargs"]).close()  # reports wrong arguments
    settings = player_settings(arguments) | ({} if arguments.window is None else {"window": arguments.window})
    settings |= played_settings(arguments, own_env)
    # A model may take minutes to load, so report errors in the folder and its settings first.
    own = run_settings(envs, group_size=arguments.group_size, **collector) | settings
    if arguments.shard is not None:
        own |= arguments.shard.settings(arguments.n)
        arguments.out = str(arguments.shard.folder(arguments.out))
    check_folder(arguments.out, own, resume=arguments.resume)
    if exists(as_path(arguments.out) / MANIFEST_NAME):
        finished_keys(arguments.out)
    try:
        with (
            tracker_of(arguments, own) as logger,
            open_collector(arguments) as (policy, played),
        ):
            done = collect_run(
                envs,
                policy,
                out=arguments.out,
                n_groups=arguments.n,
                group_size=arguments.group_size,
                resume=arguments.resume,
                shard=arguments.shard,
                settings=settings,
                show=live_progress,
                logger=logger,
                log_every_s=arguments.log_every_s,
                upload_every_s=arguments.upload_every_s,
                **arrangement_of(arguments),
                **played,
                **collector,
            )
    except KeyboardInterrupt:
        _say_how_to_go_on(arguments)
        return 130
    code = _summarize(done)
    if arguments.shard is None:
        name_next("report", done.path)
    else:
        name_merge(arguments.out)
    return code


def _envs(arguments: argparse.Namespace) -> list[EnvChoice]:
    """Return the environments, after checking that each exists and is one of texts."""
    from llm_envs.sources.mixture_text import parse_mixture

    envs = parse_mixture(arguments.envs, arguments.exclude or ())
    for choice in envs:
        require_text(choice.env_id, env_kwargs_of(arguments))
    return envs


def _say_how_to_go_on(arguments: argparse.Namespace) -> None:
    from llm_envs.data.writer import finished_keys

    try:
        n = len(finished_keys(arguments.out))
    except StoreError:  # the run had not created its folder
        n = 0
    n_groups = arguments.n if arguments.shard is None else len(arguments.shard.groups(arguments.n))
    print(
        f"llm-envs: interrupted: {n} of {n_groups * arguments.group_size} episodes are finished and saved in "
        f"{visible_text(arguments.out)}. To resume, repeat the command with --resume.",
        file=sys.stderr,
    )


def _summarize(done: CollectedRun) -> int:
    where = visible_text(str(done.path))
    if done.removed is not None:
        print("a last line that a kill had cut short was removed; its episode was played again")
    if done.stats.accepted:
        print(visible_text(done.stats.summary()))
    before = f", {done.n_before} of them from before" if done.n_before else ""
    print(f"{done.n_finished} of {done.n_episodes} episodes are in {where}{before}")
    if done.first_error is not None:
        raise LLMEnvsError(
            f"{counted(done.n_failed, 'episode')} failed ({describe_reasons(done.stats.why_unscored)}). Repeat the "
            "command with --resume to play them again."
        )
    return 0
