from __future__ import annotations

import io
import json
import math
import time
from pathlib import Path

import pytest

from llm_envs.errors import StoreError
from llm_envs.reporting import (
    console_logger,
    jsonl_logger,
    live_progress,
    multi_logger,
    progress_line,
    read_metrics,
)
from llm_envs.rollout import CollectorStats


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


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def wait_for(stream: io.StringIO, text: str) -> None:
    deadline = time.monotonic() + 30
    while text not in stream.getvalue():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class TestProgress:
    def test_a_line(self) -> None:
        stats = CollectorStats(submitted=60, running=8, accepted=50, errored=10, successes=30, reward=32.0)
        stats.sampled_tokens = 5000
        stats.error_kinds["env.step: Key\x1bError"] += 10
        assert progress_line(stats, 8000, 100, 10.0) == (
            "150/8000 episodes, 5/s, 0:26:10 left, success 75%, reward 0.8, 500 tokens/s, 8 running, "
            "10 errors (env.step: Key␛Error x10)"
        )
        assert progress_line(CollectorStats(), 5, 0, 0.0) == "0/5 episodes, 0 running"

    def test_lines_at_times_where_there_is_no_terminal(self) -> None:
        stream, stats = io.StringIO(), CollectorStats()
        with live_progress(stats, 10, 4, stream=stream, every_s=0.01):
            wait_for(stream, "4/10 episodes, 0 running\n")  # also while nothing ends
            stats.accepted = 3
            wait_for(stream, "7/10 episodes")
        shown = stream.getvalue()
        assert "\r" not in shown and "\x1b" not in shown and shown.endswith("\n")
        time.sleep(0.05)
        assert stream.getvalue() == shown

    def test_one_live_line_on_a_terminal_which_is_gone_at_the_end(self) -> None:
        stream = Terminal()
        with pytest.raises(KeyboardInterrupt), live_progress(CollectorStats(), 10, stream=stream, every_s=0.01):
            wait_for(stream, "\r0/10 episodes")
            raise KeyboardInterrupt
        assert "\n" not in stream.getvalue() and stream.getvalue().endswith("\r\x1b[K")

    def test_what_is_over_at_once_says_nothing(self) -> None:
        stream = io.StringIO()
        with live_progress(CollectorStats(), 10, stream=stream):
            pass
        assert stream.getvalue() == ""
