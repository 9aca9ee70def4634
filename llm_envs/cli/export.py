"""`llm-envs export`: a collected run in a form that others read."""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_envs.errors import InvalidConfigError, StoreError
from llm_envs.tracking.loggers import visible_text

if TYPE_CHECKING:
    from llm_envs.types import Trajectory

__all__ = ["add_arguments", "run"]

FORMS = {
    "messages": "one conversation per line with its tools, in the format of chat APIs (JSONL)",
    "sft": "token rows for TRL's SFTTrainer (JSONL)",
    "pairs": "the best and the worst episode of each group, as token rows (JSONL)",
    "dataset": "everything, as a folder for datasets.load_from_disk",
}

EXAMPLES = """
examples:
  llm-envs export runs/oracle conversations.jsonl --to messages
  llm-envs export runs/oracle rows.jsonl --to sft --keep successes
  llm-envs export runs/grouped pairs.jsonl --to pairs --margin 0.1
  llm-envs export runs/oracle table --to dataset
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("run", metavar="RUN", help="the folder of a run")
    parser.add_argument("out", metavar="OUT", help="output file; a folder for a dataset")
    parser.add_argument(
        "--to", choices=FORMS, required=True, help="; ".join(f"{name}: {about}" for name, about in FORMS.items())
    )
    parser.add_argument(
        "--keep",
        choices=["scored", "successes", "all"],
        help="episodes to export; default: all for a dataset, else the scored ones",
    )
    parser.add_argument("--margin", type=_margin, default=0.0, help="pairs: minimum difference of rewards; default 0")
    parser.epilog = EXAMPLES


def run(arguments: argparse.Namespace) -> int:
    """Export, and return the exit code."""
    from llm_envs.data.writer import iter_trajectories

    target = Path(arguments.out)
    if target.exists():
        raise InvalidConfigError(f"{target} exists already: choose another name.")
    keep = _KEEP[arguments.keep or ("all" if arguments.to == "dataset" else "scored")]
    trajectories = [t for t in iter_trajectories(arguments.run) if keep(t)]
    if not trajectories:
        raise InvalidConfigError(f"{arguments.run}: no episode is left to export. Try --keep all.")
    try:
        n = _write(trajectories, target, arguments)
    except OSError as error:
        raise StoreError(f"{target} cannot be written ({error.strerror}); nothing was left there.") from error
    print(visible_text(f"{n} {_NOUNS[arguments.to]} of {len(trajectories)} episodes are in {target}"))
    return 0


_KEEP: Mapping[str, Callable[[Trajectory], bool]] = {
    "all": lambda trajectory: True,
    "scored": lambda trajectory: trajectory.status == "ok",
    "successes": lambda trajectory: trajectory.is_success is True,
}
_NOUNS = {"messages": "conversations", "sft": "rows", "pairs": "pairs", "dataset": "rows"}


def _write(trajectories: Sequence[Trajectory], target: Path, arguments: argparse.Namespace) -> int:
    from llm_envs.data import datasets as data

    if arguments.to == "dataset":
        table = data.to_dataset(trajectories)
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=target.name + ".tmp-") as temporary:
            table.save_to_disk(str(Path(temporary) / "table"))
            (Path(temporary) / "table").rename(target)  # whole, or not at all
        return len(table)
    records: Sequence[Mapping[str, Any]]
    if arguments.to == "messages":
        return data.to_messages_jsonl(trajectories, target, keep=lambda trajectory: True)
    if arguments.to == "sft":
        records = data.sft_rows(trajectories, keep=lambda trajectory: True)
    else:
        records = data.preference_pairs(data.to_groups(trajectories), margin=arguments.margin)
    if not records:
        raise InvalidConfigError(
            f"{arguments.run}: no {_NOUNS[arguments.to]} come of {len(trajectories)} episodes"
            + ("; every group's rewards are equal, or within --margin." if arguments.to == "pairs" else ".")
        )
    return data.write_jsonl(records, target)


def _margin(text: str) -> float:
    value = float(text)
    if not (value >= 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{text} is not a number of at least 0")
    return value
