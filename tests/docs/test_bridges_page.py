"""The counts and lists of the page of bridges are those of the registered ids and the records."""

from __future__ import annotations

import bridges
import pytest

pytestmark = [pytest.mark.pages, pytest.mark.smoke]


def test_the_tables_are_what_the_ids_and_records_say() -> None:
    assert {path: path.read_text(encoding="utf-8") for path in bridges.pages()} == bridges.pages()
