"""Where the numbers of a run go while it goes on: TensorBoard, Weights & Biases, Trackio, CSV, JSONL; several at once.

The first three through accelerate's trackers, the others through `reporting`. Nothing leaves the machine unless it is
asked to: W&B is offline (`WANDB_MODE=online` is the way out, `wandb sync` the later one), Trackio is local.

A tracker that fails is said once on standard error and left out from then on: no run is lost for its curves.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_envs.arguments import seconds
from llm_envs.errors import InvalidConfigError
from llm_envs.reporting import Logger, csv_logger, jsonl_logger, visible_text
from llm_envs.trackers import DEFAULT_PROJECT, FileTracker, TensorBoard, Tracker, Trackio, WandB

if TYPE_CHECKING:
    from llm_envs.results import Measure, Results, TaskResult
    from llm_envs.rollout.stats import CollectorStats
    from llm_envs.types import Trajectory

__all__ = [
    "TRACKERS",
    "EpisodeSample",
    "RunLogger",
    "add_tracking_arguments",
    "check_tracking",
    "collection_metrics",
    "evaluation_metrics",
    "log_collection",
    "tracker_logger",
    "tracker_of",
]

TRACKERS = ("tensorboard", "wandb", "trackio", "csv", "jsonl")
"""What `tracker_logger` and `--report-to` take."""

NEEDS_FOLDER = ("tensorboard", "csv", "jsonl")
"""Those that write into the run's folder; the others have places of their own."""

SAMPLE_SIZE = 50
"""Episodes of a table, of however many there are."""


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

    What writes into the folder begins with the first number, so that the folder may be made by the run itself.

    Args:
        names: Of `TRACKERS`; none, or "none" alone, makes a logger to nowhere.
        project: Of W&B and Trackio; None is `WANDB_PROJECT`, which is W&B's, or "llm-envs".
        folder: For `tensorboard/`, `metrics.csv` and `metrics.jsonl`.
        run_name: Of W&B and Trackio, and TensorBoard's folder below `tensorboard/`; None leaves it to them.
        config: The run's settings, as JSON types.
        settings: A tracker's name -> what else its library takes: W&B's and Trackio's `init`, TensorBoard's
            `SummaryWriter`; for example `{"wandb": {"mode": "online", "tags": ["eval"]}}`.

    Raises:
        InvalidConfigError: If a name is not known, or one needs a folder and there is none.
        MissingExtraError: If a library is not installed; it names the extra.
    """
    wanted = list(dict.fromkeys([names] if isinstance(names, str) else names))
    if wanted == ["none"]:
        wanted = []
    for name in wanted:
        if name not in TRACKERS:
            raise InvalidConfigError(
                f"there is no tracker {name!r}: they are {', '.join(TRACKERS)}, several at once, or none alone."
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


class RunLogger:
    """Several trackers as one logger. Those that fail are said once, and left out from then on.

    Args:
        trackers: What `tracker_logger` makes.
    """

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self.trackers = list(trackers)

    def __call__(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log a step's numbers; those that are not finite are left out."""
        numbers = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        self._each(lambda tracker: tracker.log(int(step), numbers))

    def table(self, step: int, trajectories: Sequence[Trajectory], name: str = "episodes") -> None:
        """Log episodes as a table, where the tracker has them: W&B, Trackio, and TensorBoard as text."""
        if trajectories:
            self._each(lambda tracker: tracker.table(int(step), trajectories, name))

    def close(self) -> None:
        """End the trackers' runs. Harmless when repeated."""
        trackers, self.trackers = self.trackers, []
        for tracker in trackers:
            try:
                tracker.close()
            except Exception as error:
                _say(tracker.name, error, "what it had not written is lost")

    def __enter__(self) -> RunLogger:
        """Return the logger; leaving the block closes it."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close it."""
        self.close()

    def _each(self, act: Callable[[Tracker], None]) -> None:
        for tracker in list(self.trackers):
            try:
                act(tracker)
            except Exception as error:
                self.trackers.remove(tracker)
                _say(tracker.name, error, "it is left out from here, and the run goes on")
                with contextlib.suppress(Exception):
                    tracker.close()


class EpisodeSample:
    """Keeps a few of the episodes that it is shown, each as likely as any other.

    Args:
        size: How many.
        seed: Decides which.
    """

    def __init__(self, size: int = SAMPLE_SIZE, seed: int = 0) -> None:
        self.size, self.seen = size, 0
        self._kept: list[Trajectory] = []
        self._random = random.Random(seed)

    def add(self, trajectory: Trajectory) -> None:
        """Show an episode (Vitter's algorithm R)."""
        self.seen += 1
        if len(self._kept) < self.size:
            self._kept.append(trajectory)
        elif (place := self._random.randrange(self.seen)) < self.size:
            self._kept[place] = trajectory

    @property
    def trajectories(self) -> list[Trajectory]:
        """What was kept, in order of group and member."""
        return sorted(self._kept, key=lambda t: (t.env_id, t.group_id, t.member))


