"""`llm-envs collect`: play a mixture of tasks into a folder, with live progress, and go on where a run stopped.

Whatever ends it, what was finished is in the folder. Ctrl-C and SIGTERM end it in order: nothing is left running, the
log is compacted, and the way to go on is said.
"""

from __future__ import annotations

import argparse
import fnmatch
import math
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_envs.arguments import (
    add_env_arguments,
    add_sampling_arguments,
    env_kwargs_of,
    positive,
    require_text,
    seconds,
)
from llm_envs.errors import InvalidConfigError, LLMEnvsError, StoreError
from llm_envs.players import add_player_arguments, check_player, open_player, player_settings
from llm_envs.reporting import visible_text
from llm_envs.tracking import add_tracking_arguments, check_tracking, tracker_of

if TYPE_CHECKING:
    from llm_envs.collect import CollectedRun
    from llm_envs.rollout.source import EnvChoice

__all__ = ["add_arguments", "parse_mixture", "run", "terminated_as_interrupted"]

EXAMPLES = """
examples:
  llm-envs collect llm/Calculator-v0:2 llm/GuessNumber-v0 -n 100 --group-size 4 --out runs/oracle
  llm-envs collect 'llm/*' --exclude llm/Countdown-v0 --model DIR -n 100 --out runs/all
  llm-envs collect llm/Calculator-v0 --model DIR --serve 2 -n 1000 --out runs/served --resume
  llm-envs collect llm/Calculator-v0 --model DIR --url http://a:8000 --url http://b:8000 -n 1000 --out runs/servers
  llm-envs collect llm/Calculator-v0 --model https://host/v1 --model-name NAME -n 50 --out runs/api
  llm-envs collect llm/Calculator-v0 --model DIR --policy vllm -n 50 --out runs/logged --report-to tensorboard jsonl

Ctrl-C ends it in order; the same command with --resume goes on. llm-envs export writes what was collected for others.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "envs",
        nargs="+",
        metavar="ENV",
        help="a task's id or a pattern ('llm/*'); ENV:WEIGHT says each one's share of the groups beside the others",
    )
    parser.add_argument("--exclude", action="append", metavar="PATTERN", help="tasks that a pattern is not to mean")
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder of the run")
    parser.add_argument("-n", type=positive, required=True, metavar="GROUPS", help="groups in all")
    parser.add_argument("--group-size", type=positive, default=1, metavar="G", help="episodes a group; default 1")
    parser.add_argument("--resume", action="store_true", help="go on with the run in the folder, if there is one")
    parser.add_argument("--seed", type=int, default=0, help="the run's seed; default 0")
    add_env_arguments(parser)
    add_sampling_arguments(parser)
    parser.add_argument("--max-turns", type=positive, help="of an episode; default: the task's own limit")
    parser.add_argument("--max-step-s", type=seconds, help="seconds that one step of the task may take")
    parser.add_argument("--concurrency", type=positive, default=64, help="episodes at once; default 64")
    parser.add_argument(
        "--workers", type=positive, metavar="N", help="run tasks in N processes, for those that hang or crash"
    )
    parser.add_argument(
        "--history",
        choices=["append", "template"],
        default="append",
        help="what the model sees of its earlier turns: its own words, or what the chat template makes of them",
    )
    parser.add_argument("--window", type=positive, metavar="TURNS", help="show the model only its last turns")
    add_tracking_arguments(parser)
    parser.epilog = EXAMPLES
    add_player_arguments(parser, ["oracle", "random"])


def run(arguments: argparse.Namespace) -> int:
    """Collect, and return the exit code."""
    from llm_envs.collect import collect_run, run_settings
    from llm_envs.policies.scripted import OraclePolicy, RandomPolicy
    from llm_envs.progress import live_progress
    from llm_envs.registration import task_spec
    from llm_envs.rollout import RolloutLimits, create_window
    from llm_envs.rollout.store import check_folder, finished
    from llm_envs.rollout.store_folder import MANIFEST_NAME
    from llm_envs.types import SamplingParams

    envs = parse_mixture(arguments.envs, arguments.exclude or ())
    check_tracking(arguments)
    check_player(arguments)
    collector: dict[str, Any] = {
        "seed": arguments.seed,
        "env_kwargs": env_kwargs_of(arguments),
        "sampling": SamplingParams(temperature=arguments.temperature, max_new_tokens=arguments.max_new_tokens),
        "limits": RolloutLimits(max_turns=arguments.max_turns, max_step_s=arguments.max_step_s),
        "history": arguments.history,
    }
    for choice in envs:
        task_spec(choice.env_id)
        require_text(choice.env_id, collector["env_kwargs"])
    settings = player_settings(arguments) | ({} if arguments.window is None else {"window": arguments.window})
    # A model may take minutes to load: say before that what can be said.
    own = run_settings(envs, group_size=arguments.group_size, **collector) | settings
    check_folder(arguments.out, own, resume=arguments.resume)
    if (Path(arguments.out) / MANIFEST_NAME).exists():
        finished(arguments.out)
    try:
        with (
            terminated_as_interrupted(),
            tracker_of(arguments, own) as logger,
            open_player(arguments, {"oracle": OraclePolicy, "random": RandomPolicy}) as (policy, codec),
        ):
            done = collect_run(
                envs,
                policy,
                out=arguments.out,
                n_groups=arguments.n,
                group_size=arguments.group_size,
                resume=arguments.resume,
                settings=settings,
                show=live_progress,
                logger=logger,
                log_every_s=arguments.log_every_s,
                codec=codec,
                max_concurrency=arguments.concurrency,
                workers=arguments.workers or 0,
                context_fn=None if arguments.window is None else create_window(arguments.window),
                **collector,
            )
    except KeyboardInterrupt:
        _say_how_to_go_on(arguments)
        return 130
    return _summarize(done)


def parse_mixture(texts: Sequence[str], exclude: Sequence[str] = ()) -> list[EnvChoice]:
    """Read what to play: `ID`, `ID:WEIGHT`, and patterns of them, which stand for registered tasks.

    An id may itself have a colon (`module:llm/Task-v0`): only a number is a weight. A task that is also named by its id
    has the weight given there.

    Args:
        texts: As the command was given them.
        exclude: Ids and patterns of tasks to leave out.

    Raises:
        InvalidConfigError: If a weight is not above 0, an id is given twice, a pattern matches nothing, or nothing is
            left.
    """
    from llm_envs.rollout.source import EnvChoice

    given = [_weighted(text) for text in texts]
    named = {name for name, _ in given if not _is_pattern(name)}
    choices: dict[str, float] = {}
    for name, weight in given:
        for env_id in [name] if name in named else [found for found in _matching(name) if found not in named]:
            if env_id in choices:
                raise InvalidConfigError(f"{env_id} is given twice: give it once, with a weight.")
            choices[env_id] = weight
    left = dict(choices)
    for pattern in exclude:
        found = fnmatch.filter(choices, pattern)
        if not found:
            raise InvalidConfigError(f"--exclude {pattern}: it is none of {', '.join(choices)}.")
        left = {env_id: weight for env_id, weight in left.items() if env_id not in found}
    if not left:
        raise InvalidConfigError(f"no task is left to play: --exclude {' '.join(exclude)} takes out {len(choices)}.")
    return [EnvChoice(env_id, weight) for env_id, weight in left.items()]


def _weighted(text: str) -> tuple[str, float]:
    head, colon, tail = text.rpartition(":")
    try:
        weight = float(tail) if colon else None
    except ValueError:
        weight = None
    if weight is None:
        return text, 1.0
    if not (weight > 0 and math.isfinite(weight)):
        raise InvalidConfigError(f"{text}: the weight must be a number above 0.")
    return head, weight


def _is_pattern(name: str) -> bool:
    return re.search(r"[*?\[]", name) is not None


def _matching(pattern: str) -> list[str]:
    from llm_envs.registration import task_ids

    found = fnmatch.filter(task_ids(), pattern)
    if not found:
        raise InvalidConfigError(f"no task matches {pattern!r}; `llm-envs list` prints those that there are.")
    return found


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM, which schedulers send before they kill, end a run as Ctrl-C does, in the background too.

    What a shell script starts in the background ignores SIGINT from the start, and asyncio then does not watch for it.
    """
    try:
        before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    except ValueError:  # not the main thread: somebody else's process
        yield
        return
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if interrupt is signal.SIG_IGN:
            signal.signal(signal.SIGINT, interrupt)


def _say_how_to_go_on(arguments: argparse.Namespace) -> None:
    from llm_envs.rollout.store import finished

    try:
        n = len(finished(arguments.out))
    except StoreError:  # it had not begun
        n = 0
    print(
        f"llm-envs: interrupted: {n} of {arguments.n * arguments.group_size} episodes are finished and saved in "
        f"{visible_text(arguments.out)}. To go on: the same command with --resume.",
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
        kinds = ", ".join(f"{kind} x{count}" for kind, count in done.stats.error_kinds.most_common(3))
        raise LLMEnvsError(
            f"{done.n_failed} episodes failed ({kinds}), the first with: {done.first_error.message:.300}. "
            "The same command with --resume plays them anew."
        )
    return 0
