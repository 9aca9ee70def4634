"""The answers to a live page: by offset, in bounded answers, with the names that its rows need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from report_runs import make_episode, write_run

from llm_envs.errors import InvalidConfigError
from llm_envs.report import feed as feed_module
from llm_envs.report.episodes import COLUMNS
from llm_envs.report.feed import Feed


def read(feed: Feed) -> None:
    while feed.read():
        pass


def test_answers_are_additions_of_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "MAX_ROWS", 2)
    feed = Feed([write_run(tmp_path / "run", [make_episode(n, env_id=f"a/B{n}-v0") for n in range(5)])])
    read(feed)
    had: dict[str, Any] = {"id": feed.id, "rows": 0, "env": 0}
    rows, names = [], []
    for left in (3, 1, 0):
        told = feed.answer({name: str(value) for name, value in had.items()})
        rows += told["rows"]
        names += told["names"]["env"]
        had |= {"rows": len(rows), "env": len(names)}
        assert told["more"] is (left > 0) and len(rows) == len(names) == 5 - left
    assert names == [f"a/B{n}-v0" for n in range(5)]
    assert [row[COLUMNS.index("seed")] for row in rows] == [0, 1, 2, 3, 4]
    assert len(feed.answer(had | {"id": "another's"})["rows"]) == 2  # to whom it does not know, it tells all
    assert len(feed.answer({"id": feed.id, "rows": "-1", "points": "x"})["rows"]) == 2


def test_details_are_read_again_from_the_folder(tmp_path: Path) -> None:
    feed = Feed([write_run(tmp_path / "run", [make_episode(n, text=f"{n}+1") for n in range(3)])])
    read(feed)
    told = feed.episodes([2, 99, -1])
    assert list(told["details"]) == [2] and told["details"][2]["m"][1] == ["user", "What is 2+1?"]
    assert told["shared"]["system"] == ["Use the calculator."] and told["tokens"] == {0: {}}
    (tmp_path / "run" / "shard-00000.parquet").unlink()
    assert feed.episodes([2])["details"] == {2: None}


def test_several_runs_are_side_by_side_and_none_is_given_twice(tmp_path: Path) -> None:
    one, other = (write_run(tmp_path / name, [make_episode(1, is_success=name == "a")]) for name in "ab")
    feed = Feed([one, other])
    read(feed)
    told = feed.answer({})
    assert [run["name"] for run in told["runs"]] == ["a", "b"]
    assert [part["success"] for part in told["summary"]["summary"]] == [1.0, 0.0]
    assert told["summary"]["comparisons"][0]["runs"] == [0, 1]
    with pytest.raises(InvalidConfigError, match="given twice"):
        Feed([one, one])
