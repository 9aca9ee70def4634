"""One run of a live page: what it is, what it does now, and what is wrong with it."""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llm_envs.data.files import read_text
from llm_envs.data.folder import MANIFEST_NAME
from llm_envs.data.json_files import NO_JSON
from llm_envs.errors import LLMEnvsError
from llm_envs.evaluation.results import RESULTS_NAME
from llm_envs.problems import is_number
from llm_envs.report.episodes import Details
from llm_envs.report.evaluation import visible
from llm_envs.report.follow import EpisodeTail, MetricsTail, Place, Point
from llm_envs.report.learned import Learned
from llm_envs.report.runs import ReportRun, describe_run, run_parts
from llm_envs.tracking.live import LIVE_NAME
from llm_envs.types import Trajectory

__all__ = ["LiveRun", "live_runs"]

SILENT_S = 30.0
"""A running process writes its live file every second; one on a busy machine may be late."""
WINDOW_S = 60.0
"""Throughput is measured over the last minute."""
N_NEWEST = 100
"""Episodes that the share of failures is of."""
FAILING = 0.2
N_EQUAL = 8
"""Groups in a row whose rewards are all equal."""
_NUMBERS = ("done", "failed", "success", "reward", "running", "tokens", "playing_s", "policy_s", "env_s", "waited_s")


@dataclass(slots=True)
class LiveRun:
    """A run that is followed."""

    path: Path
    """The given folder or file."""
    run: ReportRun
    only: Path | None = None
    """The folder of its trajectories, if the given one has several runs."""
    tails: list[EpisodeTail] = field(default_factory=list)
    metrics: MetricsTail | None = None
    learned: Learned | None = None
    is_behind: bool = True
    """Whether its folder may have more episodes than have been read."""
    _unread: dict[int, str] = field(default_factory=dict)
    """Part -> why it could not be read just now."""
    _looked: tuple[Any, ...] = ()
    _newest: deque[bool] = field(default_factory=lambda: deque(maxlen=N_NEWEST))
    """Whether each of the newest episodes failed."""
    _groups: dict[int, tuple[int, float, bool]] = field(default_factory=dict)
    """Group -> episodes, first reward, whether all are equal; the newest groups."""
    _heard: deque[tuple[float, float, float]] = field(default_factory=deque)
    """(time, episodes, tokens) of the live files."""
    _last: dict[str, float] = field(default_factory=dict)
    """Metric -> its newest value."""

    def look(self) -> bool:
        """Look at the folder's description again if it has changed; return whether it has."""
        parts = [self.only] if self.only else _own_parts(self.path)
        for part in parts:
            if all(tail.path != part for tail in self.tails):
                self.tails.append(EpisodeTail(part))
        results = self.path / RESULTS_NAME
        now = (tuple(parts), results.stat().st_mtime_ns if results.is_file() else 0)
        if now == self._looked:
            return False
        self._looked = now
        self.run = describe_run(self.path, self.run.name, parts)
        return True

    def read_points(self) -> list[Point]:
        """Return the metrics that are new."""
        points = [] if self.metrics is None else self.metrics.read()
        self._last |= {key: value for key, _, value in points}
        return [point for point in points if math.isfinite(point[2])]

    def read_episodes(self, limit: int) -> list[tuple[int, Place, Trajectory]]:
        """Return up to `limit` new episodes of each part, with the part's number."""
        out: list[tuple[int, Place, Trajectory]] = []
        self.is_behind = False
        for number, tail in enumerate(self.tails):
            try:
                found = tail.read(limit)
                out += [(number, place, trajectory) for place, trajectory in found]
                self.is_behind |= len(found) == limit
                self._unread.pop(number, None)
            except LLMEnvsError as error:
                self._unread[number] = str(error)
        return out

    def count(self, trajectory: Trajectory, group: int) -> None:
        """Count an episode for the alarms."""
        is_scored = trajectory.status == "ok"
        self._newest.append(not is_scored)
        if is_scored:
            n, first, is_equal = self._groups.pop(group, (0, trajectory.reward, True))
            self._groups[group] = n + 1, first, is_equal and trajectory.reward == first
            if len(self._groups) > 4 * N_EQUAL:
                del self._groups[next(iter(self._groups))]

    def details(self, details: Details, part: int, place: Place, number: int) -> dict[str, Any]:
        """Return an episode's details."""
        trajectory = self.tails[part].at(place)
        learned = None if self.learned is None else self.learned.of(trajectory)
        return details.of(trajectory, number, learned)

    def notes(self) -> list[str]:
        """Return what cannot be read, the newest 20 lines."""
        of_metrics = [] if self.metrics is None else self.metrics.notes
        return [
            *self.run.notes,
            *(note for tail in self.tails for note in tail.notes),
            *of_metrics,
            *self._unread.values(),
        ][-20:]

    def status(self) -> dict[str, Any]:
        """Return what the run does now, as JSON types: its live files together, its throughput, and alarms."""
        files = [] if self.only else _live_files(self.path)
        now = time.time()
        going = [file for file in files if file["ended"] is None]
        out: dict[str, Any] = {
            "state": "no live file" if not files else "running" if going else files[0]["ended"],
            "age": max(0.0, now - max((file["updated"] for file in files), default=now)),
            "alarms": [],
        }
        if files:
            out |= {name: sum(file[name] for file in files) for name in _NUMBERS}
            out |= {name: files[0][name] for name in ("kind", "step", "steps", "before")}
            out["total"] = sum(file["total"] for file in files)
            out["lasted_s"] = sum(file["updated"] - file["began"] for file in files)
            out["open"] = [entry for file in going for entry in file["open"]][:40]
            out |= self._throughput(files, out)
        is_silent = bool(going) and out["age"] > SILENT_S
        out["state"] = "silent" if is_silent else out["state"]
        out["alarms"] = self._alarms(out)
        shown: dict[str, Any] = visible(out)
        return shown

    def _throughput(self, files: Sequence[Mapping[str, Any]], counts: Mapping[str, Any]) -> dict[str, Any]:
        heard = (max(file["updated"] for file in files), counts["done"], counts["tokens"])
        if self._heard and (heard[1] < self._heard[-1][1] or heard[0] < self._heard[-1][0]):
            self._heard.clear()  # the run was begun again
        if not self._heard or heard[0] > self._heard[-1][0]:
            self._heard.append(heard)
        while heard[0] - self._heard[0][0] > WINDOW_S:
            self._heard.popleft()
        began = min(file["began"] for file in files), 0.0, 0.0
        since = self._heard[0] if heard[0] - self._heard[0][0] > 2 else began
        seconds = max(heard[0] - since[0], 1e-3)
        return {"episodes_per_s": (heard[1] - since[1]) / seconds, "tokens_per_s": (heard[2] - since[2]) / seconds}

    def _alarms(self, status: Mapping[str, Any]) -> list[str]:
        out = []
        if status["state"] == "silent":
            out.append(f"No sign of life for {status['age']:.0f} s: the process has stopped, or its machine.")
        elif status["state"] not in ("running", "finished", "no live file"):
            out.append(f"The run ended with {status['state']}")
        failed = sum(self._newest)
        if failed >= max(3, FAILING * len(self._newest)):
            out.append(f"{failed} of the newest {len(self._newest)} episodes failed or have no score.")
        if status.get("kind") == "training":
            whole = [is_equal for n, _, is_equal in self._groups.values() if n > 1][-N_EQUAL:]
            if len(whole) == N_EQUAL and all(whole):
                out.append(f"In each of the newest {N_EQUAL} groups all rewards are equal: they teach nothing.")
        out += [f"{key} is not a finite number." for key, value in self._last.items() if not math.isfinite(value)][:3]
        for key, value in self._last.items():
            if key.startswith("alarm/") and key.endswith("_evidence") and value >= 1:
                out.append(f"Reward hacking: the evidence of {key[6:-9]} has reached {value:.2f} (the alarm is at 1).")
        return out


