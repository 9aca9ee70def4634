"""A report of runs as one page that needs nothing else: its data, script and style are in it, and it asks for nothing.

Nothing that a model wrote can become markup or script:

1. All data are JSON in script elements of a type that no browser runs, with `<`, `>` and `&` escaped, so that no text
   in them ends the element.
2. The page's script builds elements and sets their text; it never parses text as markup (`require-trusted-types-for`
   makes a browser refuse it).
3. The Content-Security-Policy allows exactly this script and this style, by their hashes, and no request at all.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from llm_envs.data.files import regular, replacing
from llm_envs.data.storage import as_path
from llm_envs.errors import InvalidConfigError, StoreError
from llm_envs.report.episodes import COLUMNS, OUTCOMES, Details, Names, is_sampled, table_line
from llm_envs.report.evaluation import compare_results, results_block, visible
from llm_envs.report.learned import Learned
from llm_envs.report.runs import ReportRun, open_runs
from llm_envs.report.summary import TaskSummary, by_task, compare_runs, settings_text
from llm_envs.report.token_texts import token_texts
from llm_envs.tracking.loggers import visible_text

__all__ = ["MAX_CHARACTERS", "MAX_EPISODES", "MAX_TOKENS", "page_parts", "run_block", "run_names", "write_report"]

MAX_TOKENS = 1_000_000
"""Tokens that a page keeps: some 12 MB of its JSON."""
MAX_EPISODES = 20_000
"""Episodes of each run on a page: some 15 MB, and success within 0.7 percentage points."""
MAX_CHARACTERS = 100_000_000
"""Characters of conversations that a page keeps; a browser takes about a second for twice that."""
CHUNK_CHARACTERS = 500_000
"""Details are parsed in chunks of this size when one of their episodes is opened: a few milliseconds."""

SCRIPTS = (
    "core.js", "plots.js", "evaluation.js", "summary.js", "table.js", "tokens.js", "episode.js", "compare.js",
    "live.js", "main.js",
)  # fmt: skip
GENERATOR = '<meta name="generator" content="llm-envs report">'
LEAVES_SCRIPT = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
UNSAFE = re.compile(r"[<>&\u2028\u2029\ud800-\udfff]")


def write_report(
    runs: Sequence[str | Path],
    out: str | Path,
    *,
    tokenizer: str | Path | None = None,
    title: str | None = None,
    max_tokens: int = MAX_TOKENS,
    max_characters: int = MAX_CHARACTERS,
    max_episodes: int = MAX_EPISODES,
) -> list[str]:
    """Write one self-contained HTML file about one or more runs.

    Args:
        runs: Folders of `llm-envs collect`, of trainers or evaluations, or files of trajectories.
        out: The file. One that exists is replaced if it is a report.
        tokenizer: A folder with a tokenizer for the texts in the token view; None takes one from a run, and shows ids
            if the runs have none.
        title: The page's title; None names the runs.
        max_tokens: Tokens the page keeps. Later episodes have no token view, and a note.
        max_characters: Characters of conversations the page keeps; likewise.
        max_episodes: Episodes of a run the page has. Of a larger run, it has those of a random sample of the problems,
            and counts only these.

    Returns:
        Notes: missing, damaged or skipped files, a line each. They are on the page too.

    Raises:
        InvalidConfigError: If a run is given twice, or the file exists and is not a report.
        StoreError: If a run cannot be read or has nothing to show, or the file cannot be written.
        ModelError: If `tokenizer` holds no tokenizer.
    """
    target = Path(out)
    _check_target(target)
    opened = [run for path, name in zip(runs, run_names(runs), strict=True) for run in open_runs(path, name)]
    if tokenizer is not None and not Path(tokenizer).is_dir():
        raise InvalidConfigError(f"--tokenizer {tokenizer}: there is no such folder.")
    names, chunks = Names(), _Chunks()
    details = Details(names, max_tokens=max_tokens, max_characters=max_characters)
    lines, parts = _read(opened, names, details, chunks, max_episodes)
    notes = [note for run in opened for note in run.notes]
    texts, texts_of = token_texts(details.token_ids, tokenizer, opened, notes)
    notes += _left_out(details, len(lines), max_tokens, max_characters)
    title = title or "Report: " + ", ".join(dict.fromkeys(run.folder_name for run in opened))
    tasks, task_names = by_task(parts, list(names.of.get("env", ())), list(names.of.get("settings", ())))
    shared = names.texts()
    index = {
        "title": visible_text(title),
        "runs": [run_block(run, table) for run, table in zip(opened, texts_of, strict=True)],
        "notes": [visible_text(note) for note in notes],
        "columns": {name: [line[place] for line in lines] for place, name in enumerate(COLUMNS)},
        "outcomes": OUTCOMES,
        "names": {kind: shared.get(kind, []) for kind in ("env", "stop", "begins", "part")}
        | {"settings": [visible_text(settings_text(json.loads(text))) for text in names.of.get("settings", ())]},
        "tasks": [visible_text(name) for name in task_names],
        "summary": [{"run": run, "task": task} | visible(part.numbers()) for (run, task), part in tasks.items()],
        "comparisons": compare_runs(tasks),
        "evaluations": compare_results(opened),
    }
    blocks = {"index": index, "shared": {kind: shared.get(kind, []) for kind in ("system", "tools")}, "tokens": texts}
    _write(target, title, blocks, chunks)
    return notes


def _read(
    runs: Sequence[ReportRun], names: Names, details: Details, chunks: _Chunks, max_episodes: int
) -> tuple[list[list[Any]], dict[tuple[int, int, int], TaskSummary]]:
    """Read all episodes once; return the table's lines, and (run, environment, settings) -> counts."""
    lines: list[list[Any]] = []
    parts: dict[tuple[int, int, int], TaskSummary] = {}
    for number, run in enumerate(runs):
        before, n_all, share = len(lines), 0, max_episodes / max(run.n_episodes(), 1)
        learned = Learned(run.path)
        for part, trajectory in run.trajectories():
            n_all += 1
            if share < 1 and not is_sampled(trajectory, share):
                continue
            line = dict(zip(COLUMNS, table_line(trajectory, number, part, names, learned.of(trajectory)), strict=False))
            where = (number, line["env"], line["settings"])
            parts.setdefault(where, TaskSummary()).add(trajectory, line["problem"])
            lines.append([*line.values(), chunks.add(details.of(trajectory, number, learned.of(trajectory)))])
        if share < 1:
            run.notes.append(
                f"{run.path}: this page samples. It shows, and counts in its numbers, {len(lines) - before:,} of "
                f"{n_all:,} episodes: all those of {share:.3g} of the problems, drawn at random (--max-episodes)."
            )
        if n_all == 0 and not run.curves and run.results is None:
            nothing = f"{run.path} holds no finished episode yet: there is nothing to report."
            raise StoreError(" ".join([nothing, *run.notes]))
    return lines, parts


