"""The folders of a report: where a run's trajectories, metrics and results are, for every kind of run.

A run is the folder of a `TrajectoryWriter` (`llm-envs collect`), an evaluation's folder with `results.json`, a
trainer's `output_dir` with `trajectories/process-*`, a folder whose `trajectories/` holds named runs
(`examples/demo.py`), or a single file of trajectories or results. A half-written file is read up to the damage, and the
report notes it.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llm_envs.data.folder import MANIFEST_NAME, read_manifest
from llm_envs.data.storage import as_path, exists
from llm_envs.data.writer import iter_trajectories, n_records
from llm_envs.errors import InvalidConfigError, StoreError
from llm_envs.evaluation.replayed import played_entries
from llm_envs.evaluation.results import RESULTS_NAME, Results
from llm_envs.report.curves import Curves, checkpoints, read_curves
from llm_envs.tracking.loggers import visible_text
from llm_envs.types import Trajectory

__all__ = ["ReportRun", "describe_run", "open_runs", "run_parts"]

_PROCESS = re.compile(r"process-\d+")
"""The name of a trainer's folder for each of its processes; together they are one run."""
_TOKENIZER_NAME = "tokenizer_config.json"


@dataclass(slots=True)
class ReportRun:
    """One run as a report sees it."""

    path: Path
    name: str
    """Short, and unique in the report."""
    folder_name: str = ""
    """The name of the given folder, which may have several runs."""
    parts: tuple[Path, ...] = ()
    """Folders of trajectories, or one file, in order."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The settings in the first part's manifest."""
    curves: Curves = field(default_factory=dict)
    """The logged metrics, if any."""
    results: Results | None = None
    """The results of an evaluation, if any."""
    tokenizer: Path | None = None
    """A folder with the tokenizer of the run's model."""
    notes: list[str] = field(default_factory=list)
    """Notes about missing or damaged files, one line each. Reading adds more."""

    def n_episodes(self) -> int:
        """Return about how many episodes the run has, for a sample: those that were replayed count twice."""
        try:
            return sum(map(n_records, self.parts))
        except StoreError:  # reading names the damage
            return 0

    def trajectories(self) -> Iterator[tuple[int, Trajectory]]:
        """Yield (index of the part, trajectory) in the order of finishing; a torn line is left out and noted."""
        n_read = 0
        for index, part in enumerate(self.parts):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for trajectory in iter_trajectories(part):
                    n_read += 1
                    yield index, trajectory
            self.notes += [visible_text(str(warning.message)) for warning in caught]
        wanted = _episodes_of_evaluation(self.settings) if self.parts else 0  # a run with only results is complete
        if n_read < wanted:
            self.notes.append(f"{self.path} is half-written: it has {n_read} of {wanted} episodes; --resume goes on.")


def open_runs(path: str | Path, name: str | None = None) -> list[ReportRun]:
    """Find the parts of a run; its trajectories are read later.

    Args:
        path: A folder, or a file of trajectories or results.
        name: The run's name in the report; None takes the folder's name.

    Returns:
        Usually one run. If `trajectories/` has several named runs (not the processes of one training), the first entry
        has the training's curves and the folder's name, and the runs follow in the order of writing.

    Raises:
        StoreError: If a report would have nothing to show.
        InvalidConfigError: If the folder has only results, and they cannot be read.
    """
    run = as_path(path)
    if not exists(run):
        raise StoreError(f"{run} does not exist: give the folder of a run.")
    name = name or run.resolve().name
    whole = ReportRun(run, name, name, tokenizer=_tokenizer(run))
    if run.is_file():
        return [_open_file(whole)]
    whole.parts = tuple(run_parts(run, whole.notes))
    whole.curves = read_curves(run, whole.notes)
    whole.results = _results(whole, is_all=not whole.parts and not whole.curves)
    if not whole.parts and not whole.curves and whole.results is None:
        _refuse(run)
    if any(part.parent.name == "trajectories" and not _PROCESS.fullmatch(part.name) for part in whole.parts):
        return _apart(whole)
    if not whole.parts:
        kept = (
            "a trainer that plays keeps them with save_trajectories" if whole.curves else "they were kept in its folder"
        )
        had = "metrics" if whole.curves else "results"
        whole.notes.append(f"{run} has {had} and no trajectories: {kept}.")
    return [_with_settings(whole)]


