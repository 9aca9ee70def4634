"""The reward columns and the advantage of each episode of a training, from its records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llm_envs.data.files import open_bytes
from llm_envs.data.json_files import NO_JSON
from llm_envs.problems import is_number
from llm_envs.types import Trajectory

__all__ = ["Learned"]

FOLDER = "record"
"""`trainers.episodes.training_record` writes it."""

Facts = Mapping[str, Any]


class Learned:
    """The records of a training's folder, read as they grow.

    Args:
        run: The trainer's `output_dir`.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._offsets: dict[Path, int] = {}
        self._found: dict[tuple[str, int], Facts] = {}

    def of(self, trajectory: Trajectory) -> Facts | None:
        """Return what was learned from an episode; None if no record has it.

        Keys: `step`, `columns` (name -> reward), `weights` (name -> weight), `advantage` (null if it differs by token).
        """
        key = trajectory.group_id, trajectory.member
        if key not in self._found and trajectory.group_id.startswith("train-"):
            self._read()
        return self._found.get(key)

    def _read(self) -> None:
        for path in sorted((self._run / FOLDER).glob("*.jsonl")):
            try:
                if path.stat().st_size == self._offsets.get(path, 0):
                    continue
                with open_bytes(path) as file:
                    file.seek(self._offsets.get(path, 0))
                    while (line := file.readline()).endswith(b"\n"):
                        self._add(line)
                    self._offsets[path] = file.tell() - len(line)
            except OSError:
                continue

    def _add(self, line: bytes) -> None:
        try:
            record = json.loads(line)
            if record["kind"] != "generation":
                return
            columns, advantages = record["columns"], record.get("advantages")
            # The rows of forks come last.
            is_by_episode = isinstance(advantages, list) and len(advantages) == len(record["episodes"])
            for place, (group, member) in enumerate(record["episodes"]):
                values = {str(name): _number(column[place]) for name, column in columns.items()}
                self._found[str(group), int(member)] = {
                    "step": _number(record.get("step")),
                    "columns": values,
                    "weights": {str(name): _number(weight) for name, weight in record.get("weights", {}).items()},
                    "advantage": _number(advantages[place]) if is_by_episode else None,
                }
        except (KeyError, TypeError, IndexError, AttributeError, *NO_JSON):
            return


def _number(value: Any) -> float | None:
    return float(f"{value:.6g}") if is_number(value) else None