def live_runs(paths: Sequence[tuple[Path, str]], known: Sequence[LiveRun]) -> list[LiveRun]:
    """Return the runs of the given folders: those that are known, in their order, and new ones behind them.

    A folder whose `trajectories/` holds named runs (not the processes of one training) has one for each, and one for
    the folder itself, which has the metrics.
    """
    out = list(known)
    for path, name in paths:
        if all(run.path != path for run in out):
            run = LiveRun(path, ReportRun(path, name, name))
            if path.is_dir() or not path.exists():
                run.metrics, run.learned = MetricsTail(path), Learned(path)
            out.append(run)
        for part in _named_parts(path):
            if all(run.only != part for run in out):
                out.append(LiveRun(path, ReportRun(part, f"{name}/{part.name}", name), part))
    return out


def _own_parts(path: Path) -> list[Path]:
    if not path.exists():
        return []
    named = set(_named_parts(path))
    return [path] if path.is_file() else [part for part in run_parts(path, []) if part not in named]


def _named_parts(path: Path) -> list[Path]:
    if not path.is_dir() or (path / MANIFEST_NAME).exists():
        return []
    parts = run_parts(path, [])
    return [part for part in parts if part.parent.name == "trajectories" and not part.name.startswith("process-")]


def _live_files(path: Path) -> list[dict[str, Any]]:
    """Return the live files of a run's processes; what is damaged, or not of the known form, is left out."""
    out = []
    names = sorted(file for file in path.glob("live-*.json") if LIVE_NAME.fullmatch(file.name)) if path.is_dir() else []
    for file in names:
        try:
            found = json.loads(read_text(file))
            if not is_number(found["updated"]):
                continue
            known: dict[str, Any] = {name: _or_zero(found.get(name)) for name in (*_NUMBERS, "step", "steps", "before")}
            known |= {name: _or_zero(found.get(name)) for name in ("total", "began", "updated")}
            ended, episodes = found.get("ended"), found.get("open")
            known |= {"kind": str(found.get("kind")), "ended": None if ended is None else str(ended)[:300]}
            known["open"] = [
                [str(env), str(seed), str(group), int(member), float(seconds)]
                for env, seed, group, member, seconds in (episodes if isinstance(episodes, list) else [])
            ]
            out.append(known)
        except (OSError, KeyError, TypeError, AttributeError, *NO_JSON):
            continue
    return out


def _or_zero(value: Any) -> float:
    return value if is_number(value) and math.isfinite(value) else 0
