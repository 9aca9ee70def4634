"""The README and the how-to guides, followed block by block. The tutorial and other documents have their own files."""

from __future__ import annotations

from pathlib import Path

import pytest
from document_runs import Made, run_page
from documents import is_guide, read_pages

pytestmark = [pytest.mark.examples, pytest.mark.slow]

TUTORIAL = "docs/tutorial.md"
GUIDES = {name: page for name, page in read_pages().items() if is_guide(name) and name != TUTORIAL}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("made"))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.smoke) if name == "README.md" else name
        for name, page in GUIDES.items()
        if any(block.is_run for block in page.blocks)
    ],
)
def test_every_block_runs(name: str, tmp_path: Path, made: Made) -> None:
    run_page(GUIDES[name], tmp_path, made)
