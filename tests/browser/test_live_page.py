"""The live page in headless Chromium: it changes while runs run, survives restarts, and stays fluid with large ones."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from chromium import Chromium
from report_runs import ATTACKS, make_episode, write_run

from llm_envs.policies import OraclePolicy
from llm_envs.report.feed import Feed
from llm_envs.report.live_server import LiveServer
from llm_envs.rollout import TrajectoryWriter, collect_run
from llm_envs.tracking import jsonl_logger
from llm_envs.tracking.live import live_file
from llm_envs.types import RolloutError, StopReason

pytestmark = [pytest.mark.browser, pytest.mark.smoke]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def serve(stack: ExitStack, *folders: Path, port: int = 0) -> LiveServer:
    return stack.enter_context(LiveServer(Feed(folders), port))


def n_told(chromium: Chromium) -> int:
    return int(chromium.js("everyEpisode.length"))


def test_a_page_that_was_open_before_the_run_began_follows_it(
    chromium: Chromium, stack: ExitStack, tmp_path: Path
) -> None:
    server = serve(stack, tmp_path / "run")
    chromium.open(server.url)
    chromium.wait("document.querySelector('#live')?.innerText.includes('No episode has ended yet')")
    facts = {"kind": "episodes", "total": 3, "done": 1, "success": 1, "reward": 1.0, "running": 1, "playing_s": 4.0}
    facts |= {"policy_s": 3.0, "env_s": 1.0, "open": [["llm/Sums-v0", 9, "g9", 0, 2.5]]}
    with TrajectoryWriter(tmp_path / "run") as writer, live_file(tmp_path / "run", lambda: facts):
        writer.write(make_episode(1))
        chromium.wait("document.querySelector('.newest tbody')?.rows.length === 1")
        chromium.wait("document.querySelector('#live .badge').innerText === 'running'")
        assert "episodes\n1 of 3" in chromium.text("#live dl")
        assert chromium.text("#live .running") == "llm/Sums-v0 · seed 9 · member 0 · 3 s"
        assert "Waiting: for the model 75% · for environments 25%" in chromium.text("#live")
        writer.write(make_episode(2, is_success=False))
        chromium.wait("document.querySelector('.newest tbody').rows.length === 2")
        assert chromium.texts(".newest tbody tr")[0].split("\t")[1] == "failure"  # the newest comes first
        chromium.wait("document.querySelector('main').innerText.includes('50% (')")  # the summary's success
    chromium.wait("document.querySelector('#live .badge').innerText === 'finished'")
    assert chromium.problems() == []


def test_an_episode_opens_with_its_conversation_and_tokens(
    chromium: Chromium, stack: ExitStack, tmp_path: Path
) -> None:
    server = serve(stack, write_run(tmp_path / "run", [make_episode(n, text=f"{n}+1") for n in range(3)]))
    chromium.open(server.url)
    chromium.wait("document.querySelector('.newest tbody')?.rows.length === 3")
    chromium.click(".newest a")
    chromium.wait("document.querySelector('.chat') !== null")
    assert "What is 2+1?" in chromium.text(".chat") and "Use the calculator." in chromium.text(".chat")
    assert len(chromium.texts(".tokens i")) == 6
    chromium.go("#episodes")
    assert chromium.rows() == [2, 1, 0]
    chromium.press("j")
    assert chromium.problems() == []


def test_what_the_server_reads_again_is_told_once(chromium: Chromium, stack: ExitStack, tmp_path: Path) -> None:
    """A failed episode that is replayed replaces its line; a log that becomes a shard changes nothing."""
    error = RolloutError("TimeoutError", "the tool hung", "env.step")
    failed = make_episode(1, status="errored", error=error, is_success=None, stop_reason=StopReason.ERROR)
    server = serve(stack, tmp_path / "run")
    chromium.open(server.url)
    with TrajectoryWriter(tmp_path / "run") as writer:
        writer.write(failed)
        writer.write(make_episode(2))
        chromium.wait("everyEpisode.length === 2")
        writer.compact()
        writer.write(make_episode(1))
        chromium.wait("columns.run.length === 3")
    assert chromium.js("everyEpisode") == [1, 2]
    with TrajectoryWriter(tmp_path / "run", resume=True) as writer:
        writer.write(make_episode(3))
        chromium.wait("columns.run.length === 4")
    chromium.go("#episode/1")
    chromium.wait("document.querySelector('.chat') !== null")
    assert "seed 2" in chromium.text(".episode-head")


def test_the_page_survives_its_server_and_the_run_begun_again(
    chromium: Chromium, stack: ExitStack, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", [make_episode(n) for n in range(4)])
    with LiveServer(Feed([run])) as server:
        chromium.open(server.url)
        chromium.wait("everyEpisode.length === 4")
        port = int(server.url.rstrip("/").rpartition(":")[2])
    chromium.wait("document.querySelector('#live').innerText.includes('does not answer')")
    serve(stack, run, port=port)
    chromium.wait("!document.querySelector('#live').innerText.includes('does not answer')")
    chromium.wait("everyEpisode.length === 4")
    shutil.rmtree(run)
    with TrajectoryWriter(run) as writer:
        writer.write(make_episode(77))
        chromium.wait("everyEpisode.length === 1 && columns.seed[0] === 77")


def test_curves_grow_by_step_and_alarms_are_told(chromium: Chromium, stack: ExitStack, tmp_path: Path) -> None:
    run = tmp_path / "run"
    log = jsonl_logger(run / "metrics.jsonl")
    log(1, {"reward": 0.5, "loss": 1.0})
    server = serve(stack, run)
    chromium.open(server.url)
    chromium.wait("document.querySelectorAll('figure').length === 2")
    log(2, {"reward": 0.75, "loss": float("nan")})
    chromium.wait("index.runs[0].curves.reward.length === 2")
    assert chromium.js("index.runs[0].curves") == {"reward": [[1, 0.5], [2, 0.75]], "loss": [[1, 1.0]]}
    chromium.wait("document.querySelector('#live .alarms')?.innerText === 'loss is not a finite number.'")
    chromium.wait(
        "document.querySelector('figure svg').getAttribute('aria-label').includes('0.5 to 0.75 over 2 points')"
    )


def test_a_collection_is_followed_to_its_end(chromium: Chromium, stack: ExitStack, tmp_path: Path) -> None:
    server = serve(stack, tmp_path / "run")
    chromium.open(server.url)
    seen = []

    def look(*_: object) -> None:
        if len(seen) < 2:
            seen.append(chromium.js("everyEpisode.length"))
            chromium.wait(f"everyEpisode.length > {seen[-1]}")

    collect_run(
        "llm/Arithmetic-v0", OraclePolicy(), out=tmp_path / "run", n_groups=12, max_concurrency=1, on_trajectory=look
    )
    chromium.wait("everyEpisode.length === 12")
    chromium.wait("document.querySelector('#live .badge').innerText === 'finished'")
    assert "episodes\n12 of 12" in chromium.text("#live dl") and "success\n100%" in chromium.text("#live dl")
    assert seen == sorted(seen) and seen[-1] < 12


def test_hostile_text_stays_text_and_other_sites_are_refused(
    chromium: Chromium, stack: ExitStack, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", [make_episode(n, text=text) for n, text in enumerate(ATTACKS)], note=ATTACKS[0])
    bad = {"began": 1, "updated": 2, "ended": ATTACKS[1], "open": [[ATTACKS[0], 1, "g", 0, 1.0]], "kind": ATTACKS[3]}
    (run / "live-0.json").write_text(json.dumps(bad))
    (run / "live-1.json").write_text('{"open": 7}')
    server = serve(stack, run)
    chromium.open(server.url)
    chromium.wait(f"everyEpisode.length === {len(ATTACKS)}")
    chromium.wait("document.querySelector('#live .alarms') !== null")
    assert ATTACKS[1] in chromium.text("#live .alarms")
    for number in range(len(ATTACKS)):
        chromium.go(f"#episode/{number}")
        chromium.wait("document.querySelector('.chat') !== null")
        chromium.unfold()
    assert chromium.js(
        "window.attacked === undefined && document.querySelectorAll('main script, main img').length === 0"
    )
    assert all(address.startswith(server.url) for address in chromium.requests())
    for headers in ({"Host": "evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(urllib.request.Request(server.url + "feed", headers=headers))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 1200])
def test_the_page_fits_phones_in_both_colours(
    chromium: Chromium, stack: ExitStack, tmp_path: Path, width: int, dark: bool
) -> None:
    one, other = (write_run(tmp_path / name, [make_episode(n) for n in range(9)]) for name in ("one", "other"))
    jsonl_logger(one / "metrics.jsonl")(1, {"reward": 1.0})
    facts = {"kind": "training", "step": 3, "steps": 20, "done": 9, "success": 9, "running": 2, "playing_s": 2.0}
    facts |= {"open": [["llm/A-very-long-name-of-an-environment-v0", 2**40, "g", 3, 100.0]], "policy_s": 1.5}
    stack.enter_context(live_file(one, lambda: facts))
    server = serve(stack, one, other)
    chromium.open(server.url, width=width, dark=dark)
    chromium.wait("document.querySelector('#live .running') !== null && everyEpisode.length === 18")
    for view in ("", "#episodes", "#episode/3", "#compare"):
        chromium.go(view or "#summary")
        chromium.wait("document.querySelector('main').innerText.length > 40")
        assert chromium.js("document.documentElement.scrollWidth") <= width, view
    background = chromium.js("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(18, 22, 28)") is dark
