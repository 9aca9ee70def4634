"""The site of the documents: every page is on it, every link leads somewhere, and nothing is fetched from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.examples, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]


def build(project: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of a checkout, as `make docs` does."""
    environment = os.environ | {"PYTHONPATH": "docs", "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkout whose documents a test may change."""
    pytest.importorskip("mkdocs", reason="the site needs the extra `docs`")
    folder = tmp_path_factory.mktemp("checkout")
    for path in ROOT.iterdir():
        if path.name not in ("docs", "build", "runs") and not path.name.startswith(".") and path.suffix != ".egg-info":
            (folder / path.name).symlink_to(path)
    subprocess.run(["cp", "-r", str(ROOT / "docs"), str(folder / "docs")], check=True)
    return folder


@pytest.fixture(scope="module")
def site(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(checkout, folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_document_is_a_page(site: Path) -> None:
    pages = [path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")]
    assert len(pages) > 50
    assert [str(page) for page in pages if not (site / page).is_file()] == []


def test_a_file_that_is_linked_to_is_a_page_with_its_text(site: Path) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    assert 'href="repository/readme.html"' in home
    readme = (site / "repository" / "readme.html").read_text(encoding="utf-8")
    assert 'href="../grpo.html"' in readme and 'href="contributing.html"' in readme
    source = (site / "repository" / "examples" / "01_play.py.html").read_text(encoding="utf-8")
    assert "<h1" in source and "gymnasium" in source


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    fetched = re.compile(r"<(?:script|img|link|iframe|source)\b[^>]*\b(?:src|href)=\"(https?:)?//[^\"]*\"")
    pages = sorted(site.rglob("*.html"))
    assert [page.name for page in pages if fetched.search(page.read_text(encoding="utf-8"))] == []


def test_the_reference_is_made_from_docstrings(site: Path) -> None:
    text = " ".join(page.read_text(encoding="utf-8") for page in (site / "reference" / "api").glob("*.html"))
    for name in (
        "llm_envs.env.TextEnv",
        "llm_envs.rollout.collector.Collector",
        "llm_envs.trainers.grpo.trainer.EnvGRPOTrainer",
    ):
        assert f'id="{name}"' in text


def test_what_leads_nowhere_fails_the_build(checkout: Path, tmp_path: Path) -> None:
    wrong = {
        "[x](nowhere.md)": "nowhere.md",
        "[x](tutorial.md#no-such-heading)": "no-such-heading",
        "[x](../examples/none.py)": "examples/none.py",
    }
    done = build_with(checkout, tmp_path, list(wrong))
    assert done.returncode != 0
    assert [said for said in wrong.values() if said not in done.stderr] == []


def test_an_unknown_object_fails_the_build(checkout: Path, tmp_path: Path) -> None:
    done = build_with(checkout, tmp_path, ["::: llm_envs.none"])
    assert done.returncode != 0
    assert "llm_envs.none" in done.stderr


def build_with(checkout: Path, site: Path, lines: list[str]) -> subprocess.CompletedProcess[str]:
    """Build the site with further lines on its first page."""
    page = checkout / "docs" / "index.md"
    before = page.read_text(encoding="utf-8")
    page.write_text("\n\n".join([before, *lines]), encoding="utf-8")
    try:
        return build(checkout, site)
    finally:
        page.write_text(before, encoding="utf-8")
