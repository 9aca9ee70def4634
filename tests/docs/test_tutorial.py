"""The tutorial, followed block by block in a file of its own: it takes as long as all other guides together."""

from __future__ import annotations

from pathlib import Path

import pytest
from document_runs import Made, run_page
from documents import read_pages

pytestmark = [pytest.mark.examples, pytest.mark.slow]


def test_every_block_runs(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "here").mkdir()
    run_page(read_pages()["docs/tutorial.md"], tmp_path / "here", Made(tmp_path / "made"))
