"""Score a stored run again: a run's folder -> results, without a policy or an environment."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from llm_envs.data.folder import find_parts, read_manifest
from llm_envs.data.log import torn_line
from llm_envs.data.storage import as_path
from llm_envs.data.writer import iter_trajectories
from llm_envs.errors import InvalidConfigError, StoreError
from llm_envs.evaluation.results import RESULTS_NAME, Results, installed_versions
from llm_envs.evaluation.scores import Scoreboard, average_rate, key_of
from llm_envs.evaluation.suite import Suite, SuiteEntry, asked_thresholds

__all__ = ["load_results", "played_entries", "replay", "results_of"]


def replay(
    path: str | Path,
    *,
    suite: Suite | None = None,
    k: int | None = None,
    confidence: float = 0.95,
    allow_partial: bool = False,
) -> Results:
    """Score the episodes of a run again, with the rewards that are stored. Nothing is played.

    Args:
        path: The folder of an evaluation, or of any collected run.
        suite: Names the tasks and sets each one's k; None uses the names and k of the run's own evaluation.
        k: Largest k of pass@k and pass^k of every task; None takes the evaluation's, or the number of samples.
        confidence: Confidence of all intervals.
        allow_partial: Whether to score an incomplete run by the episodes that it has.

    Raises:
        InvalidConfigError: If the run is missing, empty, damaged or incomplete, or k is above its samples.
    """
    folder = as_path(path)
    try:
        settings = dict(read_manifest(folder).settings)
        entries = played_entries(settings) if suite is None else suite.entries
        board = Scoreboard({entry.key: entry.label for entry in entries})
        n_groups = _count(folder, board, is_strict=not allow_partial)
    except StoreError as error:
        raise InvalidConfigError(f"{error}") from error
    if not board.n_episodes:
        raise InvalidConfigError(f"{folder} is empty: it has no finished episode.")
    samples = settings.get("group_size", 1)
    wanted = (sum(entry.n for entry in played_entries(settings)) or n_groups) * samples
    if board.n_episodes < wanted and not allow_partial:
        raise InvalidConfigError(_half_written(folder, f"it has {board.n_episodes} of {wanted} episodes"))
    ks = {entry.label: entry.k for entry in entries}
    results = results_of(board, settings, (ks or None) if k is None else k, confidence)
    before = None
    with suppress(InvalidConfigError):  # there are none to read
        before = Results.load(folder)
    asked = asked_thresholds(suite) if suite is not None else {} if before is None else before.thresholds
    return replace(results, played_with={} if before is None else before.played_with, thresholds=asked)


def load_results(path: str | Path, *, confidence: float = 0.95) -> Results:
    """Return the results in a file or folder. For a run without results, compute them from its episodes.

    Raises:
        InvalidConfigError: If there are neither results nor episodes.
    """
    where = as_path(path)
    if not where.exists():
        raise InvalidConfigError(f"{where} does not exist: give the folder of a run, or its {RESULTS_NAME}.")
    if where.is_dir() and not (where / RESULTS_NAME).exists():
        return replay(where, confidence=confidence)
    return Results.load(where)


def played_entries(settings: Mapping[str, Any]) -> tuple[SuiteEntry, ...]:
    """Return the suite entries of an evaluation from its run's settings; empty for another run."""
    try:
        return tuple(SuiteEntry(env_id, kwargs, name, n, k) for name, env_id, kwargs, n, k in settings.get("eval", ()))
    except (TypeError, ValueError) as error:
        raise InvalidConfigError(f"the run's settings have an `eval` that cannot be read ({error}).") from error


def results_of(
    board: Scoreboard, settings: Mapping[str, Any], k: Mapping[str, int] | int | None, confidence: float
) -> Results:
    """Return the results of a scoreboard; see `Scoreboard.results`."""
    tasks = board.results(k=k, confidence=confidence)
    average = functools.partial(average_rate, confidence=confidence)
    levels = dict.fromkeys(task.difficulty or "default" for task in tasks)
    by_level = {level: [task for task in tasks if (task.difficulty or "default") == level] for level in levels}
    return Results(
        tasks=tasks,
        success=average(tasks),
        by_difficulty={level: average(found) for level, found in by_level.items()},
        settings=dict(settings),
        versions=installed_versions(),
        confidence=confidence,
    )


def _count(folder: Path, board: Scoreboard, *, is_strict: bool) -> int:
    """Add a run's episodes to the board, and return the number of their groups."""
    for part in find_parts(folder, read_manifest(folder)):
        is_log = part.counts is None and part.path.exists()
        if is_strict and is_log and torn_line(part.path) is not None:
            raise InvalidConfigError(_half_written(folder, f"the last line of {part.path.name} is cut off"))
    groups = set()
    for trajectory in iter_trajectories(folder):
        board.add(trajectory)
        groups.add((key_of(trajectory.env_id, trajectory.env_kwargs), trajectory.group_id))
    return len(groups)


def _half_written(folder: Path, why: str) -> str:
    if shard := read_manifest(folder).settings.get("shard"):
        return (
            f"{folder} is the shard {shard} of an evaluation ({why}): join all shards with `llm-envs merge`, "
            "or score the finished episodes with --partial (allow_partial=True)."
        )
    return (
        f"{folder} is half-written: {why}. Finish it with --resume, or score the finished episodes with --partial "
        "(allow_partial=True)."
    )
