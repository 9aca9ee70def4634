"""`llm-envs list` and `llm-envs check`."""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

from llm_envs.cli.arguments import ENV_HELP, positive
from llm_envs.cli.parser import Flag, Repeatable
from llm_envs.errors import InvalidConfigError, MissingExtraError, TaskCheckError
from llm_envs.objects import env_id
from llm_envs.processes import end_with_parent
from llm_envs.tracking.loggers import visible_text

if TYPE_CHECKING:
    from llm_envs.checker.catalogue import TaskCard

__all__ = ["add_check_arguments", "add_list_arguments", "check", "list_tasks"]

LIST_EXAMPLES = """
examples:
  llm-envs list
  llm-envs list --family games --multi-turn
  llm-envs list --tools --json
  llm-envs list --suites
"""
CHECK_EXAMPLES = """
examples:
  llm-envs check my/Task-v0
  llm-envs check my/Task-v0 --all-levels --thorough
  llm-envs check --all --namespace llm --thorough --jobs 4
"""


def add_list_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `list_tasks`."""
    parser.add_argument("--family", action=Repeatable, metavar="NAME", help="tasks of this family (repeatable)")
    turns = parser.add_mutually_exclusive_group()
    for turn, about in (("single", "tasks with one question and one reply"), ("multi", "tasks with several turns")):
        turns.add_argument(f"--{turn}-turn", dest="turns", action="store_const", const=turn, help=about)
    parser.add_argument("--tools", action=Flag, help="tasks with tools")
    parser.add_argument("--hard", action=Flag, help="tasks with a level expected to be hard for frontier models")
    parser.add_argument("--json", action=Flag, help="print all properties as JSON")
    parser.add_argument("--suites", action=Flag, help="print only the ids of other suites' environments")
    parser.epilog = LIST_EXAMPLES


def list_tasks(arguments: argparse.Namespace) -> None:
    """Print the requested tasks, one line each."""
    from llm_envs.checker.catalogue import family_of, summary
    from llm_envs.registration import bridged_ids, task_ids

    if arguments.suites:
        if arguments.family or arguments.turns or arguments.tools or arguments.hard or arguments.json:
            raise InvalidConfigError("--suites: give it without other options; they are about tasks.")
        print("\n".join(bridged_ids()))
        return
    ids = task_ids()
    families = {task_id: family_of(task_id) for task_id in ids}
    if arguments.family:
        known = sorted(set(families.values()))
        for family in arguments.family:
            if family not in known:
                raise InvalidConfigError(f"there is no family {family!r}; there are {', '.join(known)}.")
        ids = [task_id for task_id in ids if families[task_id] in arguments.family]
    if arguments.json or arguments.tools or arguments.hard or arguments.turns:
        cards, broken = _cards(ids)
        cards = {task_id: card for task_id, card in cards.items() if _is_wanted(card, arguments)}
        if arguments.json:
            print(json.dumps([card.to_json() for card in cards.values()], indent=2, ensure_ascii=False))
        lines = {task_id: card.summary for task_id, card in cards.items()} | broken
    else:
        lines = {task_id: summary(task_id) for task_id in ids}
    if not arguments.json:
        width = max(map(len, lines), default=0)
        for task_id in sorted(lines):
            print(f"{task_id:{width}}  {families[task_id]:11}  {visible_text(lines[task_id])}".rstrip())


def _cards(ids: Iterable[str]) -> tuple[dict[str, TaskCard], dict[str, str]]:
    """Return the cards, and the errors of the tasks that cannot be made."""
    from llm_envs.checker.catalogue import describe

    cards, broken = {}, {}
    for task_id in ids:
        try:
            cards[task_id] = describe(task_id)
        except Exception as error:
            broken[task_id] = f"(cannot be made: {type(error).__name__}: {' '.join(str(error).split())})"
    return cards, broken


def _is_wanted(card: TaskCard, arguments: argparse.Namespace) -> bool:
    if arguments.tools and not card.tools:
        return False
    if arguments.hard and not any(level.expected_hard for level in card.levels.values()):
        return False
    return arguments.turns in (None, "multi" if card.multi_turn else "single")


def add_check_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `check`."""
    parser.add_argument("envs", nargs="*", metavar="ENV", help=ENV_HELP)
    parser.add_argument("--all", action=Flag, help="every registered task")
    parser.add_argument("--namespace", metavar="NAME", help="with --all: only NAME/...")
    parser.add_argument("--difficulty", metavar="LEVEL", help="level of the tasks; default: each task's default")
    parser.add_argument("--all-levels", action=Flag, help="check every level")
    parser.add_argument(
        "--thorough",
        action=Flag,
        help="200 oracle episodes, 1,000 corrupted actions, 10,000 pairs of neighbouring seeds",
    )
    parser.add_argument("--jobs", type=positive, default=1, metavar="N", help="tasks checked in parallel, default 1")
    parser.epilog = CHECK_EXAMPLES


