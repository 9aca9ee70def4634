"""Answers of mathematics in the forms that models use: a part of the corpus, the record of all, and all again."""

import json
from collections import Counter
from itertools import islice

import pytest

from proof.fidelity.math_forms import RIGHT, WRONG, Form
from proof.fidelity.mathematics import ARGUMENTS, RESULT, corpus, ours


def misjudged(listed):
    listed = list(listed)
    verdicts = zip(listed, ours(listed), strict=True)
    return [(task, form.target, reply) for (task, form, reply), accepted in verdicts if accepted != form.is_right]


def test_a_part_of_the_corpus_is_judged_right():
    assert misjudged(islice(corpus(), 0, None, 97)) == []


def test_every_kind_of_answer_has_right_forms_and_wrong_neighbours():
    assert RIGHT.keys() == WRONG.keys()
    assert {form.kind for _, form, _ in corpus()} == RIGHT.keys()


def test_a_verdict_is_read_from_the_task():
    form = Form("a whole number", "units", "How long is it?", "18", r"18\,\text{cm}", True)
    replies = (r"\boxed{18\,\text{cm}}", r"\boxed{19\,\text{cm}}", r"18\,\text{cm}")
    assert list(ours(("MATH500", form, reply) for reply in replies)) == [True, False, False]


@pytest.mark.pages
@pytest.mark.smoke
def test_the_record_is_of_this_corpus_and_keeps_the_bar():
    """At most 0.5% of at least 2,000 right answers are refused, and none of as many wrong ones is accepted."""
    record = json.loads(RESULT.read_text())
    counts = Counter((task, "right" if form.is_right else "wrong") for task, form, _ in corpus())
    assert counts == {(task, kind): each[kind] for task, each in record["tasks"].items() for kind in ("right", "wrong")}
    total = sum((Counter(each) for each in record["tasks"].values()), Counter())
    assert min(total["right"], total["wrong"]) >= 2_000
    assert total["right, accepted"] >= 0.995 * total["right"]
    assert total["wrong, accepted"] == 0
    assert record["differences"].keys() <= ARGUMENTS.keys()


@pytest.mark.pages
@pytest.mark.slow
def test_all_of_the_corpus_is_judged_as_in_the_record():
    record = json.loads(RESULT.read_text())
    listed = list(corpus())
    wrong = misjudged(listed)
    n_wrong = sum(each["ours"] for each in record["misjudged"].values())
    assert len(wrong) == n_wrong, wrong[:20]
