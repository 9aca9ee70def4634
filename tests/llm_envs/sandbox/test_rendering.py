"""Values are written as `repr` writes them, in time and space that the budget bounds."""

import time
from datetime import date

import pytest

from llm_envs.sandbox.rendering import render


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -(10**4000),
        1.5,
        float("nan"),
        2j,
        "a'b\n",
        b"\x00a",
        [],
        [1, [2, "x"]],
        (),
        (1,),
        (1, 2),
        set(),
        {1},
        frozenset(),
        frozenset({1}),
        {},
        {"a": [1], 2: None},
        range(3),
        date(2026, 1, 2),
        ...,
    ],
)
def test_small_values_are_written_as_repr_does(value):
    assert render(value, 10_000) == repr(value)


def nested(depth: int, width: int) -> list:
    value: list = []
    for _ in range(depth):
        value = [value] * width
    return value


@pytest.mark.parametrize(
    "value", [nested(60, 2), nested(100_000, 1), list(range(10**6)), "a" * 10**7, {n: n for n in range(10**5)}]
)
def test_large_values_are_cut_near_the_budget(value):
    started = time.thread_time()
    text = render(value, 1_000)
    assert time.thread_time() - started < 0.5
    assert len(text) < 2_100


def test_a_value_that_contains_itself_ends():
    value: list = []
    value.append(value)
    assert render(value, 1_000) == "[" * 60 + "..." + "]" * 60


def test_a_huge_integer_is_described():
    assert render(1 << 10**6, 100) == "<an integer of 1000001 bits>"


def test_text_longer_than_the_budget_is_seen_to_be_longer():
    assert len(render("a" * 100, 50)) > 50
