"""Of a test that each level of a task repeats, `make test` runs one level; `make check-tasks` runs the others."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before -m chooses by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every level of a test except "hard" (else the last one) as `levels`. Benchmarks have another target."""
    repeated: dict[tuple[object, ...], dict[str, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        given = getattr(getattr(item, "callspec", None), "params", {})
        level = given.get("level", given.get("difficulty"))
        if isinstance(level, str) and HERE in item.path.parents and "benchmarks" not in item.path.parts:
            task = tuple(value for name, value in given.items() if name in ("id", "env_id", "task"))
            repeated[item.path, item.originalname, task][level].append(item)  # type: ignore[attr-defined]
    for by_level in repeated.values():
        kept = "hard" if "hard" in by_level else list(by_level)[-1]
        for item in (item for level, same in by_level.items() if level != kept for item in same):
            item.add_marker(pytest.mark.levels)
