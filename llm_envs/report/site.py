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
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from llm_envs.errors import InvalidConfigError, MissingExtraError, StoreError
from llm_envs.report.episodes import COLUMNS, OUTCOMES, Details, Names, table_line
from llm_envs.report.runs import ReportRun, open_run
from llm_envs.report.summary import EnvSummary, compare_runs
from llm_envs.reporting import visible_text

__all__ = ["MAX_CHARACTERS", "MAX_TOKENS", "write_report"]

MAX_TOKENS = 1_000_000
"""Tokens that a page keeps: some 12 MB of its JSON."""
MAX_CHARACTERS = 100_000_000
"""Characters of conversations that a page keeps; a browser takes about a second for twice that."""
CHUNK_CHARACTERS = 500_000
"""Details are parsed in chunks of this size when one of their episodes is opened: a few milliseconds."""

SCRIPTS = ("core.js", "plots.js", "summary.js", "table.js", "tokens.js", "episode.js", "compare.js", "main.js")
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
) -> list[str]:
    """Write one self-contained HTML file about one or more runs.

    Args:
        runs: Folders of `llm-envs collect`, of trainers or evaluations, or files of trajectories.
        out: The file. One that exists is replaced if it is a report.
        tokenizer: A folder whose tokenizer gives the token view its texts; None takes one that lies in a run, and shows
            ids where there is none.
        title: The page's title; None names the runs.
        max_tokens: Tokens the page keeps. Episodes beyond have no token view, which the page says.
        max_characters: Characters of conversations the page keeps; likewise.

    Returns:
        Notes: what was missing, damaged or left out, a line each. They are on the page too.

    Raises:
        InvalidConfigError: If a run is given twice, or the file is there and is no report.
        StoreError: If a run cannot be read or has nothing to show, or the file cannot be written.
        ModelError: If there is no tokenizer in `tokenizer`.
    """
    target = Path(out)
    _check_target(target)
    opened = _open(runs)
    if tokenizer is not None and not Path(tokenizer).is_dir():
        raise InvalidConfigError(f"--tokenizer {tokenizer}: there is no such folder.")
    names, chunks = Names(), _Chunks()
    lines: list[list[Any]] = []
    details = Details(names, max_tokens=max_tokens, max_characters=max_characters)
    parts: dict[tuple[int, int], EnvSummary] = {}
    for number, run in enumerate(opened):
        before = len(lines)
        for part, trajectory in run.trajectories():
            line = table_line(trajectory, number, part, names)
            parts.setdefault((number, line[1]), EnvSummary()).add(trajectory, line[5])
            lines.append([*line, chunks.add(details.of(trajectory))])
        if len(lines) == before and not run.curves:
            raise StoreError(f"{run.path} holds no finished episode yet: there is nothing to report.")
    notes = [note for run in opened for note in run.notes]
    texts = _token_texts(details, tokenizer, opened, notes)
    notes += _left_out(details, len(lines), max_tokens, max_characters)
    title = title or "Report: " + ", ".join(run.name for run in opened)
    shared = names.texts()
    index = {
        "title": visible_text(title),
        "runs": [_run(run) for run in opened],
        "notes": [visible_text(note) for note in notes],
        "columns": {name: [line[place] for line in lines] for place, name in enumerate(COLUMNS)},
        "outcomes": OUTCOMES,
        "names": {kind: shared.get(kind, []) for kind in ("env", "settings", "stop")},
        "summary": [{"run": run, "env": env} | part.numbers() for (run, env), part in parts.items()],
        "comparisons": compare_runs(parts),
    }
    blocks = {"index": index, "shared": {kind: shared.get(kind, []) for kind in ("system", "tools")}, "tokens": texts}
    _write(target, title, blocks, chunks)
    return notes


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