def check(arguments: argparse.Namespace) -> int:
    """Check the requested tasks; print each failure with its reason and the seed that shows it."""
    work = list(_work(arguments))
    n: Counter[str] = Counter()
    started = time.perf_counter()
    for status, line in _check_all(work, arguments.jobs):
        n[status] += 1
        print(visible_text(f"{status:8}{line}"), flush=True)
    if len(work) > 1:
        print(f"{n['ok']} of {len(work)} passed, in {time.perf_counter() - started:.0f} s")
    return 1 if n["FAILED"] or (n["missing"] and not arguments.all) else 0


def _work(arguments: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Yield (id, keyword arguments, whether thorough) of each check."""
    from llm_envs.checker.catalogue import describe, needs_project
    from llm_envs.registration import task_ids, task_spec

    ids: Sequence[str] = arguments.envs
    if bool(ids) == arguments.all:
        raise InvalidConfigError("name the tasks to check, or give --all.")
    if arguments.namespace and not arguments.all:
        raise InvalidConfigError("--namespace needs --all.")
    if arguments.difficulty and arguments.all_levels:
        raise InvalidConfigError("--difficulty and --all-levels: give only one.")
    if arguments.all:
        ids = [i for i in task_ids() if arguments.namespace in (None, i.partition("/")[0])]
        ids = [i for i in ids if not needs_project(i)]
        if not ids:
            raise InvalidConfigError(f"there is no task {arguments.namespace}/...; `llm-envs list` names all.")
    for task_id in ids:
        task_spec(env_id(task_id))
        if arguments.difficulty and isinstance(error := _failure(task_id, arguments.difficulty), InvalidConfigError):
            raise error
    for task_id in ids:
        levels = [arguments.difficulty] if arguments.difficulty else [None]
        if arguments.all_levels:
            with contextlib.suppress(MissingExtraError):  # its check reports it
                levels = list(describe(env_id(task_id)).levels)
        for level in levels:
            yield task_id, {} if level is None else {"difficulty": level}, arguments.thorough


def _check_all(work: Sequence[tuple[str, dict[str, Any], bool]], jobs: int) -> Iterator[tuple[str, str]]:
    if jobs == 1 or len(work) == 1:
        for task_id, kwargs, thorough in work:
            yield _check_one(task_id, kwargs, thorough)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=end_with_parent) as pool:
        # The workers inherit a blocked Ctrl-C: this process ends them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            checked = pool.map(_check_one, *zip(*work, strict=True))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            yield from checked
        except BaseException:
            for worker in multiprocessing.active_children():
                worker.kill()
            raise


def _failure(task_id: str, level: str | None = None) -> Exception | None:
    """Return the error with which a task cannot be made, if any. Its check reports others than those asked for."""
    import gymnasium as gym

    from llm_envs.checker.catalogue import example_kwargs

    task_id = env_id(task_id)
    try:
        gym.make(task_id, **example_kwargs(task_id) | ({} if level is None else {"difficulty": level})).close()
    except Exception as error:
        return error
    return None


def _check_one(task_id: str, kwargs: Mapping[str, Any], thorough: bool) -> tuple[str, str]:
    """Return "ok", "FAILED" or "missing" (a package that the task needs), and the rest of the line."""
    import llm_envs  # noqa: F401  # registers the tasks, in a new process
    from llm_envs.checker.check import QUICK, THOROUGH, check_task

    label = " ".join([task_id, *map(str, kwargs.values())])
    started = time.perf_counter()
    if isinstance(missing := _failure(task_id), MissingExtraError):
        return "missing", f"{label}  ({missing})"
    try:
        check_task(env_id(task_id), effort=THOROUGH if thorough else QUICK, **kwargs)
    except TaskCheckError as error:
        return "FAILED", f"{label}\n{error}"
    return "ok", f"{label}  ({time.perf_counter() - started:.1f} s)"
