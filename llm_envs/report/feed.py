"""The data of a live page: read from the folders of runs in small steps, and served by offset.

1. Rows, points and names only grow, and a page sends how many of each it has; so every answer is an addition.
2. An answer has at most `MAX_ROWS` rows and `MAX_POINTS` points; the page asks again without a pause if `more` is true.
3. `id` is new whenever the numbers of before mean something else: then a page forgets all, and asks from the start.
4. All texts are made visible (`visible_text`), and the page makes no markup of them.
"""

from __future__ import annotations

import json
import math
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from llm_envs.errors import LLMEnvsError
from llm_envs.report.episodes import COLUMNS, OUTCOMES, Details, Names, table_line
from llm_envs.report.evaluation import compare_results, visible
from llm_envs.report.follow import Place, Restarted
from llm_envs.report.live_runs import LiveRun, live_runs
from llm_envs.report.site import run_block, run_names
from llm_envs.report.summary import TaskSummary, by_task, compare_runs, settings_text
from llm_envs.report.token_texts import token_decoder
from llm_envs.tracking.loggers import visible_text
from llm_envs.types import Trajectory

__all__ = ["MAX_AT_ONCE", "MAX_POINTS", "MAX_ROWS", "Feed"]

MAX_ROWS, MAX_POINTS = 2_000, 20_000
"""Of one answer: some 300 kB each."""
MAX_AT_ONCE = 32
"""Episodes whose details one answer has: a page draws 24 side by side."""
MAX_TOKENS, MAX_CHARACTERS = 200_000, 4_000_000
"""Of the details of one answer; what is beyond has a note in place of it."""
READ_AT_ONCE = 200
"""Episodes read while the lock is held: some 30 ms."""
KINDS = ("env", "stop", "begins", "settings", "part")
"""Names that the table needs."""


