"""How soon a report of 10,000 episodes is there."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from chromium import Chromium
from report_runs import make_episode, make_row

from llm_envs.report import write_report
from llm_envs.types import Message, Turn

pytestmark = pytest.mark.browser

N_EPISODES = 10_000
LIMIT_MS = 2000.0
TRIES = 4
"""Of three loads each: another process may have the processor."""

SEEN = """
(() => {
  const look = () => {
    if (!document.querySelector(%r)) { requestAnimationFrame(look); return; }
    // The frame that shows it is done when the next one begins.
    requestAnimationFrame(() => { window.seenAfterMs = performance.now(); });
  };
  requestAnimationFrame(look);
})();
"""
"""Run before the page's own script: milliseconds from the start of the navigation until an element is on the screen."""


@pytest.fixture(scope="module")
def large_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a report of 10,000 episodes: 10 million characters, a million tokens."""
    row = make_row(100)
    episodes = [
        make_episode(
            n,
            text=str(n),
            messages=(Message("user", f"{n} " + "a" * 500), Message("assistant", "b" * 500)),
            rows=(row,),
            turns=(Turn(n / N_EPISODES, {"r": n / N_EPISODES}, row=0, span=0),),
            tools=(),
        )
        for n in range(N_EPISODES)
    ]
    folder = tmp_path_factory.mktemp("large")
    (folder / "run.jsonl").write_text("".join(episode.to_json() + "\n" for episode in episodes))
    write_report([folder / "run.jsonl"], folder / "report.html")
    return folder / "report.html"


def seen_after_ms(chromium: Chromium, page: Path, hash: str, selector: str) -> float:
    """Return the median of three loads, each in a page of its own."""
    times = []
    for _ in range(3):
        chromium.open(page, hash=hash, before=SEEN % selector)
        chromium.wait("window.seenAfterMs !== undefined")
        times.append(float(chromium.js("window.seenAfterMs")))
    return statistics.median(times)


@pytest.mark.parametrize(
    ("hash", "selector"), [("#episodes", "tr[data-episode]"), ("", "figure svg")], ids=["table", "summary"]
)
def test_ten_thousand_episodes_are_on_the_screen_in_two_seconds(
    chromium: Chromium, large_page: Path, hash: str, selector: str
) -> None:
    assert large_page.stat().st_size > 20e6
    medians: list[float] = []
    while not medians or (medians[-1] >= LIMIT_MS and len(medians) < TRIES):
        medians.append(seen_after_ms(chromium, large_page, hash, selector))
    print(f"{selector}: on the screen after {medians[-1]:.0f} ms")
    assert medians[-1] < LIMIT_MS, medians


def test_ten_thousand_episodes_are_opened_by_their_table_alone(chromium: Chromium, large_page: Path) -> None:
    chromium.open(large_page)
    assert chromium.js("[...blocks.keys()]") == []  # no conversation has been parsed
    chromium.go("#episodes")
    assert chromium.rows() == list(range(100))
    assert chromium.text(".pages span") == "page 1 of 100"
    chromium.click(".pages button:last-child")
    assert chromium.rows() == list(range(100, 200))
    chromium.click("[data-sort=reward]")
    assert chromium.rows()[0] == 9999
    chromium.go("#episode/5000")
    assert "seed 5000" in chromium.text()
    assert len(chromium.js("[...blocks.keys()]")) <= 2
    chromium.press("/")
    chromium.wait("document.activeElement.id === 'search'")
    chromium.type("seed:77 a")
    chromium.wait("document.getElementById('found').textContent.startsWith('111 episodes of')")  # 77, 770 to 7799
