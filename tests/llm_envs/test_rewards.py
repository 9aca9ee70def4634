"""Pure rewards against hand-worked values."""

import pytest

from llm_envs.rewards import exact_match, parse_integer, weighted_sum


def test_weighted_sum():
    weights = {"correct": 1.0, "malformed": -0.1}
    assert weighted_sum({"correct": 1.0, "malformed": 0.0}, weights) == 1.0
    assert weighted_sum({"correct": 0.5, "malformed": 2.0}, weights) == pytest.approx(0.3)
    assert weighted_sum({}, {}) == 0.0
    with pytest.raises(KeyError):
        weighted_sum({"correct": 1.0}, weights)


@pytest.mark.parametrize(
    ("answer", "target", "value"),
    [
        ("a b", "a b", 1.0),
        (" a \n b ", "a b", 1.0),
        ("A b", "a b", 0.0),
        ("ab", "a b", 0.0),
        ("", "", 1.0),
        ("", "a", 0.0),
    ],
)
def test_exact_match(answer, target, value):
    assert exact_match(answer, target) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("888", 888),
        (" 888 ", 888),
        ("-13", -13),
        ("+5", 5),
        ("007", 7),
        ("12.0", 12),
        ("1,234", 1234),
        ("-1,234,567.00", -1234567),
        ("9" * 400, int("9" * 400)),
        ("", None),
        ("12.5", None),
        ("1,23", None),
        ("12,3456", None),
        ("1 2", None),
        ("--1", None),
        ("1e3", None),
        ("0x10", None),
        ("1_000", None),
        ("²", None),
        ("٣", None),
        ("\uff18", None),
        ("\ud800", None),
        ("nan", None),
        ("True", None),
        ("9" * 401, None),
        ("9" * 100_000, None),
        ("12\n", 12),
    ],
)
def test_parse_integer(text, value):
    assert parse_integer(text) == value
