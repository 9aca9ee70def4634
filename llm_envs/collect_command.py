"""`llm-envs collect`: play a mixture of tasks into a folder, with live progress, and go on where a run stopped.

Whatever ends it, what was finished is in the folder. Ctrl-C and SIGTERM end it in order: nothing is left running, the
log is compacted, and the way to go on is said.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_envs.arguments import (
    ENGINES,
    add_env_arguments,
    add_sampling_arguments,
    env_kwargs_of,
    load_model_policy,
    positive,
    require_model,
    require_text,
    seconds,
)
from llm_envs.errors import InvalidConfigError, LLMEnvsError, StoreError
from llm_envs.reporting import visible_text

if TYPE_CHECKING:
    from llm_envs.chat import ChatCodec
    from llm_envs.collect import CollectedRun
    from llm_envs.policies.base import Policy
    from llm_envs.rollout.source import EnvChoice

__all__ = ["add_arguments", "parse_mixture", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "envs", nargs="+", metavar="ENV", help="a task's id, or ID:WEIGHT, its share of the groups beside the others"
    )
    who = parser.add_mutually_exclusive_group()
    who.add_argument("--model", metavar="DIR", help="a model that plays: a folder, or a name on a model hub")
    who.add_argument("--policy", choices=["oracle", "random"], default="oracle", help="who else plays; default: oracle")
    parser.add_argument("--engine", choices=sorted(ENGINES), default="transformers", help="what the model runs on")
    parser.add_argument(
        "--tokenizer", metavar="DIR", help="with --policy: whose tokens the episodes get; default: none"
    )
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
        "--history",
        choices=["append", "template"],
        default="append",
        help="what the model sees of its earlier turns: its own words, or what the chat template makes of them",
    )
    parser.add_argument("--window", type=positive, metavar="TURNS", help="show the model only its last turns")


def run(arguments: argparse.Namespace) -> int:
    """Collect, and return the exit code."""
    from llm_envs.collect import collect_run, run_settings
    from llm_envs.registration import task_spec
    from llm_envs.reporting import live_progress
    from llm_envs.rollout import RolloutLimits, create_window
    from llm_envs.rollout.store import check_folder
    from llm_envs.types import SamplingParams

    envs = parse_mixture(arguments.envs)
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
    settings = _own_settings(arguments)
    # A model may take minutes to load: say before that what can be said.
    own = run_settings(envs, group_size=arguments.group_size, **collector) | settings
    check_folder(arguments.out, own, resume=arguments.resume)
    policy, codec = _policy(arguments)
    try:
        with _terminated_as_interrupted():
            done = collect_run(
                envs,
                policy,
                out=arguments.out,
                n_groups=arguments.n,
                group_size=arguments.group_size,
                resume=arguments.resume,
                settings=settings,
                show=live_progress,
                codec=codec,
                max_concurrency=arguments.concurrency,
                context_fn=None if arguments.window is None else create_window(arguments.window),
                **collector,
            )
    except KeyboardInterrupt:
        _say_how_to_go_on(arguments)
        return 130
    finally:
        _close(policy)
    return _summarize(done)


def parse_mixture(texts: Sequence[str]) -> list[EnvChoice]:
    """Read `ID` and `ID:WEIGHT`. An id may itself have a colon (`module:llm/Task-v0`): only a number is a weight.

    Raises:
        InvalidConfigError: If a weight is not above 0, or an id is given twice.
    """
    from llm_envs.rollout.source import EnvChoice

    choices: list[EnvChoice] = []
    for text in texts:
        head, colon, tail = text.rpartition(":")
        try:
            weight = float(tail) if colon else None
        except ValueError:
            weight = None
        env_id = text if weight is None else head
        if weight is not None and not (weight > 0 and math.isfinite(weight)):
            raise InvalidConfigError(f"{text}: the weight must be a number above 0.")
        if env_id in [choice.env_id for choice in choices]:
            raise InvalidConfigError(f"{env_id} is given twice: give it once, with a weight.")
        choices.append(EnvChoice(env_id, 1.0 if weight is None else weight))
    return choices


def _own_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what else decides what is played, for the manifest."""
    if arguments.model is None:
        if arguments.engine != "transformers":
            raise InvalidConfigError(f"--engine {arguments.engine} is for a model: give --model.")
        record = {"policy": arguments.policy, "tokenizer": _resolved(arguments.tokenizer)}
    else:
        if arguments.tokenizer is not None:
            raise InvalidConfigError("--tokenizer is for --policy: a model has its own.")
        record = {"policy": "model", "model": _resolved(arguments.model), "engine": arguments.engine}
    record["window"] = arguments.window
    return {name: value for name, value in record.items() if value is not None}


def _resolved(name: str | None) -> str | None:
    return str(Path(name).resolve()) if name is not None and Path(name).is_dir() else name


def _policy(arguments: argparse.Namespace) -> tuple[Policy, ChatCodec | None]:
    if arguments.model is not None:
        return load_model_policy(arguments.model, arguments.engine)
    from llm_envs.policies.scripted import OraclePolicy, RandomPolicy

    policy: Policy = OraclePolicy() if arguments.policy == "oracle" else RandomPolicy()
    if arguments.tokenizer is None:
        return policy, None
    require_model(arguments.tokenizer, "--tokenizer")
    from llm_envs.chat import ChatCodec
    from llm_envs.policies.loading import load_tokenizer

    return policy, ChatCodec(load_tokenizer(arguments.tokenizer))


def _close(policy: Policy) -> None:
    aclose = getattr(policy, "aclose", None)
    if aclose is not None:
        asyncio.run(aclose())


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
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
            f"{done.stats.errored} episodes failed ({kinds}), the first with: {done.first_error.message:.300}. "
            "The same command with --resume plays them anew."
        )
    return 0
