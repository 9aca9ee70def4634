"""The documents: every link leads somewhere, and every Python snippet runs.

A snippet that cannot run here is preceded by a comment that says why: `<!-- not run: needs a GPU -->`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
SNIPPET = re.compile(r"(?:<!-- not run: (?P<reason>[^\n]+) -->\n+)?```python\n(?P<code>.*?)```", re.DOTALL)


def slug(heading: str) -> str:
    """Return the anchor that a heading gets."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def broken_links(document: Path) -> list[str]:
    """Return the links to files and headings of ours that lead nowhere. Links to other sites are not followed."""
    text = document.read_text(encoding="utf-8")
    broken = []
    for link in LINK.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = document if not name else document.parent / name
        if not target.exists():
            broken.append(link)
        elif anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), flags=re.MULTILINE)
            if anchor not in map(slug, headings):
                broken.append(link)
    return broken


def snippets() -> list[tuple[str, str]]:
    found = []
    for document in DOCUMENTS:
        for match in SNIPPET.finditer(document.read_text(encoding="utf-8")):
            if match["reason"] is None:
                line = document.read_text(encoding="utf-8")[: match.start()].count("\n") + 1
                found.append((f"{document.relative_to(ROOT)}:{line}", match["code"]))
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(document: Path) -> None:
    assert broken_links(document) == []


def test_the_file_map_names_every_module() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (file_map,) = re.findall(r"```\n(llm_envs/ .*?)```", text, flags=re.DOTALL)
    rooms = [
        ROOT / "llm_envs",
        *(ROOT / "llm_envs" / name for name in ("bridges", "policies", "report", "rollout")),
        ROOT / "trainers",
    ]
    modules = {path.stem for room in rooms for path in room.glob("*.py") if path.stem != "__init__"}
    assert sorted(name for name in modules if not re.search(rf"\b{name}\b", file_map)) == []


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    document = tmp_path / "a.md"
    document.write_text(
        "# Here, now\n[a](b.md) [b](#here-now) [c](#there) [d](a.md#here-now) [e](mailto:x)\n```\n[f](g)\n```\n"
    )
    assert broken_links(document) == ["b.md", "#there"]


@pytest.mark.examples
@pytest.mark.parametrize(("where", "code"), snippets(), ids=lambda value: value if ".md:" in value else "")
def test_every_snippet_runs(where: str, code: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{where}\n{done.stderr}"
