"""Log the metrics of a run to TensorBoard, Weights & Biases, Trackio, CSV or JSONL, or to several of them at once.

The first three use accelerate's trackers, the others `tracking.loggers`. By default no data leave the machine: W&B is
offline (set `WANDB_MODE=online`, or run `wandb sync` later), and Trackio is local.

If a tracker fails, warn once on standard error and disable it; the run continues.
"""

from __future__ import annotations

import contextlib
import math
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from llm_envs.errors import InvalidConfigError
from llm_envs.tracking.loggers import Logger, csv_logger, jsonl_logger, visible_text
from llm_envs.tracking.progress import repeating, since
from llm_envs.tracking.stats import CollectorStats
from llm_envs.tracking.trackers import FileTracker, TensorBoard, Tracker, Trackio, WandB
from llm_envs.types import Trajectory

__all__ = [
    "TRACKERS",
    "EpisodeSample",
    "RunLogger",
    "collection_metrics",
    "log_collection",
    "tracker_logger",
]

TRACKERS = ("tensorboard", "wandb", "trackio", "csv", "jsonl")
"""The trackers that `tracker_logger` and `--report-to` accept."""

NEEDS_FOLDER = ("tensorboard", "csv", "jsonl")
"""Trackers that write into the run's folder; the others have their own places."""

SAMPLE_SIZE = 50
"""Number of episodes in a table."""