def collection_metrics(stats: CollectorStats, done: int = 0) -> dict[str, float]:
    """Return what a collector counted as numbers, `collect/...`; docs/logging.md says what each means.

    Args:
        stats: Of the collector.
        done: Episodes that were there before.
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


def evaluation_metrics(results: Results) -> dict[str, float]:
    """Return what an evaluation came to as numbers, `eval/...` and `eval/TASK/...`; docs/logging.md says what each is.

    In the name of a task what is neither a letter, a digit nor one of `-_./` is `_`, for all trackers alike. What is
    not known (NaN, an interval without an end) is left out.
    """
    metrics = _measured("eval/success", results.success)
    if len(results.by_difficulty) > 1:
        for level, found in results.by_difficulty.items():
            metrics |= _measured(f"eval/difficulty/{_name(level)}/success", found)
    for task in results:
        metrics |= {f"eval/{_name(task.name)}/{name}": value for name, value in _of_task(task).items()}
    return {name: float(value) for name, value in metrics.items() if math.isfinite(value)}


def _of_task(task: TaskResult) -> dict[str, float]:
    metrics = _measured("success", task.success) | _measured("reward", task.reward)
    for name, found in (("pass_at", task.pass_at), ("pass_hat", task.pass_hat)):
        for k, estimate in found.items():
            metrics |= _measured(f"{name}_{k}", estimate, with_bootstrap=False)
    metrics |= {f"reward/{_name(name)}": found.value for name, found in task.components.items()}
    metrics |= {"episodes": task.n_episodes, "scored": task.n_scored}
    metrics |= {"errored_rate": task.error_rate, "unscored_rate": task.unscored_rate, "truncated_rate": task.truncated}
    metrics |= {"malformed_turns_rate": task.malformed_turns, "turns": task.turns, "tokens": task.tokens}
    metrics |= {"sampled_tokens": task.sampled_tokens, "seconds": task.seconds}
    return metrics | {f"stop/{name}": n / task.n_episodes for name, n in task.stop_reasons.items()}


def _measured(name: str, found: Measure, *, with_bootstrap: bool = True) -> dict[str, float]:
    """Return a mean, and the ends of its intervals."""
    ends = {"low": found.interval.low, "high": found.interval.high}
    if with_bootstrap:
        ends |= {"bootstrap_low": found.bootstrap.low, "bootstrap_high": found.bootstrap.high}
    return {name: found.value} | {f"{name}_{end}": value for end, value in ends.items()}


def _name(text: str) -> str:
    return re.sub(r"[^\w./-]", "_", text, flags=re.ASCII)


@contextlib.contextmanager
def log_collection(
    logger: Logger, stats: CollectorStats, done: int = 0, *, every_s: float = 10.0, sample: EpisodeSample | None = None
) -> Iterator[None]:
    """Log how a collection goes on, every few seconds from a thread, and what it came to, whatever ends the block.

    The step is the number of finished episodes; nothing is logged where it has not moved.

    Args:
        logger: Any; one of `tracker_logger`'s gets the sample as a table too.
        stats: Of the collector that is playing.
        done: Episodes that were there before.
        every_s: Seconds between two.
        sample: Of the episodes that are played.
    """
    from llm_envs.progress import since

    ended, last = threading.Event(), -1

    def log() -> None:
        nonlocal last
        now = since(stats, None)
        if (step := done + now.accepted) > last:
            logger(step, collection_metrics(now, done))
            last = step

    def repeat() -> None:
        while not ended.wait(every_s):
            if stats.accepted:
                log()

    thread = threading.Thread(target=repeat, name="llm-envs-tracking", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        log()
        if sample is not None and isinstance(logger, RunLogger):
            logger.table(max(last, 0), sample.trajectories)


def add_tracking_arguments(parser: argparse.ArgumentParser) -> None:
    """Add where the numbers go."""
    group = parser.add_argument_group("where the numbers go")
    group.add_argument(
        "--report-to",
        nargs="+",
        choices=[*TRACKERS, "none"],
        metavar="TRACKER",
        help=f"{', '.join(TRACKERS)}, several at once, or none, the default; tensorboard, csv and jsonl lie in --out. "
        "W&B is offline unless WANDB_MODE is online",
    )
    group.add_argument("--project", metavar="NAME", help=f"of wandb and trackio; default: {DEFAULT_PROJECT}")
    group.add_argument("--run-name", metavar="NAME", help="of the trackers' run; default: theirs")
    group.add_argument(
        "--log-every-s", type=seconds, default=10.0, metavar="S", help="seconds between two steps of it; default 10"
    )


def check_tracking(arguments: argparse.Namespace) -> None:
    """Check that the options fit one another; nothing is begun.

    Raises:
        InvalidConfigError: If not.
    """
    names = arguments.report_to or ["none"]
    if "none" in names and len(set(names)) > 1:
        raise InvalidConfigError(f"--report-to {' '.join(names)}: none stands alone.")
    for option in ("project", "run_name"):
        if getattr(arguments, option) is not None and names == ["none"]:
            raise InvalidConfigError(f"--{option.replace('_', '-')} is for --report-to, which names no tracker.")
    if arguments.out is None and (lying := [name for name in names if name in NEEDS_FOLDER]):
        raise InvalidConfigError(f"--report-to {lying[0]} writes into the run's folder: give --out DIR.")


def tracker_of(
    arguments: argparse.Namespace, config: Mapping[str, Any]
) -> contextlib.AbstractContextManager[RunLogger | None]:
    """Make the logger that `add_tracking_arguments` was asked for; None where none was.

    Raises:
        InvalidConfigError: As `check_tracking`.
        MissingExtraError: As `tracker_logger`.
    """
    from llm_envs.results import installed_versions

    check_tracking(arguments)
    names = arguments.report_to or ["none"]
    if "none" in names:
        return contextlib.nullcontext()
    return tracker_logger(
        names,
        project=arguments.project,
        folder=arguments.out,
        run_name=arguments.run_name,
        config={**config, "versions": installed_versions()},
    )


def _say(name: str, error: Exception, what: str) -> None:
    said = " ".join(visible_text(f"{type(error).__name__}: {error}").split())
    print(f"llm-envs: {name} failed ({said:.300}): {what}.", file=sys.stderr)