class Feed:
    """The runs of a live page.

    Args:
        paths: Folders of runs, which need not have anything in them yet.
        tokenizer: Folder of a tokenizer for all runs; None: each run's own.
        title: The page's title; None names the runs.
    """

    def __init__(self, paths: Sequence[str | Path], *, tokenizer: str | Path | None = None, title: str | None = None):
        self._paths = [(Path(path), name) for path, name in zip(paths, run_names(paths), strict=True)]
        self._tokenizer = tokenizer
        self._decoders: dict[Path, Any] = {}
        self._lock = threading.Lock()
        self.title = visible_text(title or "Live: " + ", ".join(name for _, name in self._paths))
        self._reset()

    def _reset(self) -> None:
        self.id = secrets.token_hex(8)
        self._runs: list[LiveRun] = []
        self._names = Names()
        self._rows: list[list[Any]] = []
        self._places: list[tuple[int, int, Place]] = []
        self._failed: dict[tuple[int, int, str, int], int] = {}
        """(run, part, group, member) -> row of an episode that failed and may be replayed."""
        self._gone: list[int] = []
        """Rows that a later episode has replaced."""
        self._points: list[tuple[int, int, float, float]] = []
        self._keys: dict[str, int] = {}
        self._parts: dict[tuple[int, int, int], TaskSummary] = {}
        self._counted = 0
        self._summary: dict[str, Any] = {"version": 0, "tasks": [], "summary": [], "comparisons": [], "evaluations": []}
        self._summed_at, self._summing_s = -math.inf, 0.0
        self._about = 0
        self._is_behind = True
        """Whether the folders have more than has been read."""

    def read(self) -> bool:
        """Read what is new, at most a little at a time; return whether there was anything."""
        try:
            with self._lock:
                fresh = live_runs(self._paths, self._runs)
                self._about += sum(run.look() for run in fresh) > 0 or len(fresh) > len(self._runs)
                self._runs = fresh
                is_news = sum(self._read_run(number, run) for number, run in enumerate(self._runs)) > 0
                self._is_behind = any(run.is_behind for run in self._runs)
            self._sum_up(is_settled=not is_news)  # without the lock: only this thread changes what it reads
            return is_news
        except Restarted:
            with self._lock:
                self._reset()
            return True

    def _read_run(self, number: int, run: LiveRun) -> bool:
        found = run.read_points()
        for key, step, value in found:
            self._points.append((number, self._keys.setdefault(visible_text(key), len(self._keys)), step, value))
        episodes = run.read_episodes(READ_AT_ONCE)
        for part, place, trajectory in episodes:
            self._add(number, run, part, place, trajectory)
        return bool(found or episodes)

    def _add(self, number: int, run: LiveRun, part: int, place: Place, trajectory: Trajectory) -> None:
        line = [*table_line(trajectory, number, part, self._names), 0]
        values = dict(zip(COLUMNS, line, strict=True))
        self._parts.setdefault((number, values["env"], values["settings"]), TaskSummary()).add(
            trajectory, values["problem"]
        )
        key = (number, part, trajectory.group_id, trajectory.member)
        if (earlier := self._failed.pop(key, None)) is not None:
            self._gone.append(earlier)
            before = self._rows[earlier]
            self._parts[number, before[COLUMNS.index("env")], before[COLUMNS.index("settings")]].episodes -= 1
        if trajectory.error is not None:
            self._failed[key] = len(self._rows)
        self._rows.append(line)
        self._places.append((number, part, place))
        run.count(trajectory, values["group"])

    def _sum_up(self, *, is_settled: bool) -> None:
        """Compute the summary's numbers again, for at most a twentieth of the time."""
        now, version = time.monotonic(), len(self._rows) + self._about
        wait = 0.0 if is_settled else 2.0
        if version == self._counted or now - self._summed_at < max(20 * self._summing_s, wait):
            return
        texts = list(self._names.of.get("settings", ()))
        tasks, names = by_task(self._parts, list(self._names.of.get("env", ())), texts)
        self._summary = {
            "version": self._summary["version"] + 1,
            "tasks": [visible_text(name) for name in names],
            "summary": [{"run": run, "task": task} | visible(part.numbers()) for (run, task), part in tasks.items()],
            "comparisons": compare_runs(tasks),
            "evaluations": compare_results([run.run for run in self._runs]),
        }
        self._counted, self._summed_at, self._summing_s = version, now, time.monotonic() - now

    def frame(self) -> dict[str, Any]:
        """Return the data of a page that has nothing yet."""
        empty: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        return {
            "title": self.title,
            "live": True,
            "runs": [],
            "notes": [],
            "columns": empty,
            "outcomes": OUTCOMES,
            "names": {kind: [] for kind in KINDS},
            "tasks": [],
            "summary": [],
            "comparisons": [],
            "evaluations": [],
        }

    def answer(self, have: Mapping[str, str]) -> dict[str, Any]:
        """Return what a page does not have yet.

        Args:
            have: `id`, and how many `rows`, `points`, `keys`, `gone` and names of each kind the page has, and its
                versions `about` and `summary`; what is missing or no number is 0.
        """
        with self._lock:
            had = {name: _number(have, name) if have.get("id") == self.id else 0 for name in _HAD}
            rows, points = self._rows[had["rows"] :][:MAX_ROWS], self._points[had["points"] :][:MAX_POINTS]
            stop = had["rows"] + len(rows)
            out: dict[str, Any] = {
                "id": self.id,
                "rows": rows,
                "names": {kind: self._new_names(kind, had[kind], rows) for kind in KINDS},
                "points": points,
                "keys": list(islice(self._keys, had["keys"], None)),
                "gone": self._gone[had["gone"] :],
                "reading": self._is_behind,
                "live": [run.status() for run in self._runs],
                "notes": [visible_text(note) for run in self._runs for note in run.notes()],
                "more": stop < len(self._rows) or had["points"] + len(points) < len(self._points),
            }
            if had["about"] != self._about:
                out |= {"about": self._about, "runs": [self._run(number) for number in range(len(self._runs))]}
            if had["summary"] != self._summary["version"]:
                out["summary"] = self._summary
            return out

    def _new_names(self, kind: str, had: int, rows: Sequence[Sequence[Any]]) -> list[str]:
        """Return the names that these rows need and the page does not have. They are numbered as they are needed."""
        if kind == "part":
            used = [number for row in rows for number in row[COLUMNS.index("parts")][::2]]
        else:
            used = [row[COLUMNS.index(kind)] for row in rows]
        need = max(used, default=had - 1) + 1
        texts = islice(self._names.of.get(kind, {}), had, need)
        if kind == "settings":
            return [visible_text(settings_text(json.loads(text))) for text in texts]
        return [visible_text(text) for text in texts]

    def _run(self, number: int) -> dict[str, Any]:
        return run_block(self._runs[number].run, number) | {"curves": {}}

    def episodes(self, rows: Sequence[int]) -> dict[str, Any]:
        """Return the details of some rows, the texts that they share, and the texts of their tokens.

        Keys: `details` row -> its details, or null if it is no longer there; `shared` kind -> {number: text}; `tokens`
        run -> {id: text}.
        """
        with self._lock:
            names = Names()
            details = Details(names, max_tokens=MAX_TOKENS, max_characters=MAX_CHARACTERS)
            found: dict[int, Any] = {}
            for row in [row for row in rows if 0 <= row < len(self._places)][:MAX_AT_ONCE]:
                number, part, place = self._places[row]
                try:
                    found[row] = self._runs[number].details(details, part, place, number)
                except (LLMEnvsError, OSError):
                    found[row] = None
            tokens = {run: self._texts(run, ids) for run, ids in details.token_ids.items()}
            return {"id": self.id, "details": found, "shared": names.texts(), "tokens": tokens}

    def _texts(self, number: int, ids: set[int]) -> dict[str, str]:
        place = Path(self._tokenizer) if self._tokenizer else self._runs[number].run.tokenizer
        if place is None:
            return {}
        if place not in self._decoders:
            try:
                self._decoders[place] = token_decoder(place)
            except Exception as error:  # of a tokenizer that is somebody else's
                self._decoders[place] = None
                reason = f"Tokens are shown as ids: the tokenizer in {place} cannot be loaded ({error})."
                self._runs[number].run.notes.append(reason)
        decode = self._decoders[place]
        return {} if decode is None else {str(token): visible_text(decode(token)) for token in sorted(ids)}


_HAD = ("rows", "points", "keys", "gone", "about", "summary", *KINDS)


def _number(have: Mapping[str, str], name: str) -> int:
    text = have.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 12 else 0
