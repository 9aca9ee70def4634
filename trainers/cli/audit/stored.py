"""Reads what a training left in its folder: episodes, records, checkpoints, metrics and settings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llm_envs.data.files import read_text
from llm_envs.data.writer import iter_trajectories
from llm_envs.errors import InvalidConfigError, StoreError
from llm_envs.trainers.episodes.training_record import FOLDER, unpack
from llm_envs.types import Trajectory

__all__ = ["Started", "StoredTraining", "read_training"]

_CHECKPOINT = re.compile(r"checkpoint-\d+")


@dataclass
class Started:
    """The files of one process between a start of the run and its end or next start."""

    name: str
    """Such as "process-0"; "process-0.2" after a resume."""
    trajectories: dict[tuple[str, int], Trajectory] = field(default_factory=dict)
    twice: list[tuple[str, int]] = field(default_factory=list)
    """Episodes that are stored more than once."""
    damage: str | None = None
    """Why the episodes cannot be read, or not all of them."""
    run: Mapping[str, Any] | None = None
    """The first line of the record; None: the record is missing."""
    generations: list[Mapping[str, Any]] = field(default_factory=list)
    steps: dict[int, float | None] = field(default_factory=dict)
    """Step -> loss."""

    @property
    def episodes_file(self) -> str:
        """The folder of the episodes, relative to the run."""
        return f"trajectories/{self.name}"

    @property
    def record_file(self) -> str:
        """The file of the record, relative to the run."""
        return f"{FOLDER}/{self.name}.jsonl"

    def members(self, generation: Mapping[str, Any]) -> list[Trajectory] | None:
        """Return the episodes of a generation in its order; None if one is missing."""
        found = [self.trajectories.get((group, member)) for group, member in generation["episodes"]]
        return None if None in found else [t for t in found if t is not None]


@dataclass
class StoredTraining:
    """A training's folder."""

    folder: Path
    starts: list[Started]
    models: dict[int, Path]
    """Optimizer steps -> the folder of the weights after them."""
    metrics: list[Mapping[str, Any]]
    """Logged metrics, each with `step`."""
    metrics_file: str | None
    tokenizer: Path | None


def read_training(folder: str | Path) -> StoredTraining:
    """Read the folder of a training.

    Raises:
        InvalidConfigError: If the folder has no episodes of a training.
    """
    root = Path(folder)
    names = sorted(path.name for path in root.glob("trajectories/*") if path.is_dir())
    if not names:
        raise InvalidConfigError(
            f"{folder} has no folder trajectories/ with episodes, so it is not a training's: give the output_dir of a "
            "training that played its episodes, with save_trajectories (the default)."
        )
    starts = [_read_start(root, name) for name in names]
    if all(start.run is None for start in starts):
        raise InvalidConfigError(
            f"{folder} has episodes, but no record of what was learned ({FOLDER}/): the run is older than the record, "
            "or it was collected and not trained."
        )
    if any((start.run or {}).get("trainer") == "dpo" for start in starts):
        raise InvalidConfigError(
            f"{folder} is a run of online DPO, which this version does not have: audit it with the one that trained it."
        )
    metrics_file, metrics = _read_metrics(root)
    models = dict(_models(root))
    places = [root, *(models[step] for step in sorted(models, reverse=True))]
    tokenizer = next((place for place in places if (place / "tokenizer_config.json").is_file()), None)
    return StoredTraining(root, starts, models, metrics, metrics_file, tokenizer)


def _read_start(root: Path, name: str) -> Started:
    start = Started(name)
    try:
        for trajectory in iter_trajectories(root / "trajectories" / name):
            key = trajectory.group_id, trajectory.member
            if key in start.trajectories:
                start.twice.append(key)
            start.trajectories.setdefault(key, trajectory)
    except (StoreError, ValueError) as error:
        start.damage = str(error)
    path = root / FOLDER / f"{name}.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    for number, line in enumerate(lines):
        try:
            record = json.loads(line)
            kind = record["kind"]
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines) - 1:  # a kill tore it
                break
            raise InvalidConfigError(f"{path}, line {number + 1} is not a record ({error}).") from error
        if kind == "run":
            start.run = record
        elif kind == "step":
            start.steps[record["step"]] = record["loss"]
        else:
            start.generations.append(_unpacked(record))
    return start


def _unpacked(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a generation with its packed numbers of tokens as lists."""
    packed = [
        name for name in ("advantages", "values", "kl_penalties") if isinstance((record.get(name) or [0])[0], str)
    ]
    return {**record, **{name: [unpack(row) for row in record[name]] for name in packed}}


def _models(root: Path) -> Iterator[tuple[int, Path]]:
    """Yield the number of optimizer steps and the folder of each stored model."""
    for path in sorted(root.iterdir()):
        state = path / "trainer_state.json"
        if not _CHECKPOINT.fullmatch(path.name) or not state.is_file():
            continue
        try:
            yield json.loads(state.read_text(encoding="utf-8"))["global_step"], path
        except (ValueError, KeyError) as error:
            raise InvalidConfigError(f"{path} cannot be read ({error}): copy the complete checkpoint.") from error


def _read_metrics(root: Path) -> tuple[str | None, list[Mapping[str, Any]]]:
    """Return the file of the metrics and its entries: of the finished run, of one that was ended, or a checkpoint's."""
    path = root / "metrics.jsonl"
    if path.is_file() and not (root / "trainer_state.json").is_file():
        lines = path.read_text(encoding="utf-8").splitlines()
        return path.name, [json.loads(line) for line in lines]
    states = [*root.glob("trainer_state.json"), *root.glob("checkpoint-*/trainer_state.json")]
    latest: tuple[int, str | None, list[Mapping[str, Any]]] = (-1, None, [])
    for path in states:
        state = json.loads(read_text(path))
        if state["global_step"] > latest[0]:
            latest = (state["global_step"], str(path.relative_to(root)), state["log_history"])
    return latest[1], latest[2]
