"""Certificates of fidelity: the stored comparisons with the benchmarks' own scorers, and a part of each repeated."""

import json

import pytest

from proof.fidelity import ifeval
from proof.fidelity.compare import RESULTS, Case, compare

KINDS = {"right", "wrong", "malformed", "hostile"}
KNOWN = {"ifeval": {ifeval.UNTOLD, "the official scorer raises; ours is 0"}}


@pytest.mark.parametrize("name", KNOWN)
def test_a_certificate_has_thousands_of_outputs_and_no_unknown_difference(name):
    record = json.loads((RESULTS / f"{name}.json").read_text())
    assert record["outputs"] >= 2_000 and record["kinds"].keys() == KINDS
    assert all(counts["outputs"] >= 200 for counts in record["kinds"].values())
    assert record["differences"].keys() <= KNOWN[name]
    n_different = sum(difference["outputs"] for difference in record["differences"].values())
    assert record["equal"] + n_different == record["outputs"]
    assert n_different <= 0.02 * record["outputs"]


def test_ifeval_agrees_with_its_package():
    again = ifeval.result(5)
    assert again["outputs"] == 360 and again["differences"].keys() <= KNOWN["ifeval"]
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
