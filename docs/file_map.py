"""Writes `docs/reference/files.md`: one line for each file, from its module docstring.

python docs/file_map.py            writes the map
python docs/file_map.py --check    prints what would change, and exits with 1 if anything would
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import written

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "files.md"
HEAD = """# Files

`docs/file_map.py` writes this page from the modules' docstrings.

"""
FOLDERS = ("llm_envs", "trainers", "tasks")
OTHERS = {
    "examples": "numbered scripts, one screen each; docs/guides/examples.md lists them",
    "benchmarks": "the speed that we hold, checked by `make bench`",
    "proof": "the proof that training learns; `results/` as JSON",
    "docs": "the documents, and the generators of their tables and pages",
    "tests": "mirrors the packages; `test_architecture.py` has the floors and the rules between them",
}
WIDTH = 110


def first_sentence(path: Path) -> str:
    """Return the first sentence of a module's docstring, on one line."""
    text = " ".join((ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n\n")[0].split())
    sentence = text.split(". ")[0].rstrip(".:")
    return sentence if len(sentence) <= WIDTH else sentence[: WIDTH - 3].rsplit(" ", 1)[0] + " ..."


def entries(folder: Path, indent: int) -> Iterator[str]:
    """Yield a line for each file of a folder, then its subfolders."""
    margin = "  " * indent
    for path in sorted(folder.glob("*.py")):
        if path.name != "__init__.py":
            yield f"{margin}{path.name:<{26 - len(margin)}} {first_sentence(path)}"
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink() and (path / "__init__.py").exists() and path.name != "_template":
            yield f"{margin}{path.name + '/':<{26 - len(margin)}} {first_sentence(path / '__init__.py')}"
            yield from entries(path, indent + 1)


def page() -> str:
    """Return the page, with the files as they are now."""
    lines = []
    for name in FOLDERS:
        lines += [f"{name + '/':<26} {first_sentence(ROOT / name / '__init__.py')}", *entries(ROOT / name, 1)]
    lines += [f"{name + '/':<26} {about}" for name, about in OTHERS.items()]
    return HEAD + "```text\n" + "\n".join(line.rstrip() for line in lines) + "\n```\n"


if __name__ == "__main__":
    sys.exit(written.main(__doc__, lambda: {PAGE: page()}, source="the modules say"))
