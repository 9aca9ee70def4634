"""Certificates of fidelity: the stored comparisons with the benchmarks' own scorers, and a part of each repeated."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from proof.fidelity import alf_world, arc, bfcl, grid_worlds, ifeval, java_worlds, tau2
from proof.fidelity.compare import RESULTS, Case, compare

pytestmark = pytest.mark.pages

ROOT = Path(__file__).resolve().parents[2]
KINDS = {"right", "wrong", "malformed", "hostile"}
KNOWN = {
    "babyai": {"the official scorer raises; ours is 0"},  # broken replies made our limit of turns come first
    "minigrid": set(),
    "scienceworld": set(),
    "textworld-express": set(),
    "ifeval": {ifeval.UNTOLD, "the official scorer raises; ours is 0"},
    "bfcl": bfcl.KNOWN,
    "arc": arc.KNOWN,
    "tau2": tau2.KNOWN,
    "alfworld": set(),
}


@pytest.mark.smoke
@pytest.mark.parametrize("name", KNOWN)
def test_a_certificate_has_thousands_of_outputs_and_no_unknown_difference(name):
    record = json.loads((RESULTS / f"{name}.json").read_text())
    assert record["outputs"] >= 2_000 and record["kinds"].keys() == KINDS
    assert all(counts["outputs"] >= 200 for counts in record["kinds"].values())
    assert record["differences"].keys() <= KNOWN[name]
    n_different = sum(difference["outputs"] for difference in record["differences"].values())
    assert record["equal"] + n_different == record["outputs"]
    assert n_different <= 0.05 * record["outputs"]


@pytest.mark.smoke
@pytest.mark.parametrize("family", ["BabyAI", "MiniGrid"])
def test_grid_worlds_agree_with_their_package(family):
    pytest.importorskip("minigrid")
    again = grid_worlds.result(family, 1)
    assert again["outputs"] == again["equal"] == 4 * len(grid_worlds.LEVELS[family]) and again["steps"] > 500
    assert again["kinds"]["right"]["right by ours"] >= 0.8 * again["kinds"]["right"]["outputs"]


@pytest.mark.suites
@pytest.mark.parametrize(
    ("env_id", "levels"),
    [("llm/TextWorldExpress-v0", java_worlds.GAMES[2:]), ("llm/ScienceWorld-v0", java_worlds.EXPERIMENTS[1:3])],
)
def test_java_worlds_agree_with_their_packages(env_id, levels):
    if shutil.which("java") is None and not os.environ.get("LLM_ENVS_REQUIRE_JAVA"):
        pytest.skip("Java is not installed here")
    again = java_worlds.result(env_id, levels, 1)
    assert again["outputs"] == again["equal"] > 30 * len(levels)
    assert again["kinds"]["right"]["right by ours"] == len(levels)


@pytest.mark.suites
def test_alfworld_agrees_with_its_package(tmp_path):
    pytest.importorskip("alfworld")
    again = alf_world.result(tmp_path, 1, ["pick_heat_then_place_in_recep"])
    assert again["outputs"] == again["equal"] > 40
    assert again["kinds"]["right"]["right by ours"] == 1


def test_ifeval_agrees_with_its_package():
    again = ifeval.result(5)
    assert again["outputs"] == 360 and again["differences"].keys() <= KNOWN["ifeval"]
    assert again["kinds"]["right"]["right by ours"] == again["kinds"]["right"]["outputs"]


@pytest.mark.smoke
def test_arc_agrees_with_its_package():
    again = arc.result(3)
    assert again["outputs"] > 200 and again["differences"].keys() <= KNOWN["arc"]
    assert again["kinds"]["right"]["right by ours"] == again["kinds"]["right"]["outputs"]
    assert again["kinds"]["hostile"]["right by ours"] == 0


@pytest.mark.smoke
def test_bfcl_agrees_with_its_package():
    program = (
        "import json; from proof.fidelity import bfcl; print(json.dumps(bfcl.result(6)))"  # it evaluates hostile text
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2_000:]
    again = json.loads(done.stdout.splitlines()[-1])
    assert again["outputs"] == 17 * 6 * 5 and again["differences"].keys() <= KNOWN["bfcl"]
    assert again["kinds"]["right"]["equal"] == again["kinds"]["right"]["outputs"]


@pytest.mark.suites
def test_tau2_agrees_with_its_package():
    program = (
        "import json; from proof.fidelity import tau2; print(json.dumps(tau2.result({'telecom': 6, 'retail': 1})))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2_000:]
    again = json.loads(done.stdout.splitlines()[-1])
    assert again["outputs"] == 70 and again["differences"].keys() <= tau2.KNOWN
    assert again["kinds"]["right"]["right by ours"] == again["kinds"]["right"]["outputs"]


def test_differences_are_counted_by_reason():
    def official(case):
        return case.output == "yes" if case.output != "boom" else 1 / 0

    cases = [Case("right", None, "yes"), Case("wrong", None, "no"), Case("hostile", None, "boom")]
    found = compare([*cases, Case("wrong", None, "Yes")], lambda case: case.output.lower() == "yes", official, _reason)
    assert (found["outputs"], found["equal"]) == (4, 2)
    assert {why: each["outputs"] for why, each in found["differences"].items()} == {
        "case": 1,
        "the official scorer raises; ours is 0": 1,
    }


def _reason(case, mine, theirs):
    assert (mine, theirs) == (True, False)
    return "case"
