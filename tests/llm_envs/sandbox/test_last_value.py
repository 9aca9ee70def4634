"""A snippet is changed so that its last expression is stored as text, and nothing else of it changes."""

import pytest

from llm_envs.sandbox import MontySandbox, SandboxLimits
from llm_envs.sandbox.last_value import VARIABLE, store_value, without_changes


@pytest.fixture(scope="module")
def run():
    pytest.importorskip("pydantic_monty")
    with MontySandbox(n_workers=1, limits=SandboxLimits(timeout_s=30, memory_bytes=48 << 20)) as sandbox:
        yield lambda code: sandbox.session().run(code)


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("1 + 1", "2"),
        ("x = 1; x; # said", "1"),
        ("x = 1", None),
        ("None", None),
        ("'None'", "'None'"),
        ("", None),
        ("# 5", None),
        ("1, *[2]", "(1, 2)"),
        ("def f(x):\n  return x\n\nf(\n  3, # )\n)\n# said\n", "3"),
        ("'''a\n5'''", r"'a\n5'"),
        ("x = 'a;' + \"#\"\nx", "'a;#'"),
        ("x = '\\';'\nx", '"\';"'),
        ("if 1: 5; 6", None),
        ("for x in [5]:\n    x", None),
        ("x = 5\r\nx\r\n", "5"),
        ("5\\\n", "5"),
        ("\\\n5", "5"),
        ("d = {'k': 1}\nf'{d['k']}'", "'1'"),  # the quotes of an f-string, again inside
        ("x: int", None),
        ("import asyncio\nasync def f(): return 5\nawait f()", "5"),
        ("x if (x := 3) else 4", "3"),
    ],
)
def test_value(run, code, value):
    result = run(code)
    assert (result.value, result.error) == (value, None)


@pytest.mark.parametrize(
    ("code", "error", "last"),
    [
        ("(1,\n2", "SyntaxError", "SyntaxError: unexpected EOF while parsing"),
        ("x ===", "SyntaxError", "    x ===\n        ~"),
        ("print(7); 1/0", "ZeroDivisionError", "    print(7); 1/0\n              ~~~"),
        ("print(7)\nexec('1+')", "SyntaxError", "    exec('1+')\n    ~~~~~~~~~~"),  # of the code, not of our change
    ],
)
def test_an_error_is_shown_as_if_nothing_had_been_changed(run, code, error, last):
    result = run(code)
    assert result.output.count("7\n") == code.count("print(7)")  # it has run once
    assert VARIABLE not in result.output
    assert (result.error, last in result.output) == (error, True)


@pytest.mark.parametrize("code", ["'" * 200_001, '"""\\' * 50_000, "(" * 200_000, "\\" * 200_000, "#\n;" * 70_000])
def test_hostile_code_is_read_in_one_pass(code):
    store_value(code, 10)


def test_the_change():
    assert store_value("x = 1\nx  # said", 9) == f'x = 1\n{VARIABLE} = f"{{(x\n)!r:.9}}"\n'
    assert without_changes(f'    {VARIABLE} = f"{{(1/0\n{" " * (len(VARIABLE) + 11)}~~~') == "    1/0\n    ~~~"