def _open(paths: Sequence[str | Path]) -> list[ReportRun]:
    """Open the runs; those of one name are told apart by the folders above them."""
    resolved = [Path(path).resolve() for path in paths]
    if twice := sorted({str(path) for path in resolved if resolved.count(path) > 1}):
        raise InvalidConfigError(f"{', '.join(twice)}: given twice; give each run once.")
    names: list[str] = []
    for path in resolved:
        depth = 1
        while depth < len(path.parts) and any(o != path and o.parts[-depth:] == path.parts[-depth:] for o in resolved):
            depth += 1
        names.append("/".join(path.parts[-depth:]))
    return [open_run(path, name) for path, name in zip(paths, names, strict=True)]


def _run(run: ReportRun) -> dict[str, Any]:
    settings = json.dumps(dict(run.settings), indent=1, ensure_ascii=False, default=str)
    curves = {visible_text(key): points for key, points in run.curves.items()}
    return {
        "name": visible_text(run.name),
        "path": visible_text(str(run.path)),
        "settings": visible_text(settings),
        "curves": curves,
    }


def _token_texts(
    details: Details, tokenizer: str | Path | None, runs: Sequence[ReportRun], notes: list[str]
) -> dict[str, str]:
    """Return token id -> text for the ids that the page has; empty where there is no tokenizer."""
    if not details.token_ids:
        return {}
    own = {run.tokenizer for run in runs if run.parts}
    source = tokenizer if tokenizer is not None else next(iter(own)) if len(own) == 1 else None
    if source is None:
        many = "the runs have several tokenizers" if len(own) > 1 else "there is no tokenizer in the run"
        notes.append(f"Tokens are shown as ids: {many}; --tokenizer DIR gives them texts.")
        return {}
    try:
        decode = _decoder(source)
    except Exception as error:
        if tokenizer is not None:
            raise
        notes.append(f"Tokens are shown as ids: the tokenizer in {source} cannot be loaded ({error}).")
        return {}
    return {str(token): visible_text(decode(token)) for token in sorted(details.token_ids)}


def _decoder(source: str | Path) -> Callable[[int], str]:
    try:
        from llm_envs.policies.loading import load_tokenizer

        tokenizer = load_tokenizer(source)
    except ModuleNotFoundError as error:
        raise MissingExtraError("token texts need transformers: pip install 'llm-envs[train]'.") from error
    size = len(tokenizer)

    def decode(token: int) -> str:
        return str(tokenizer.decode([token])) if 0 <= token < size else f"[{token}]"

    return decode


def _left_out(details: Details, n: int, max_tokens: int, max_characters: int) -> list[str]:
    notes = []
    if details.without_tokens:
        notes.append(
            f"{details.without_tokens:,} of {n:,} episodes are without their token view: a page keeps {max_tokens:,} "
            "tokens (--max-tokens)."
        )
    if details.without_text:
        notes.append(
            f"{details.without_text:,} of {n:,} episodes are without their conversation: a page keeps "
            f"{max_characters:,} characters."
        )
    return notes


def _check_target(target: Path) -> None:
    """Refuse to replace what is no report."""
    if target.is_dir():
        raise InvalidConfigError(f"{target} is a folder: give --out a file's name.")
    try:
        if target.exists() and GENERATOR not in target.read_bytes()[:4096].decode(errors="replace"):
            raise InvalidConfigError(f"{target} is there already and is no report: give --out another name.")
    except OSError as error:
        raise StoreError(f"{target} cannot be read ({error.strerror}): give --out another name.") from error


def _page(title: str, blocks: dict[str, Any], chunks: _Chunks) -> Iterator[str]:
    folder = resources.files("llm_envs.report").joinpath("page")
    style = "\n" + folder.joinpath("page.css").read_text(encoding="utf-8")
    script = "\n'use strict';\n" + "".join(folder.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS)
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
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
    for number, chunk in enumerate(chunks.finish()):
        yield f'<script type="application/json" id="chunk-{number}">{chunk}</script>\n'
    yield body.replace("<!--script-->", f"<script>{script}</script>")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _write(target: Path, title: str, blocks: dict[str, Any], chunks: _Chunks) -> None:
    """Write the page; it appears whole or not at all."""
    temporary = target.with_name(target.name + ".tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "w", encoding="utf-8", newline="\n") as file:
                file.writelines(_page(title, blocks, chunks))
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{target} cannot be written ({error.strerror}); nothing was left there.") from error
