from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest

from llm_envs.errors import StoreError
from llm_envs.reporting import console_logger, jsonl_logger, multi_logger, read_metrics


def test_jsonl_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "new" / "metrics.jsonl"
    log = jsonl_logger(path)
    log(0, {"reward": 0.5, "loss": math.nan})
    log(1, {"reward": 1.0, "loss": math.inf})
    lines = [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]
    assert lines == [{"step": 0, "reward": 0.5, "loss": None}, {"step": 1, "reward": 1.0, "loss": None}]
    records = read_metrics(path)
    assert [record["reward"] for record in records] == [0.5, 1.0]
    assert all(math.isnan(record["loss"]) for record in records)


def test_a_torn_last_line_is_left_out_and_a_broken_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\n{"step": 1, "rew')
    assert read_metrics(path) == [{"step": 0}]
    path.write_text('{"step": 0}\n{"st\n{"step": 2}\n')
    with pytest.raises(StoreError, match="line 2 is not JSON"):
        read_metrics(path)


def test_a_second_logger_on_the_same_file_appends(tmp_path: Path) -> None:
    for step in (0, 1):
        jsonl_logger(tmp_path / "m.jsonl")(step, {"a": 1})
    assert [record["step"] for record in read_metrics(tmp_path / "m.jsonl")] == [0, 1]


def test_console_shows_the_chosen_metrics_in_order() -> None:
    stream = io.StringIO()
    console_logger(keys=["success", "missing", "reward"], stream=stream)(3, {"reward": 0.123456, "success": 1, "x": 9})
    assert stream.getvalue() == "step     3  success 1  reward 0.1235\n"


def test_several_at_once_in_order() -> None:
    seen: list[tuple[str, int]] = []
    both = multi_logger(lambda step, _: seen.append(("a", step)), lambda step, _: seen.append(("b", step)))
    both(7, {})
    assert seen == [("a", 7), ("b", 7)]
