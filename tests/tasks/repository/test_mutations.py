"""Mutations change one place of a file's text, and nothing else."""

import pytest

from llm_envs.tasks.repository.mutations import Mutation, apply, functions, mutations

TEXT = '''\
"""Prices."""


def total(prices, floor=0):  # ü in a comment: columns count bytes
    """Add them."""
    found = sum(prices)
    if "ü" and found < floor:
        found = floor
    return min(found, 10)


class Shop:
    def names(self):
        return self.look(1, 2, wide=True)
'''


def test_every_kind_is_found_at_its_place():
    found = [(each.function, each.kind, each.old, each.new) for each in mutations("a.py", TEXT)]
    assert found == [
        ("total", "dropped", "    found = sum(prices)\n", ""),
        ("total", "dropped", '    if "ü" and found < floor:\n        found = floor\n', ""),
        ("total", "condition", '"ü" and found < floor', 'not ("ü" and found < floor)'),
        ("total", "condition", "and", "or"),
        ("total", "comparison", "<", "<="),
        ("total", "call", "min", "max"),
        ("total", "argument", "found, 10", "10, found"),
        ("total", "bound", "10", "11"),
        ("Shop.names", "argument", "1, 2", "2, 1"),
        ("Shop.names", "bound", "1", "2"),
        ("Shop.names", "bound", "2", "3"),
        ("Shop.names", "argument", ", wide=True", ""),
        ("Shop.names", "constant", "True", "False"),
    ]


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("a is not b", ["a is b"]),
        ("(a) in (b)", ["(a) not in (b)"]),
        ("a - b - c", ["a + b - c", "a - b + c"]),
        ("'%s' % a", []),
        ("a < b < c", []),
        ("x.rfind(a)", ["x.find(a)"]),
        ("a if b else c", ["a if not (b) else c"]),
    ],
)
def test_expressions(line, changed):
    text = f"def f(a, b, c, x):\n    return {line}\n"
    assert sorted(apply(text, each)[:-1].rpartition("return ")[2] for each in mutations("a.py", text)) == sorted(
        changed
    )


def test_mutations_are_applied_together_and_only_where_they_belong():
    first, second = Mutation("a.py", "f", "bound", 0, "1", "12"), Mutation("a.py", "f", "bound", 4, "2", "3")
    assert apply("1 + 2", first, second) == "12 + 3"
    with pytest.raises(ValueError, match=r"a\.py:f:bound:4"):
        apply("1 + 7", second)


def test_functions_are_named_with_their_classes():
    assert list(functions(TEXT)) == ["total", "Shop.names"]
    assert mutations("a.py", "x = 1 + 2\n") == []
