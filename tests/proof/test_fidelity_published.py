"""The certificates of the tasks over published data: the stored comparisons, and a part of each repeated."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from proof.fidelity.compare import RESULTS
from proof.fidelity.published import BENCHMARKS
from proof.fidelity.published_departures import DEPARTURES
from proof.fidelity.published_rules import runs

pytestmark = pytest.mark.pages

ROOT = Path(__file__).resolve().parents[2]
SHARES = {"GSM8K": 8, "MATH500": 30, "AIME": 12, "MMLU": 8, "GPQA": 8, "HotpotQA": 8, "HumanEval": 10, "MBPP": 12}
"""One in this many problems is compared again."""


def check(record, name):
    """Every difference has a reason that we wrote down, every right form is paid, and no hostile one is."""
    assert record["differences"].keys() <= {departure.why for departure in DEPARTURES[name]}
    assert record["equal"] + sum(found["outputs"] for found in record["differences"].values()) == record["outputs"]
    assert record["kinds"]["right"]["right by ours"] == record["kinds"]["right"]["outputs"]
    assert record["kinds"]["hostile"]["right by ours"] == 0


@pytest.mark.smoke
@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_certificate_has_thousands_of_outputs_of_all_kinds(name):
    record = json.loads((RESULTS / f"{name.lower()}.json").read_text())
    assert record["outputs"] >= 2_000
    assert set(record["kinds"]) == {"right", "wrong", "malformed", "hostile"}
    assert all(counts["outputs"] >= 150 for counts in record["kinds"].values())
    check(record, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_part_again(name):
    program = (
        f"import json; from proof.fidelity.published import result; print(json.dumps(result({name!r}, {SHARES[name]})))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2_000:]
    record = json.loads(done.stdout.splitlines()[-1])
    assert record["outputs"] >= 100
    check(record, name)


@pytest.mark.smoke
def test_a_system_without_a_limit_of_memory_says_so_and_programs_are_still_judged(monkeypatch):
    """macOS refuses RLIMIT_AS."""

    def refuse(*limit):
        raise ValueError

    monkeypatch.setattr(resource, "setrlimit", refuse)
    with pytest.warns(UserWarning, match="RLIMIT_AS"):
        assert runs("pass")
    with pytest.warns(UserWarning, match="RLIMIT_AS"):
        assert not runs("assert False")


def test_the_page_has_the_certificates():
    done = subprocess.run([sys.executable, "docs/fidelity.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
