"""The proof is imported from the repository's root, as `python -m proof.run` finds it."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """The commands are run there, too."""
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.chdir(ROOT)
