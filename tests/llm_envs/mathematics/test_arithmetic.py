"""The arithmetic evaluator: exact, limited, never raising anything but InvalidActionError."""

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_envs.errors import InvalidActionError
from llm_envs.mathematics.arithmetic import MAX_BITS, evaluate, evaluate_with_numbers, format_number, whole_value


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("37*24", 888),
        (" 37 * 24 + 9 ", 897),
        ("2+3*4", 14),
        ("(2+3)*4", 20),
        ("10-4-3", 3),
        ("2**3**2", 512),
        ("-2**2", -4),
        ("2**-1", Fraction(1, 2)),
        ("2*-3", -6),
        ("--5", 5),
        ("+5", 5),
        ("7/2", Fraction(7, 2)),
        ("1/3*3", 1),
        ("0.1+0.2", Fraction(3, 10)),
        (".5+3.", Fraction(7, 2)),
        ("7//2", 3),
        ("-7//2", -4),
        ("-7%3", 2),
        ("(84/7+15)*23-48", 573),
        ("1**999999999999", 1),
        ("(0-1)**3", -1),
        ("(0-1)**-2", 1),
        ("0**0", 1),
        ("007", 7),
    ],
)
def test_value(expression, value):
    got = evaluate(expression)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("1+", "ends where a number"),
        ("*3", "number before '\\*'"),
        ("()", "number before '\\)'"),
        ("(1", "not closed"),
        ("1)", "no '\\('"),
        ("3 4", "operator should stand before '4'"),
        ("2(3)", "operator should stand before"),
        ("2^3", "written \\*\\*"),
        ("a+1", "cannot read 'a'"),
        ("1,000", "cannot read ','"),
        ("__import__('os')", "cannot read"),
        ("²", "cannot read"),
        ("٣", "cannot read"),
        (".", "not a number"),
        ("\ud800", "cannot read"),
        ("1/0", "division by zero"),
        ("1//0", "division by zero"),
        ("1%0", "division by zero"),
        ("0**-1", "division by zero"),
        ("2**0.5", "an integer"),
        ("1=1", "cannot read '='"),
    ],
)
def test_refusal_says_why(expression, complaint):
    with pytest.raises(InvalidActionError, match=complaint):
        evaluate(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "9**9**9",
        "9**9**9**9",
        "2**(10**300)",
        "(1/3)**99999",
        "*".join(["9" * 400] * 2 + ["9" * 190]) + "*9" * 5 + "**9",
        "(" * 1_000_000,
        "(" * 499 + "1" + ")" * 500,
        "-" * 10_000_000,
        "9" * 5_000_000,
        "2**" * 300 + "2",
        "1/7" * 400,
    ],
)
def test_huge_and_deep_inputs_are_refused_at_once(expression):
    started = time.thread_time()
    with pytest.raises(InvalidActionError):
        evaluate(expression)
    assert time.thread_time() - started < 0.5


def test_depth_up_to_the_length_limit_is_fine():
    assert evaluate("(" * 499 + "1" + ")" * 499) == 1
    assert evaluate("-" * 998 + "1") == 1
    assert evaluate("1+" * 499 + "1") == 500


def test_size_limit_is_exact():
    assert evaluate(f"2**{MAX_BITS - 1}") == 1 << (MAX_BITS - 1)
    with pytest.raises(InvalidActionError, match="too large"):
        evaluate(f"2**{MAX_BITS}")
    with pytest.raises(InvalidActionError, match="too large"):
        evaluate(f"2**{MAX_BITS - 1}*2")


@given(st.text("0123456789+-*/%(). e", max_size=40))
def test_any_text_gives_a_number_or_a_refusal(text):
    try:
        value = evaluate(text)
    except InvalidActionError:
        return
    assert isinstance(value, int | Fraction)
    format_number(value)


tree = st.recursive(
    st.integers(0, 99).map(lambda n: (str(n), Fraction(n))),
    lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(
        lambda t: (
            f"({t[0][0]}{t[1]}{t[2][0]})",
            {"+": t[0][1] + t[2][1], "-": t[0][1] - t[2][1], "*": t[0][1] * t[2][1]}[t[1]],
        )
    ),
    max_leaves=12,
)


@given(tree)
def test_agrees_with_exact_arithmetic(pair):
    expression, value = pair
    assert evaluate(expression) == value


def test_numbers_are_listed_in_order():
    assert evaluate_with_numbers("(25-7)*4") == (72, [25, 7, 4])
    assert evaluate_with_numbers("-3") == (-3, [3])


def test_operators_can_be_restricted():
    allowed = frozenset("+-*/")
    assert evaluate_with_numbers("6/3*2", allowed)[0] == 4
    for expression in ("2**3", "7//2", "7%2", "-3", "2*-3", "+1"):
        with pytest.raises(InvalidActionError):
            evaluate_with_numbers(expression, allowed)


@pytest.mark.parametrize(
    ("value", "text"),
    [(888, "888"), (-5, "-5"), (Fraction(7, 2), "3.5"), (Fraction(1, 3), "0.333333333333"), (10**30, "1" + "0" * 30)],
)
def test_format_number(value, text):
    assert format_number(value) == text


def test_a_fraction_too_large_for_a_float_is_written_as_a_fraction():
    assert format_number(Fraction(10**400, 3)) == f"{10**400}/3"


def test_a_fraction_too_small_for_a_float_is_not_written_as_zero():
    assert format_number(Fraction(1, 10**400)) == f"1/{10**400}"
    assert format_number(Fraction(-1, 10**20)) == "-1e-20"


def test_whole_value():
    assert whole_value("84/7") == 12
    with pytest.raises(InvalidActionError, match=r"3\.5, not a whole number"):
        whole_value("7/2")