def describe_run(path: Path, name: str, parts: Sequence[Path]) -> ReportRun:
    """Return a run that may have just begun: its settings, its results if it has any, and its tokenizer.

    Args:
        path: The run's folder or file.
        name: Its name.
        parts: Its folders of trajectories, which are there.
    """
    run = ReportRun(path, name, name, tuple(parts), tokenizer=_tokenizer(path) if path.is_dir() else None)
    run.results = _results(run, is_all=False)
    try:
        return _with_settings(run)
    except StoreError as error:
        run.notes.append(str(error))
        return run


def _open_file(run: ReportRun) -> ReportRun:
    """Open a file of results together with the run in its folder, or a file of trajectories."""
    folder = run.path.parent
    if run.path.suffix != ".json":
        run.parts = (run.path,)
        return run
    run.results = Results.load(run.path)
    run.parts = (folder,) if (folder / MANIFEST_NAME).exists() else ()
    return _with_settings(run)


def _with_settings(run: ReportRun) -> ReportRun:
    """Read the manifest. It, or the results, may name the model's folder, which has the tokenizer."""
    if run.parts and run.parts[0].is_dir():
        run.settings = read_manifest(run.parts[0]).settings
    elif run.results is not None:
        run.settings = run.results.settings
    model = run.settings.get("model")
    if run.tokenizer is None and isinstance(model, str) and (Path(model) / _TOKENIZER_NAME).is_file():
        run.tokenizer = Path(model)
    return run


def _apart(whole: ReportRun) -> list[ReportRun]:
    """Split a folder into its named runs. The curves, which belong to all of them, come first."""
    runs = [
        ReportRun(part, f"{whole.name}/{part.name}", whole.name, (part,), tokenizer=_tokenizer(part) or whole.tokenizer)
        for part in sorted(whole.parts, key=lambda part: ((part / MANIFEST_NAME).stat().st_mtime_ns, part.name))
    ]
    runs = [_with_settings(run) for run in runs]
    if not whole.curves and whole.results is None:
        runs[0].notes[:0] = whole.notes
        return runs
    whole.parts = ()
    return [whole, *runs]


def run_parts(run: Path, notes: list[str]) -> list[Path]:
    """Return the folders with trajectories: this one, `trajectories/`, or one per process or named run below that."""
    if (run / MANIFEST_NAME).exists():
        return [run]
    below = run / "trajectories"
    if (below / MANIFEST_NAME).exists():
        return [below]
    folders = [path for path in below.glob("*") if path.is_dir()]
    folders.sort(key=lambda path: ([int(number) for number in re.findall(r"\d+", path.name)], path.name))
    without = [folder for folder in folders if not (folder / MANIFEST_NAME).exists()]
    notes += [f"{folder} is left out: there is no {MANIFEST_NAME} in it." for folder in without]
    return [folder for folder in folders if folder not in without]


def _results(run: ReportRun, *, is_all: bool) -> Results | None:
    """Return the folder's results. If they cannot be read, note it, or raise if the folder has nothing else."""
    if not (run.path / RESULTS_NAME).exists():
        return None
    try:
        return Results.load(run.path)
    except InvalidConfigError as error:
        if is_all:
            raise
        run.notes.append(f"{error} The numbers here are counted from the trajectories.")
        return None


def _refuse(run: Path) -> None:
    """Raise the error about a missing manifest, and name a readable file of trajectories if the folder has one."""
    single = next((path for pattern in ("*.jsonl", "*.parquet") for path in sorted(run.glob(pattern))), None)
    try:
        read_manifest(run)
    except StoreError as error:
        hint = " A run is the folder of llm-envs collect, of llm-envs eval --out, or a trainer's output_dir."
        if single is not None:
            hint = f" A file of trajectories can be read alone: llm-envs report {single}"
        raise StoreError(f"{error}{hint}") from error


def _tokenizer(run: Path) -> Path | None:
    """Return the run's own folder, the model in it, or its last checkpoint, if it has a tokenizer."""
    places = (run, run / "model", *checkpoints(run))
    return next((folder for folder in places if (folder / _TOKENIZER_NAME).is_file()), None)


def _episodes_of_evaluation(settings: Mapping[str, Any]) -> int:
    """Return the number of episodes of a finished evaluation; 0 if the run is not an evaluation."""
    try:
        return sum(entry.n for entry in played_entries(settings)) * int(settings.get("group_size", 1))
    except (InvalidConfigError, TypeError, ValueError):
        return 0
