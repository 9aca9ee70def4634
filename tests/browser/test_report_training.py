"""The report of a training in headless Chromium: steps, weights, rewards by part, and why an episode earned nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from chromium import Chromium
from report_runs import make_episode, write_run

from llm_envs.report import write_report
from llm_envs.types import FinishReason, Message, Turn
from llm_envs.types.sampling import VersionSpan

pytestmark = [pytest.mark.browser, pytest.mark.smoke]


@pytest.fixture
def training(tmp_path: Path) -> Path:
    """Return the report of a training of two steps, each of a group of two, with a record of what was learned."""
    episodes, records = [], []
    for step in range(2):
        group = f"train-{step}-0-0-0"
        for member in range(2):
            turn = Turn(float(member), {"correct": float(member)}, weight_versions=(VersionSpan(0, 1, 10 + step),))
            said = Message("assistant", "Paris") if member == 0 else Message("assistant", "<answer>Moscow</answer>")
            facts = {"messages": (Message("user", "Capital?"), said), "rows": (), "turns": (turn,), "tools": ()}
            metadata = {"expected": "Moscow", "final_observation": "Reward: 0."}
            episodes.append(make_episode(5, member, group_id=group, is_success=member == 1, metadata=metadata, **facts))
        columns = {"answer": [0.0, 1.0], "format": [0.25, 0.5]}
        record = {"kind": "generation", "step": step, "episodes": [[group, 0], [group, 1]], "columns": columns}
        records.append(record | {"weights": {"answer": 1.0, "format": 2.0}, "advantages": [-0.75, 0.75]})
    write_run(tmp_path / "run" / "trajectories" / "process-0", episodes)
    (tmp_path / "run" / "record").mkdir()
    lines = [json.dumps(record) + "\n" for record in records]
    (tmp_path / "run" / "record" / "process-0.jsonl").write_text("".join(lines))
    write_report([tmp_path / "run"], tmp_path / "report.html")
    return tmp_path / "report.html"


def test_episodes_have_their_step_and_weights_and_are_sorted_by_them(chromium: Chromium, training: Path) -> None:
    chromium.open(training, hash="#episodes")
    heads = [head.strip(" \u25bc\u25b2") for head in chromium.texts("#table thead th")]
    assert heads[-2:] == ["Step", "Weights"]
    chromium.click("[data-sort=weights]")
    assert chromium.rows() == [2, 3, 0, 1]
    assert chromium.texts("td.col-weights") == ["11", "11", "10", "10"]
    assert chromium.texts("td.col-step") == ["1", "1", "0", "0"]


def test_rewards_by_part_are_columns(chromium: Chromium, training: Path) -> None:
    chromium.open(training, hash="#episodes")
    chromium.click("#parts")
    assert chromium.texts("#table thead th")[-4:] == [
        "task: correct", "learned: answer", "learned: format", "advantage",
    ]  # fmt: skip
    chromium.click("[data-sort=part-2]")
    assert chromium.rows() == [1, 3, 0, 2]
    assert chromium.texts("td.col-part-2") == ["0.5", "0.5", "0.25", "0.25"]
    chromium.go("#episode/1")
    assert chromium.texts("[aria-label='Learned from'] tbody tr") == [
        "answer\t+1\t1", "format\t+0.5\t2", "advantage\t+0.75\t",
    ]  # fmt: skip


def test_an_episode_says_why_it_earned_nothing(chromium: Chromium, training: Path, tmp_path: Path) -> None:
    chromium.open(training, hash="#episode/0")
    assert chromium.text(".why") == "Reward 0: no <answer> tags; expected Moscow"
    chromium.go("#episode/1")
    assert chromium.js("document.querySelector('.why')") is None
    cut = Turn(0.0, {"correct": 0.0}, row=0, span=1, finish_reason=FinishReason.LENGTH)
    run = write_run(tmp_path / "cut", [make_episode(1, is_success=False, turns=(cut,), metadata={})])
    write_report([run], tmp_path / "cut.html")
    chromium.open(tmp_path / "cut.html", hash="#episode/0")
    assert chromium.text(".why") == "Reward 0: cut at the turn's limit of 1 tokens"


def test_tables_on_a_phone_say_that_they_scroll(chromium: Chromium, training: Path) -> None:
    chromium.open(training, width=320)
    assert "scrolls" in chromium.js("document.querySelector('[aria-label=Numbers]').className")
    assert chromium.texts("[aria-label=Numbers] th[scope=col]")[1] == "success (95%)"
    chromium.resize(1600, 900)
    chromium.wait("!document.querySelector('[aria-label=Numbers]').className.includes('scrolls')")
