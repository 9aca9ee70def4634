"""Tools from typed functions: schema, arguments, results."""

import pickle
from typing import Any, Literal

import pytest

from llm_envs.errors import InvalidActionError, InvalidConfigError
from llm_envs.tools import INVALID_ARGUMENTS, UNKNOWN_TOOL, Tool, call_tool
from llm_envs.types import ToolCall


def book(
    city: str, nights: int = 1, kind: Literal["single", "double"] = "single", tags: list[str] | None = None
) -> dict:
    """Book a room.

    Longer words that the model is not shown.

    Args:
        city: Where to; a name
            in English.
        nights: How long.

    Returns:
        The booking.
    """
    return {"city": city, "nights": nights, "kind": kind, "tags": tags}


def test_schema():
    assert Tool(book).schema == {
        "type": "function",
        "function": {
            "name": "book",
            "description": "Book a room.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Where to; a name in English."},
                    "nights": {"type": "integer", "description": "How long."},
                    "kind": {"enum": ["single", "double"]},
                    "tags": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
                },
                "required": ["city"],
            },
        },
    }


def test_schema_is_fresh():
    tool = Tool(book)
    tool.schema["function"]["parameters"]["properties"].clear()
    assert "city" in tool.schema["function"]["parameters"]["properties"]


def test_name_and_description_can_be_given():
    tool = Tool(book, name="reserve", description="Reserve.")
    assert tool.schema["function"]["name"] == "reserve"
    assert tool.schema["function"]["description"] == "Reserve."


def test_result():
    result = Tool(book)({"city": "Rome", "tags": ["a"]})
    assert result.output == '{"city": "Rome", "nights": 1, "kind": "single", "tags": ["a"]}'
    assert (result.name, result.success, result.error) == ("book", True, None)
    assert result.arguments == {"city": "Rome", "tags": ["a"]}
    assert result.seconds > 0


@pytest.mark.parametrize(
    ("annotation", "given", "converted"),
    [
        (str, "x", "x"),
        (str, 5, "5"),
        (int, 3, 3),
        (int, 3.0, 3),
        (int, "-3", -3),
        (float, 2, 2.0),
        (float, "2.5", 2.5),
        (bool, True, True),
        (bool, "false", False),
        (list, [1, "a"], [1, "a"]),
        (list[int], ["1", 2.0], [1, 2]),
        (dict, {"a": 1}, {"a": 1}),
        (dict[str, float], {"a": 1}, {"a": 1.0}),
        (int | str, "3", "3"),
        (int | str, 3, 3),
        (str | None, None, None),
        (int | float, 2.5, 2.5),
        (Literal[1, 2], 2, 2),
        (Any, {"x": [1]}, {"x": [1]}),
    ],
)
def test_arguments_are_converted(annotation, given, converted):
    seen = []

    def f(x):
        seen.append(x)

    f.__annotations__ = {"x": annotation}
    result = Tool(f)({"x": given})
    assert result.success, result.output
    assert seen == [converted]
    assert type(seen[0]) is type(converted)


@pytest.mark.parametrize(
    ("annotation", "given", "expected"),
    [
        (str, None, "a string"),
        (str, True, "a string"),
        (int, 3.5, "a whole number"),
        (int, "three", "a whole number"),
        (int, "9" * 401, "a whole number"),
        (int, "+-+", "a whole number"),
        (int, "٣", "a whole number"),
        (int, True, "a whole number"),
        (float, "inf", "a number"),
        (float, "nan", "a number"),
        (float, 10**400, "a number"),
        (bool, 1, "true or false"),
        (list[int], "1", "a list"),
        (list[int], ["a"], "a list of which each item is a whole number"),
        (dict[str, int], [], "an object"),
        (dict[str, int], {"a": "b"}, "an object of which each value is a whole number"),
        (Literal["a", "b"], "c", "one of 'a', 'b'"),
        (Literal[1], True, "one of 1"),
        (int | None, "x", "a whole number or null"),
    ],
)
def test_wrong_arguments_are_a_readable_result(annotation, given, expected):
    def f(x):
        raise AssertionError("must not be called")

    f.__annotations__ = {"x": annotation}
    result = Tool(f)({"x": given})
    assert not result.success
    assert result.error == INVALID_ARGUMENTS
    assert f"it must be {expected}" in result.output
    assert "argument x of f" in result.output
    assert len(result.output) < 300


def test_missing_and_unknown_arguments():
    tool = Tool(book)
    assert tool({}).output == "Error: book needs the argument city"
    assert tool({"city": "Rome", "\ud800": 1}).output == (
        "Error: book has no argument '\\ud800'; its arguments are: city, nights, kind, tags"
    )


def test_an_exception_is_a_result():
    def fail(x: int) -> int:
        """Fail."""
        raise KeyError("gone")

    result = Tool(fail)({"x": 1})
    assert (result.success, result.error, result.output) == (False, "KeyError", "Error: KeyError: 'gone'")

    def refuse() -> int:
        """Refuse."""
        raise InvalidActionError("not today")

    result = Tool(refuse)({})
    assert (result.success, result.error, result.output) == (False, "InvalidActionError", "Error: not today")


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_what_is_no_exception_gets_through(stop):
    def interrupted() -> int:
        """Stop."""
        raise stop

    with pytest.raises(stop):
        Tool(interrupted)({})


@pytest.mark.parametrize(
    ("value", "output"),
    [
        ("text", "text"),
        (3, "3"),
        (2.5, "2.5"),
        (None, "null"),
        (True, "true"),
        ([1, "中"], '[1, "中"]'),
        ("a\ud800", "a�"),
    ],
)
def test_output_is_text(value, output):
    def f() -> Any:
        """Return."""
        return value

    assert Tool(f)({}).output == output


def test_long_output_is_cut_with_a_note():
    def f() -> str:
        """Return."""
        return "x" * 10_005

    assert Tool(f)({}).output == "x" * 10_000 + "\n[cut: 5 more characters]"


def test_call_tool():
    tools = {"book": Tool(book)}
    assert call_tool(tools, ToolCall("book", {"city": "Rome"})).success
    result = call_tool(tools, ToolCall("look\ud800", {}))
    assert (result.success, result.error) == (False, UNKNOWN_TOOL)
    assert result.output == "Error: there is no tool 'look\\ud800'; known: book"
    assert result.name.encode()


class Shop:
    def __init__(self):
        self.sold = 0

    def sell(self, n: int) -> int:
        """Sell."""
        self.sold += n
        return self.sold


def test_bound_methods_keep_their_state_and_pickle_with_it():
    shop = Shop()
    tool = Tool(shop.sell)
    assert list(tool.parameters["properties"]) == ["n"]
    assert tool({"n": 2}).output == "2"
    again = pickle.loads(pickle.dumps(tool))
    assert again({"n": 1}).output == "3"
    assert shop.sold == 2


def no_annotation(x):
    """Do."""


def variadic(*x: int):
    """Do."""


def unknown_type(x: bytes):
    """Do."""


def unresolvable(x: "Nowhere"):  # noqa: F821 (it is the point)
    """Do."""


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (no_annotation, "'x' has no type annotation"),
        (variadic, "given by name"),
        (unknown_type, "has no JSON form"),
        (unresolvable, "cannot be read"),
    ],
)
def test_bad_signatures_are_refused_when_the_tool_is_made(function, complaint):
    with pytest.raises(InvalidConfigError, match=complaint):
        Tool(function)