class _Chunks:
    """Details of episodes as JSON arrays of about `CHUNK_CHARACTERS` each."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self._open: list[str] = []
        self._size = 0

    def add(self, detail: Any) -> int:
        """Take one episode's details; return the number of its chunk."""
        text = script_json(detail)
        if self._size and self._size + len(text) > CHUNK_CHARACTERS:
            self.finish()
        self._open.append(text)
        self._size += len(text)
        return len(self.done)

    def finish(self) -> list[str]:
        """Return all chunks, the open one among them."""
        if self._open:
            self.done.append("[" + ",".join(self._open) + "]")
            self._open, self._size = [], 0
        return self.done


def script_json(value: Any) -> str:
    """Return compact JSON that may stand in a script element: none of its characters ends it or begins a comment."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return UNSAFE.sub(lambda match: LEAVES_SCRIPT.get(match[0]) or f"\\u{ord(match[0]):04x}", text)


def run_names(paths: Sequence[str | Path]) -> list[str]:
    """Return a name for each run: its folder's, with as many of those above it as make it unique.

    Raises:
        InvalidConfigError: If a run is given twice.
    """
    resolved = [as_path(path).resolve() for path in paths]
    if twice := sorted({str(path) for path in resolved if resolved.count(path) > 1}):
        raise InvalidConfigError(f"{', '.join(twice)}: given twice; give each run once.")
    names: list[str] = []
    for path in resolved:
        depth = 1
        while depth < len(path.parts) and any(o != path and o.parts[-depth:] == path.parts[-depth:] for o in resolved):
            depth += 1
        names.append("/".join(path.parts[-depth:]))
    return names


def run_block(run: ReportRun, table: int | None) -> dict[str, Any]:
    """Return a run as the page's script takes it; `table` is the number of its tokens' texts."""
    settings = json.dumps(dict(run.settings), indent=1, ensure_ascii=False, default=str)
    curves = {visible_text(key): points for key, points in run.curves.items()}
    return {
        "name": visible_text(run.name),
        "path": visible_text(str(run.path)),
        "settings": visible_text(settings),
        "curves": curves,
        "results": None if run.results is None else results_block(run.results),
        "tokens": table,
    }


def _left_out(details: Details, n: int, max_tokens: int, max_characters: int) -> list[str]:
    left_out = (
        (details.without_tokens, "token view", f"{max_tokens:,} tokens (--max-tokens)"),
        (details.without_text, "conversation", f"{max_characters:,} characters"),
    )
    return [
        f"{k:,} of {n:,} episodes are without their {what}: a page keeps {most}." for k, what, most in left_out if k
    ]


def _check_target(target: Path) -> None:
    """Raise if this would replace a file that is not a report."""
    if target.is_dir():
        raise InvalidConfigError(f"{target} is a folder: give --out a file's name.")
    above = next((parent for parent in target.parents if parent.exists()), None)
    if above is not None and not above.is_dir():
        raise InvalidConfigError(
            f"{target} cannot be written: {above} is a file and no folder. Give --out another name."
        )
    try:
        if target.exists():
            with open(target, "rb", opener=regular) as file:
                if GENERATOR not in file.read(4096).decode(errors="replace"):
                    raise InvalidConfigError(f"{target} is there already and is no report: give --out another name.")
    except OSError as error:
        raise StoreError(f"{target} cannot be read ({error.strerror}): give --out another name.") from error


def page_parts(title: str, blocks: dict[str, Any], chunks: Sequence[str] = (), *, asks: bool = False) -> Iterator[str]:
    """Yield the text of a page, part by part.

    Args:
        title: Its title.
        blocks: Name -> data, as JSON types.
        chunks: Details of episodes, as JSON that may stand in a script element.
        asks: Whether the page may ask the server that it came from.
    """
    folder = resources.files("llm_envs.report").joinpath("page")
    style = "\n" + folder.joinpath("page.css").read_text(encoding="utf-8")
    script = "\n'use strict';\n" + "".join(folder.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS)
    asking = "connect-src 'self'; " if asks else ""
    policy = (
        f"default-src 'none'; script-src '{content_hash(script)}'; style-src '{content_hash(style)}'; base-uri 'none'; "
        f"form-action 'none'; {asking}require-trusted-types-for 'script'; trusted-types 'none'"
    )
    frame = folder.joinpath("page.html").read_text(encoding="utf-8")
    head, body = frame.split("<!--data-->")
    yield (
        head.replace("<!--policy-->", f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n{GENERATOR}')
        .replace("<!--title-->", html.escape(visible_text(title)))
        .replace("<!--style-->", f"<style>{style}</style>")
    )
    for name, value in blocks.items():
        yield f'<script type="application/json" id="{name}">{script_json(value)}</script>\n'
    for number, chunk in enumerate(chunks):
        yield f'<script type="application/json" id="chunk-{number}">{chunk}</script>\n'
    yield body.replace("<!--script-->", f"<script>{script}</script>")


def content_hash(text: str) -> str:
    """Return the hash of a script or style, as a Content-Security-Policy names it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _write(target: Path, title: str, blocks: dict[str, Any], chunks: _Chunks) -> None:
    """Write the page; it appears complete or not at all."""
    temporary = target.with_name(target.name + ".tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "w", encoding="utf-8", newline="\n", opener=replacing) as file:
                file.writelines(page_parts(title, blocks, chunks.finish()))
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{target} cannot be written ({error.strerror}); nothing was left there.") from error
