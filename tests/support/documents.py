"""The blocks of the documents: what each is, and how it is run.

Every fenced block says what it is by its language; comments directly above it say more:

| comment | means |
|---|---|
| `<!-- not run: a reason -->` | nothing here can run it; `NOT_RUN` of `tests/test_docs.py` lists these |
| `<!-- run by: tests/x.py::test_y -->` | it is too much for a block, and that test runs it, or a small one |
| `<!-- file: suite.yaml -->` | it is the content of a file, which a later block of the page uses |
| `<!-- replace: a.py -->`, `<!-- with: a.py -->` | what stands once in that file, and what comes in its place |
| `<!-- checked by: llm_envs.evaluation.suite:load_suite -->` | that function reads a file with this content |
| `<!-- needs: a model in runs/demo/model -->` | it is put there first; or `a run in`, `a training in`, `the checkout` |
| `<!-- exits: 1 -->` | the exit code of its last command |

Above everything else on a page they hold for all of its blocks, and there is `<!-- blocks share a folder -->`: without
it each block begins in an empty one.

A block of Python is one process; a block of bash one script, which ends where a command fails; a block of a console has
commands after "$ " and what they print, in which "..." stands for anything; each is a process in the folder that `cd`
chose. Programs find torch, transformers and TRL imported already (`preloaded.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

EDITS = ("file", "replace", "with")
KEYS = ("not run", "run by", *EDITS, "checked by", "needs", "exits")
PROGRAMS = ("python", "bash", "console")
DATA = ("yaml", "toml", "json")
LANGUAGES = (*PROGRAMS, *DATA, "text")
SHARED = "blocks share a folder"

_COMMENT = re.compile(rf"^\s*<!-- ((?P<key>{'|'.join(KEYS)}): (?P<value>.*?)|{SHARED}) -->\s*$")
_MEANT = re.compile(rf"<!--\s*({'|'.join(KEYS)}|blocks)\b", re.IGNORECASE)
_FENCE = re.compile(r"^(?P<indent>\s*)(?P<fence>`{3,})(?P<info>.*)$")


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    page: str
    """Path of the document in the repository."""
    line: int
    """Of the opening fence, from 1."""
    language: str
    code: str
    said: dict[str, str] = field(default_factory=dict)
    """What the comments above it say, by key; `needs` may be several, joined by "; "."""

    @property
    def where(self) -> str:
        """Where it is, for messages."""
        return f"{self.page}:{self.line}"

    @property
    def is_run(self) -> bool:
        """Whether this harness runs it."""
        return self.language in PROGRAMS and not self.said.keys() & {"not run", "run by", *EDITS}


@dataclass(frozen=True)
class Page:
    """A document."""

    path: str
    blocks: tuple[Block, ...]
    shares_a_folder: bool = False


def read_pages() -> dict[str, Page]:
    """Return the documents by their paths in the repository; what is generated from played episodes is left out."""
    paths = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
    names = [name for path in paths if (name := path.relative_to(ROOT).as_posix()) != "docs/GALLERY.md"]
    return {name: read_page((ROOT / name).read_text(encoding="utf-8"), name) for name in names}


def read_page(text: str, path: str) -> Page:
    """Take a document apart.

    Args:
        text: Markdown.
        path: Its path in the repository.
    """
    lines = text.splitlines()
    top, shares = _top(lines)
    blocks: list[Block] = []
    above: dict[str, str] = dict(top)
    n = 0
    while n < len(lines):
        opening, comment = _FENCE.match(lines[n]), _COMMENT.match(lines[n])
        if opening:
            end = _end(lines, n, opening["fence"])
            indent = len(opening["indent"])
            code = "".join(f"{line[indent:]}\n" for line in lines[n + 1 : end])
            blocks.append(Block(path, n + 1, opening["info"].strip(), code, above))
            n = end
        elif comment and comment["key"]:
            above = _with(above, comment["key"], comment["value"])
        if lines[n].strip() and not comment:
            above = dict(top)
        n += 1
    return Page(path, tuple(blocks), shares)


def is_guide(name: str) -> bool:
    """Whether a page is one of those that a reader follows from its beginning to its end."""
    return name in ("README.md", "docs/tutorial.md") or name.startswith("docs/guides/")


def misspelt(text: str) -> list[str]:
    """Return the comments of a document that begin as ours do, and are none."""
    return [line for line in text.splitlines() if _MEANT.search(line) and not _COMMENT.match(line)]


def commands_of(block: Block) -> list[tuple[str, list[str]]]:
    """Return the commands of a block of bash or of a console, each with the lines that it is said to print."""
    if block.language == "console":
        parts = re.split(r"^\$ ", re.sub(r"\\\n\s*", "", block.code), flags=re.MULTILINE)[1:]
        return [(part.partition("\n")[0], part.partition("\n")[2].splitlines()) for part in parts]
    joined = re.sub(r"\\\n\s*", "", block.code)
    return [(line.strip(), []) for line in joined.splitlines() if line.strip() and not line.strip().startswith("#")]


def is_said(line: str, printed: str) -> bool:
    """Whether a line of a page, in which "..." stands for anything, is in what was printed; runs of blanks are one."""
    pattern = ".*".join(r"\s+".join(map(re.escape, piece.split())) for piece in line.split("..."))
    return re.search(pattern, printed) is not None


def problems(block: Block) -> list[str]:
    """Return what is wrong with how a block is written."""
    found = []
    if block.language not in LANGUAGES:
        found.append(f"the language is {block.language!r}; it must be one of {', '.join(LANGUAGES)}")
    if block.said.keys() >= {"not run", "run by"}:
        found.append("it is said to be run and not to be run")
    if block.language in ("yaml", "toml") and not block.said.keys() & {"file", "checked by", "run by", "not run"}:
        found.append(
            "nothing reads it: say <!-- file: NAME -->, and use it below, or <!-- checked by: module:function -->"
        )
    if block.language == "console" and block.is_run and not block.code.startswith("$ "):
        found.append("a console's block begins with a command after '$ '")
    if block.is_run and re.search(r"\b(pip3?|uv|conda)\b.* install\b", block.code):
        found.append("it would change the environment that runs it: say <!-- run by: ... --> or <!-- not run: ... -->")
    if "exits" in block.said and not block.is_run:
        found.append("what is not run has no exit code")
    return found


def _top(lines: list[str]) -> tuple[dict[str, str], bool]:
    """Return what is said above everything else on a page."""
    said: dict[str, str] = {}
    shares = False
    for line in lines:
        comment = _COMMENT.match(line)
        if comment is None and line.strip():
            break
        if comment and comment["key"]:
            said = _with(said, comment["key"], comment["value"])
        shares = shares or (comment is not None and comment["key"] is None)
    return said, shares


def _with(said: dict[str, str], key: str, value: str) -> dict[str, str]:
    if key == "needs" and key in said:
        value = said[key] if value in said[key].split("; ") else f"{said[key]}; {value}"
    return said | {key: value}


def _end(lines: list[str], start: int, fence: str) -> int:
    for n in range(start + 1, len(lines)):
        if lines[n].strip() == fence:
            return n
    raise ValueError(f"the block of line {start + 1} has no end")
