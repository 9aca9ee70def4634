"""The gallery: the success rates of a task are measured again when a file that they depend on has changed."""

from __future__ import annotations

import dataclasses
import json

import gallery
import pytest

pytestmark = [pytest.mark.pages, pytest.mark.smoke]

TASK = "llm/GuessNumber-v0"


@pytest.fixture
def entry() -> dict[str, object]:
    """Return the record of a task."""
    return dict(gallery.recorded()[TASK])


def rates(entry: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(gallery, "recorded", lambda: {TASK: entry})
    monkeypatch.setattr(gallery, "baselines", lambda task_id, level: (0.5, 0.25, 0.125, None))
    return gallery.measure(TASK).rates


def test_the_record_has_every_task_and_level_of_the_page() -> None:
    text = gallery.PAGE.read_text(encoding="utf-8")
    for task_id, entry in gallery.recorded().items():
        part = text.partition(f"### {task_id}\n")[2].partition("\n### ")[0]
        for oracle, borrowed, silent, *_ in entry["rates"].values():
            assert f"| {oracle:.2f} | {borrowed:.2f} | {silent:.2f} |" in part, task_id


def test_rates_of_unchanged_files_are_those_of_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {level: [1.0, 0.75, 0.0, 0.5] for level in ("easy", "medium", "hard")}
    entry = {"files": gallery.files_of(TASK), "rates": known}
    assert rates(entry, monkeypatch) == dict.fromkeys(known, (1.0, 0.75, 0.0, 0.5))


@pytest.mark.parametrize(
    "change", [{"files": "another"}, {"rates": {"easy": [1, 0, 0]}}, {"files": None}], ids=["a file", "a level", "new"]
)
def test_changed_files_or_levels_are_measured(
    change: dict[str, object], entry: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = rates({**entry, "files": gallery.files_of(TASK), **change}, monkeypatch)
    assert measured == dict.fromkeys(("easy", "medium", "hard"), (0.5, 0.25, 0.125, None))


def test_a_record_is_read_as_it_is_written(entry: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gallery, "recorded", lambda: {TASK: entry | {"files": gallery.files_of(TASK)}})
    again = json.loads(gallery.record([gallery.measure(TASK)]))
    assert again == {TASK: {"files": gallery.files_of(TASK), "rates": entry["rates"]}}


def test_the_readers_rate_stands_beside_the_chance() -> None:
    task = "llm/JsonRecord-v0"
    assert gallery.baselines(task, "starter")[3] is None
    card = gallery.describe(task)
    rates = {level: (1.0, 0.0, 0.0, 0.25 if level == "expert" else None) for level in card.levels}
    page = gallery.entry(dataclasses.replace(gallery.measure(TASK), card=card, rates=rates))
    assert "| chance | reader | oracle |" in page
    assert "| 1e-06 | 0.25 | 1.00 | 0.00 | 0.00 |" in page and "| 0.12 |  | 1.00 | 0.00 | 0.00 |" in page
