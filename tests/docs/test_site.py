"""The site of the documents: every page is on it, every link leads somewhere, and nothing is fetched from elsewhere."""

from __future__ import annotations

import os
import re
import shutil
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
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="the site needs the extra `dev`")
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
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
        "llm_envs.env.text.TextEnv",
        "llm_envs.rollout.collector.Collector",
        "llm_envs.trainers.grpo.trainer.EnvGRPOTrainer",
    ):
        assert f'id="{name}"' in text


def build_page(project: Path, *lines: str) -> subprocess.CompletedProcess[str]:
    """Build a site of one page with our settings."""
    pytest.importorskip("mkdocs", reason="the site needs the extra `dev`")
    (project / "docs" / "css").mkdir(parents=True)
    for name in ("docs/site_hooks.py", "docs/css/site.css"):
        shutil.copy(ROOT / name, project / name)
    (project / "llm_envs").symlink_to(ROOT / "llm_envs")
    settings, nav, _ = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")
    (project / "mkdocs.yml").write_text(f"{settings}{nav}  - Home: index.md\n", encoding="utf-8")
    (project / "docs" / "index.md").write_text("\n\n".join(["# Home", "[x](#home)", *lines]), encoding="utf-8")
    return build(project, project / "site")


def test_a_page_of_our_settings_is_built(tmp_path: Path) -> None:
    done = build_page(tmp_path, "[x](../mkdocs.yml)", "::: llm_envs.errors")
    assert done.returncode == 0, done.stderr


def test_links_that_lead_nowhere_fail_the_build(tmp_path: Path) -> None:
    wrong = {
        "[x](nowhere.md)": "nowhere.md",
        "[x](index.md#no-such-heading)": "no-such-heading",
        "[x](../examples/none.py)": "examples/none.py",
    }
    done = build_page(tmp_path, *wrong)
    assert done.returncode != 0
    assert [said for said in wrong.values() if said not in done.stderr] == []


def test_an_unknown_object_fails_the_build(tmp_path: Path) -> None:
    done = build_page(tmp_path, "::: llm_envs.none")
    assert done.returncode != 0
    assert "llm_envs.none" in done.stderr
