"""`llm-envs export`: a collected run in a form that others read."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_envs.cli.arguments import number
from llm_envs.cli.next_line import name_next
from llm_envs.cli.parser import Flag
from llm_envs.data.storage import as_path, local_path
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
    "hub": "everything, as a data set on the hub with a card",
}

EXAMPLES = """
examples:
  llm-envs export runs/oracle conversations.jsonl --to messages
  llm-envs export runs/oracle rows.jsonl --to sft --keep successes
  llm-envs export runs/grouped pairs.jsonl --to pairs --margin 0.1
  llm-envs export runs/oracle table --to dataset
  llm-envs export runs/oracle OWNER/NAME --to hub --license cc-by-4.0
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("run", metavar="RUN", help="the folder of a run, also on object storage")
    parser.add_argument("out", metavar="OUT", help="output file; a folder for a dataset; OWNER/NAME for the hub")
    parser.add_argument(
        "--to", choices=FORMS, required=True, help="; ".join(f"{name}: {about}" for name, about in FORMS.items())
    )
    parser.add_argument(
        "--keep",
        choices=["scored", "successes", "all"],
        help="episodes to export; default: all for a dataset and the hub, else the scored ones",
    )
    margin = number("a number of at least 0", lambda value: value >= 0)
    parser.add_argument("--margin", type=margin, default=0.0, help="pairs: minimum difference of rewards; default 0")
    parser.add_argument("--public", action=Flag, help="hub: a new repository is public; default: private")
    parser.add_argument("--license", metavar="NAME", help="hub: the data's license, such as cc-by-4.0")


def run(arguments: argparse.Namespace) -> int:
    """Export, and return the exit code. No more of the run is in memory than is being written."""
    if arguments.to == "hub":
        return _push(arguments)
    target = local_path(arguments.out, "an export")
    if target.exists():
        raise InvalidConfigError(f"{target} exists already: choose another name.")
    episodes = _Counted(_kept(arguments))
    try:
        n = _write(episodes, target, arguments)
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"{target} cannot be written ({error.strerror}); nothing was left there.") from error
    print(visible_text(f"{n} {_NOUNS[arguments.to]} of {episodes.n} episodes are in {target}"))
    training = "dpo" if arguments.to == "pairs" else "sft"
    name_next("train", training, "--source", target, "--model", "MODEL", "--out", f"runs/{training}")
    return 0


_KEEP: Mapping[str, Callable[[Trajectory], bool]] = {
    "all": lambda trajectory: True,
    "scored": lambda trajectory: trajectory.status == "ok",
    "successes": lambda trajectory: trajectory.is_success is True,
}
_NOUNS = {"messages": "conversations", "sft": "rows", "pairs": "pairs", "dataset": "rows"}


def _push(arguments: argparse.Namespace) -> int:
    from llm_envs.report.hub import push_to_hub

    keep = _KEEP[arguments.keep or "all"]
    private = not arguments.public
    address = push_to_hub(arguments.run, arguments.out, private=private, license=arguments.license, keep=keep)
    print(visible_text(f"the data set is at {address}"))
    name_next("report", arguments.run)
    return 0


class _Counted:
    """The episodes, and how many of them were read."""

    def __init__(self, episodes: Iterator[Trajectory]) -> None:
        self._episodes, self.n = episodes, 0

    def __iter__(self) -> Iterator[Trajectory]:
        for self.n, episode in enumerate(self._episodes, start=1):  # noqa: B020
            yield episode


def _kept(arguments: argparse.Namespace) -> Iterator[Trajectory]:
    """Return the episodes to export: at least one."""
    from llm_envs.data.writer import iter_trajectories

    keep = _KEEP[arguments.keep or ("all" if arguments.to == "dataset" else "scored")]
    episodes = (episode for episode in iter_trajectories(arguments.run) if keep(episode))
    first = next(episodes, None)
    if first is None:
        raise InvalidConfigError(f"{arguments.run}: no episode is left to export. Try --keep all.")
    return chain([first], episodes)


def _write(episodes: _Counted, target: Path, arguments: argparse.Namespace) -> int:
    from llm_envs.data import datasets as data
    from llm_envs.data.folder import read_manifest

    if arguments.to == "dataset":
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=target.name + ".tmp-") as temporary:
            n = data.write_dataset(episodes, Path(temporary) / "table")
            (Path(temporary) / "table").rename(target)  # complete, or not at all
        return n
    if arguments.to == "messages":
        return data.to_messages_jsonl(episodes, target, keep=lambda trajectory: True)
    records: Iterator[Mapping[str, Any]]
    if arguments.to == "sft":
        records = (row for episode in episodes for row in data.sft_rows([episode], keep=lambda trajectory: True))
    else:
        size = None
        with suppress(StoreError):  # a single file has no settings
            size = read_manifest(as_path(arguments.run)).settings.get("group_size")
        groups = data.iter_groups(episodes, size if isinstance(size, int) else None)
        records = (pair for group in groups for pair in data.preference_pairs([group], margin=arguments.margin))
    first = next(records, None)
    if first is None:
        raise InvalidConfigError(
            f"{arguments.run}: no {_NOUNS[arguments.to]} come of {episodes.n} episodes"
            + ("; every group's rewards are equal, or within --margin." if arguments.to == "pairs" else ".")
        )
    return data.write_jsonl(chain([first], records), target)
