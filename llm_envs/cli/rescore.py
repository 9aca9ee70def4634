"""`llm-envs rescore`: new rewards for a stored run, in a new folder."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from llm_envs.cli.next_line import name_next
from llm_envs.data.storage import as_path, is_remote, local_path
from llm_envs.errors import InvalidConfigError, StoreError
from llm_envs.objects import absolute_name, load_object
from llm_envs.tracking.loggers import visible_text

if TYPE_CHECKING:
    from llm_envs.types import Trajectory

__all__ = ["add_arguments", "run"]

EXAMPLES = """
examples:
  llm-envs rescore runs/oracle --rewards my_rewards.py:conduct
  llm-envs rescore outputs/grpo --rewards my_rewards.py:REWARDS --out runs/rescored
  llm-envs rescore s3://bucket/runs/a --rewards my_package.rewards:judge --out runs/judged
"""

_AT_ONCE = 1_000
"""Episodes in memory, unless rewards compare the members of a group."""
_COMPARING = ("relative", "pareto")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("run", metavar="RUN", help="a folder of collect or eval, or a trainer's output_dir")
    parser.add_argument(
        "--rewards",
        required=True,
        metavar="FILE:NAME",
        help="FILE.py:NAME of your rewards, which replace the run's: a reward function, a list or a mapping of them, "
        "or a RewardSettings",
    )
    parser.add_argument("--out", metavar="DIR", help="output folder; default: RUN-rescored")


def run(arguments: argparse.Namespace) -> int:
    """Write the run with its new rewards, and print the old and new means."""
    source = as_path(arguments.run)
    if arguments.out is None and is_remote(source):
        raise InvalidConfigError(f"{source} is on object storage: give --out, a folder on this machine.")
    named = source.resolve() if not is_remote(source) else source
    target = local_path(arguments.out or named.with_name(f"{named.stem}-rescored"), "a rescored run")
    if target.exists():
        raise InvalidConfigError(f"{target} exists already: choose another --out.")
    settings = _read_rewards(arguments.rewards)
    counts = _Counts()
    rescored = {"rescored": {"run": str(arguments.run), "rewards": absolute_name(arguments.rewards)}}
    try:
        _write(source, target, settings, _stored_settings(source) | rescored, counts)
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"{target} cannot be written ({error.strerror}); nothing was left there.") from error
    print(visible_text(counts.summary(target)))
    name_next("report", arguments.run, target)
    return 0


def _read_rewards(text: str) -> dict[str, Any]:
    """Return the arguments of `rescore` that an object names.

    Raises:
        InvalidConfigError: If it is none of the forms, or has parts that stored episodes cannot get.
    """
    found = load_object("--rewards", text)
    if hasattr(found, "reward_fns"):  # a RewardSettings, which this command need not import
        turned = [name for name in ("shaping_fns", "components") if getattr(found, name)]
        is_other = isinstance(found.aggregate, str) and found.aggregate not in _COMPARING
        if turned or is_other or found.reward_fns is None:
            wrong = ", ".join([*turned, *(["aggregate"] if is_other else [])]) or "no reward_fns"
            raise InvalidConfigError(
                f"--rewards {text}: its RewardSettings has {wrong}; a stored run takes reward_fns, weights, and as "
                f"aggregate a function or one of {', '.join(_COMPARING)}."
            )
        is_function = not isinstance(found.aggregate, str)
        return {
            "reward_fns": found.reward_fns,
            "weights": found.weights,
            "aggregate": found.aggregate if is_function else None,
            "method": "absolute" if is_function else found.aggregate,
        }
    if not isinstance(found, Mapping | list | tuple) and not callable(found):
        raise InvalidConfigError(
            f"--rewards {text}: it is of type {type(found).__name__}; it must be a reward function, a list or a "
            "mapping of them, or a RewardSettings."
        )
    return {"reward_fns": found}


def _stored_settings(source: Any) -> dict[str, Any]:
    """Return a run's settings: in a trainer's folder, the first process has them, and a single file has none."""
    from llm_envs.data.folder import MANIFEST_NAME, read_manifest
    from llm_envs.data.storage import exists

    for folder in (source, source / "trajectories" / "process-0"):
        if exists(folder / MANIFEST_NAME):
            return dict(read_manifest(folder).settings)
    return {}


@dataclass
class _Counts:
    """Counts of the old and new rewards."""

    old: list[float] = field(default_factory=list)
    new: list[float] = field(default_factory=list)
    n: int = 0
    n_changed: int = 0
    n_unscored: int = 0

    def add(self, before: Trajectory, after: Trajectory) -> None:
        """Count an episode."""
        self.n += 1
        if before.status != "ok":
            return
        self.old.append(before.reward)
        if after.status != "ok":
            self.n_unscored += 1
            return
        self.new.append(after.reward)
        self.n_changed += after.reward != before.reward

    def summary(self, target: Path) -> str:
        """Return the line for the user."""
        old, new = (f"{fmean(values):.3f}" if values else "none" for values in (self.old, self.new))
        unscored = f", {self.n_unscored} have no score now" if self.n_unscored else ""
        failed = f", {self.n - len(self.old)} had none" if self.n > len(self.old) else ""
        means = f"mean reward {old} -> {new}; {self.n_changed} of {len(self.old)} changed"
        return f"{self.n} episodes are in {target}: {means}{unscored}{failed}"


def _write(source: Any, target: Path, rewards: Mapping[str, Any], settings: Mapping[str, Any], counts: _Counts) -> None:
    """Write the run: complete, or not at all."""
    from llm_envs.data.writer import TrajectoryWriter, iter_trajectories
    from llm_envs.rewards import rescore

    episodes = iter_trajectories(source)
    n = None if rewards.get("method", "absolute") in _COMPARING else _AT_ONCE
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=target.name + ".tmp-") as temporary:
        with TrajectoryWriter(Path(temporary) / "run", settings=settings) as writer:
            for some in _parts(episodes, n):
                for before, after in zip(some, rescore(some, **rewards), strict=True):
                    counts.add(before, after)
                    writer.write(after)
        if not counts.n:
            raise InvalidConfigError(f"{source} has no episode.")
        (Path(temporary) / "run").rename(target)


def _parts(episodes: Iterator[Trajectory], n: int | None) -> Iterator[Sequence[Trajectory]]:
    """Yield episodes, at most `n` in each list; None: all in one."""
    while some := list(islice(episodes, n)):
        yield some
