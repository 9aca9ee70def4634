"""Chaos, for a minute: rounds with fixed seeds, and what a round must notice. `make chaos` plays many more."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results" / "chaos.md"

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """From the repository's root, as `python -m proof.chaos` finds it."""
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize(("scenario", "seed"), [("collection", 1), ("workers", 1), ("workers", 7), ("models", 0)])
def test_a_round_finds_nothing(scenario, seed):
    from proof.chaos.__main__ import run_round
    from proof.chaos.scenarios import SCENARIOS

    found = run_round(scenario, SCENARIOS[scenario], seed, sys.executable)
    assert found.problems == []
    assert len(found.faults) >= 3 and found.counts["episodes"] >= 70


def test_the_commands(tmp_path):
    """Those of the page, with a file of results that is not the committed one."""
    for options in (["--rounds", "1"], ["--rounds", "1", "--seed", "7"]):
        command = [sys.executable, "-m", "proof.chaos", *options, "--scenarios", "collection"]
        done = subprocess.run([*command, "--out", str(tmp_path / "rounds.json")], capture_output=True, text=True)
        assert done.returncode == 0 and "0 rounds with a problem" in done.stdout, done.stdout + done.stderr
    from proof.chaos.table import read_rounds

    assert [(one.scenario, one.seed) for one in read_rounds(tmp_path / "rounds.json")] == [
        ("collection", 0),
        ("collection", 7),
    ]


def in_program(code: str, folder: Path) -> str:
    """Run code in a process that may fork; return what it prints."""
    head = "import sys, time; from pathlib import Path; from proof.chaos.rounds import *; folder = Path(sys.argv[1])\n"
    done = subprocess.run([sys.executable, "-c", head + code, str(folder)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_how_a_child_ended_is_noticed(tmp_path):
    code = """
def raises(): raise ArithmeticError("what nobody expected")
def breaks(): raise Broken("lost")
for work, limit_s in ((lambda: None, 60.0), (raises, 60.0), (breaks, 60.0), (lambda: time.sleep(60), 1.0)):
    ended = in_child(work, folder / "log", limit_s=limit_s)
    print(ended.how, ended.message.splitlines()[-1:])
print(in_child(lambda: time.sleep(60), folder / "log", limit_s=30.0, actions=[(0.1, kill_all)]).how)
"""
    assert in_program(code, tmp_path).splitlines() == [
        "done []",
        "crashed ['ArithmeticError: what nobody expected']",
        "refused ['Broken: lost']",
        "hung []",
        "killed",
    ]


def test_lost_doubled_and_changed_episodes_are_noticed(tmp_path):
    from dataclasses import replace

    from llm_envs.policies import OraclePolicy
    from llm_envs.rollout import Collector, TrajectoryWriter
    from llm_envs.testing import ByteCodec, NumbersEnv
    from proof.chaos.collection import same_episodes
    from proof.chaos.rounds import Broken

    with Collector(NumbersEnv, OraclePolicy(), codec=ByteCodec(), progress=False) as collector:
        one, two, three = (group.trajectories[0] for group in collector.collect(3))
    runs = {
        "whole": [one, two],
        "same": [two, replace(one, metadata={**one.metadata, "retries": 1})],
        "lost": [one],
        "doubled": [one, two, two],
        "asked for": [one, two, three],
        "changed": [one, replace(two, metadata={**two.metadata, "note": 1})],
    }
    for name, trajectories in runs.items():
        with TrajectoryWriter(tmp_path / name) as writer:
            for trajectory in trajectories:
                writer.write(trajectory)
    same_episodes(tmp_path / "same", tmp_path / "whole")
    for name in ("lost", "doubled", "asked for", "changed"):
        with pytest.raises(Broken, match=name):
            same_episodes(tmp_path / name, tmp_path / "whole")


def test_processes_that_a_round_leaves_behind_are_found():
    from proof.chaos.__main__ import ROUND_VARIABLE, _of_round

    with subprocess.Popen(["sleep", "60"], env=os.environ | {ROUND_VARIABLE: "a-round"}) as process:
        until_s = time.monotonic() + 30.0
        while _of_round("a-round") != [process.pid] and time.monotonic() < until_s:
            time.sleep(0.01)
        assert _of_round("a-round") == [process.pid] and _of_round("a-roun") == []
        process.kill()


def test_the_table_is_that_of_the_rounds():
    from proof.chaos.table import RESULTS, read_rounds, render

    rounds = read_rounds(RESULTS)
    assert render(rounds) in PAGE.read_text(encoding="utf-8")
    assert all(one.problems == [] for one in rounds)
    assert sum(one.scenario == "collection" for one in rounds) >= 50