def tracker_logger(
    names: str | Sequence[str],
    *,
    project: str | None = None,
    folder: str | Path | None = None,
    run_name: str | None = None,
    config: Mapping[str, Any] | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> RunLogger:
    """Make a logger to several trackers at once; leaving its block ends their runs.

    Trackers that write into the folder start with the first metrics, so the run itself may create the folder.

    Args:
        names: Some of `TRACKERS`; an empty list, or only "none", makes a logger that does nothing.
        project: For W&B and Trackio; None is `WANDB_PROJECT`, which W&B defines, or "llm-envs".
        folder: For `tensorboard/`, `metrics.csv` and `metrics.jsonl`.
        run_name: For W&B and Trackio, and for TensorBoard's folder below `tensorboard/`; None leaves it to them.
        config: The run's settings, as JSON types.
        settings: A tracker's name -> further arguments of its library: W&B's and Trackio's `init`, TensorBoard's
            `SummaryWriter`; for example `{"wandb": {"mode": "online", "tags": ["eval"]}}`.

    Raises:
        InvalidConfigError: If a name is unknown, or a folder is needed and not given.
        MissingExtraError: If a library is not installed; it names the extra.
    """
    wanted = list(dict.fromkeys([names] if isinstance(names, str) else names))
    if wanted == ["none"]:
        wanted = []
    for name in wanted:
        if name not in TRACKERS:
            raise InvalidConfigError(
                f"there is no tracker {name!r}: choose one or several of {', '.join(TRACKERS)}, or only none."
            )
        if name in NEEDS_FOLDER and folder is None:
            raise InvalidConfigError(f"{name} writes into the run's folder: give one (--out DIR, folder=...).")
    others, where = settings or {}, Path(folder or ".")
    makers: dict[str, Callable[[], Tracker]] = {
        "tensorboard": lambda: TensorBoard(where, run_name, config or {}, others.get("tensorboard", {})),
        "wandb": lambda: WandB(project, run_name, config or {}, others.get("wandb", {})),
        "trackio": lambda: Trackio(project, run_name, config or {}, others.get("trackio", {})),
        "csv": lambda: FileTracker("csv", lambda: csv_logger(where / "metrics.csv")),
        "jsonl": lambda: FileTracker("jsonl", lambda: jsonl_logger(where / "metrics.jsonl")),
    }
    logger = RunLogger(())
    try:
        for name in wanted:
            logger.trackers.append(makers[name]())
    except BaseException:
        logger.close()
        raise
    return logger


class RunLogger(contextlib.AbstractContextManager["RunLogger"]):
    """Several trackers as one logger. If a tracker fails, it is reported once and disabled.

    Args:
        trackers: From `tracker_logger`.
    """

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self.trackers = list(trackers)

    def __call__(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log a step's metrics, without non-finite values."""
        numbers = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        self._each(lambda tracker: tracker.log(int(step), numbers))

    def table(self, step: int, trajectories: Sequence[Trajectory], name: str = "episodes") -> None:
        """Log episodes as a table, if the tracker supports it: W&B, Trackio, and TensorBoard as text."""
        if trajectories:
            self._each(lambda tracker: tracker.table(int(step), trajectories, name))

    def close(self) -> None:
        """End the trackers' runs. Harmless when repeated."""
        trackers, self.trackers = self.trackers, []
        for tracker in trackers:
            try:
                tracker.close()
            except Exception as error:
                _warn(tracker.name, error, "what it had not written is lost")

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _each(self, act: Callable[[Tracker], None]) -> None:
        for tracker in list(self.trackers):
            try:
                act(tracker)
            except Exception as error:
                self.trackers.remove(tracker)
                _warn(tracker.name, error, "it is disabled, and the run continues")
                with contextlib.suppress(Exception):
                    tracker.close()


class EpisodeSample:
    """Keeps a random sample of episodes; each episode has the same chance.

    Args:
        size: Size of the sample.
        seed: Decides the choice.
    """

    def __init__(self, size: int = SAMPLE_SIZE, seed: int = 0) -> None:
        self.size, self.seen = size, 0
        self._kept: list[Trajectory] = []
        self._random = random.Random(seed)

    def add(self, trajectory: Trajectory) -> None:
        """Add an episode (Vitter's algorithm R)."""
        self.seen += 1
        if len(self._kept) < self.size:
            self._kept.append(trajectory)
        elif (place := self._random.randrange(self.seen)) < self.size:
            self._kept[place] = trajectory

    @property
    def trajectories(self) -> list[Trajectory]:
        """The sample, in order of group and member."""
        return sorted(self._kept, key=lambda t: (t.env_id, t.group_id, t.member))


def collection_metrics(stats: CollectorStats, done: int = 0) -> dict[str, float]:
    """Return a collector's counts as metrics, `collect/...`; docs/reference/metrics.md explains each.

    Args:
        stats: Statistics of the collector.
        done: Episodes that were already there.
    """
    counts = {"episodes": done + stats.accepted, "errored": stats.errored, "unscored": stats.unscored}
    counts |= {"retries": stats.retries, "running": stats.running}
    metrics = {f"collect/{name}": float(value) for name, value in counts.items()}
    if stats.scored > 0:
        metrics["collect/success"] = stats.successes / stats.scored
        metrics["collect/reward"] = stats.reward / stats.scored
    if stats.accepted:
        means = {"turns": stats.turns, "sampled_tokens": stats.sampled_tokens, "forks": stats.forks}
        metrics |= {f"collect/{name}": value / stats.accepted for name, value in means.items()}
        metrics |= {f"collect/stop/{name}": n / stats.accepted for name, n in sorted(stats.stop_reasons.items())}
    seconds = stats.elapsed_s
    metrics["collect/seconds"] = seconds
    if seconds > 0:
        metrics["collect/episodes_per_second"] = stats.accepted / seconds
        metrics["collect/tokens_per_second"] = stats.sampled_tokens / seconds
    return metrics


@contextlib.contextmanager
def log_collection(
    logger: Logger, stats: CollectorStats, done: int = 0, *, every_s: float = 10.0, sample: EpisodeSample | None = None
) -> Iterator[None]:
    """Log the progress of a collection periodically from a thread, and its result at the end, even after an error.

    The step is the number of finished episodes; nothing is logged if it has not changed.

    Args:
        logger: Any; a logger from `tracker_logger` also gets the sample as a table.
        stats: Statistics of the running collector.
        done: Episodes that were already there.
        every_s: Seconds between two steps.
        sample: Sample of the played episodes.
    """
    last = -1

    def log() -> None:
        nonlocal last
        now = since(stats, None)
        if (step := done + now.accepted) > last:
            logger(step, collection_metrics(now, done))
            last = step

    try:
        with repeating(lambda: log() if stats.accepted else None, every_s, name="llm-envs-tracking"):
            yield
    finally:
        log()
        if sample is not None and isinstance(logger, RunLogger):
            logger.table(max(last, 0), sample.trajectories)


def _warn(name: str, error: Exception, what: str) -> None:
    message = " ".join(visible_text(f"{type(error).__name__}: {error}").split())
    print(f"llm-envs: {name} failed ({message:.300}): {what}.", file=sys.stderr)
