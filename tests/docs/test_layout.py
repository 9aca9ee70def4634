"""The documents' places, names and length: one address for each subject, and a bound on what people write by hand."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

pytestmark = [pytest.mark.pages, pytest.mark.smoke]

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))
GENERATED = ("GALLERY.md", "reference/metrics.md", "reference/files.md", "reference/api/")
GENERATED_PART = re.compile(
    r"<!-- (?:(?:proof|benchmark) (\w+)|(table|judged|published): begin) -->.*?<!-- (?:end \1|\2: end) -->", re.DOTALL
)
FOLDERS = {"guides", "concepts", "reference", "reference/api", "results"}
AT_THE_TOP = {"index.md", "tutorial.md", "sft.md", "grpo.md", "ppo.md", "dpo.md", "GALLERY.md"}
MAX_WORDS = 62_880
"""Of all pages together, code blocks included. Raise it only for a new subject; merge pages that say the same."""
MAX_README_LINES = 149


def words(page: str) -> int:
    """Return how many words of a page were written by hand."""
    return len(GENERATED_PART.sub("", (DOCS / page).read_text(encoding="utf-8")).split())


def test_pages_are_in_their_folders() -> None:
    assert {page for page in PAGES if "/" not in page} == AT_THE_TOP
    assert {page.rpartition("/")[0] for page in PAGES if "/" in page} == FOLDERS


def test_no_two_pages_have_one_name() -> None:
    names = Counter(Path(page).name.lower() for page in PAGES)
    assert [name for name, n in names.items() if n > 1] == []


def test_the_index_lists_every_page() -> None:
    """The pages of the API stand on `reference/api/modules.md`."""
    listed = re.findall(r"\]\(([^)#]+)", (DOCS / "index.md").read_text(encoding="utf-8"))
    api = re.findall(r"\]\(([^)#/]+)", (DOCS / "reference/api/modules.md").read_text(encoding="utf-8"))
    found = {*listed, *(f"reference/api/{name}" for name in api), "index.md"}
    assert [page for page in PAGES if page not in found] == []


def test_the_documents_stay_short() -> None:
    assert sum(words(page) for page in PAGES if not page.startswith(GENERATED)) <= MAX_WORDS
    assert len((DOCS.parent / "README.md").read_text(encoding="utf-8").splitlines()) <= MAX_README_LINES


def test_options_are_spelled_with_dashes() -> None:
    root = DOCS.parent
    files = [
        root / "README.md",
        root / "CONTRIBUTING.md",
        *DOCS.rglob("*.md"),
        *root.glob("examples/*.py"),
        *root.glob("examples/agents/*.py"),
    ]
    found = {
        file.name: re.findall(r"(?<![\w-])--[a-z]+(?:_[a-z]+)+", file.read_text(encoding="utf-8")) for file in files
    }
    assert {name: options for name, options in found.items() if options} == {}


def test_every_algorithm_has_one_page_in_one_shape() -> None:
    for page in ("sft.md", "grpo.md", "ppo.md", "dpo.md"):
        headings = re.findall(r"^## (.+)$", (DOCS / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
        wanted = [name for name in headings if name.startswith(("Usage", "The loss", "Departures", "Logs", "Results"))]
        assert [name.split()[0] for name in wanted] == ["Usage", "The", "Departures", "Logs", "Results"], page
