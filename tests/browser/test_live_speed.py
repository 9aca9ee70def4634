"""A live page of 1,000 steps and 100,000 episodes: how long it takes to read, and whether it stays fluid."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from chromium import Chromium
from report_runs import make_episode, make_row

from llm_envs.report.feed import MAX_POINTS, MAX_ROWS, Feed
from llm_envs.report.live_server import LiveServer
from llm_envs.types import Message, Turn

pytestmark = pytest.mark.browser

N_EPISODES, N_STEPS, N_METRICS = 100_000, 1_000, 60
MAX_ANSWER = 2_000_000
"""Characters of one answer."""

WATCH = """
window.longest = 0;
new PerformanceObserver((list) => {
  for (const one of list.getEntries()) window.longest = Math.max(window.longest, one.duration);
}).observe({entryTypes: ['longtask']});
"""


@pytest.fixture(scope="module")
def large_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a training's folder: 1,000 steps of 60 metrics, and 100,000 episodes in one log."""
    run = tmp_path_factory.mktemp("large")
    row = make_row(24)
    line = make_episode(
        7,
        messages=(Message("user", "BEGIN " + "a" * 200), Message("assistant", "b" * 200)),
        rows=(row,),
        turns=(Turn(0.5, {"correct": 0.5}, row=0, span=0),),
        tools=(),
        group_id="train-STEP-0-0-0",
    ).to_json()
    below = run / "trajectories" / "process-0"
    below.mkdir(parents=True)
    (below / "manifest.json").write_text(json.dumps({"format": 2, "settings": {}, "shards": {}}))
    with open(below / "log-00000.jsonl", "w") as file:
        for n in range(N_EPISODES):
            file.write(
                line.replace("BEGIN", str(n)).replace("STEP", str(n // 100)).replace('"seed": 7', f'"seed": {n}') + "\n"
            )
    with open(run / "metrics.jsonl", "w") as file:
        for step in range(N_STEPS):
            metrics = {f"metric/{name}": step * name for name in range(N_METRICS)}
            file.write(json.dumps({"step": step, "reward": step / N_STEPS, **metrics}) + "\n")
    return run


def test_a_long_training_is_read_by_offset_and_stays_fluid(chromium: Chromium, large_run: Path) -> None:
    feed = Feed([large_run])
    began = time.perf_counter()
    with LiveServer(feed) as server:
        chromium.open(server.url, before=WATCH)
        while chromium.js("everyEpisode.length") < N_EPISODES:
            time.sleep(0.5)
        read_s = time.perf_counter() - began
        chromium.wait(f"index.runs[0].curves.reward.length === {N_STEPS}")
        answer = json.dumps(feed.answer({}))
        assert len(answer) < MAX_ANSWER
        assert len(json.loads(answer)["rows"]) == MAX_ROWS and len(json.loads(answer)["points"]) == MAX_POINTS
        reading = chromium.js("window.longest")
        chromium.js("window.longest = 0")
        log = large_run / "trajectories" / "process-0" / "log-00000.jsonl"
        with open(log) as file:
            line = file.readline()
        for place, view in enumerate(("#summary", "#episodes", "#summary")):
            chromium.go(view)
            with open(log, "a") as file:
                file.write(line)
            chromium.wait(f"everyEpisode.length === {N_EPISODES + place + 1}")
            chromium.js("new Promise((done) => setTimeout(done, 2000))")
        chromium.go("#episodes")
        chromium.click("[data-sort=reward]")
        chromium.go(f"#episode/{N_EPISODES - 1}")
        chromium.wait("document.querySelector('.chat') !== null")
        following = chromium.js("window.longest")
    print(
        f"read in {read_s:.1f} s, {N_EPISODES / read_s:.0f} episodes/s; longest task {reading:.0f} ms while reading, "
        f"{following:.0f} ms while following"
    )
    assert following >= 0  # a number to look at: it depends on what else the machine does
