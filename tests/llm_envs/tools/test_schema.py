"""Annotations as JSON Schema, arguments as what they ask for, and schemas that come from elsewhere."""

import enum
import json
import pickle
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NewType, NotRequired, TypedDict

import pytest

from llm_envs.errors import InvalidConfigError, MissingExtraError
from llm_envs.tools import INVALID_ARGUMENTS, Tool


class Colour(enum.Enum):
    RED = "red"
    DARK = 2


class Shape(enum.Enum):
    SQUARE = (1, 1)


@dataclass
class Point:
    x: int
    y: float = 0.5
    label: Annotated[str, "What it is called."] = "here"
    seen: list[int] = field(default_factory=list)


@dataclass
class Path:
    start: Point
    colour: Colour = Colour.RED


@dataclass
class Positive:
    n: int

    def __post_init__(self):
        if self.n < 1:
            raise ValueError("n must be above 0")


class Options(TypedDict):
    depth: int
    name: NotRequired[str]


@dataclass
class Node:
    child: "Node | None" = None


Metres = NewType("Metres", float)


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
        (Annotated[int, "How many."], "3", 3),
        (Metres, 2, 2.0),
        (Colour, "red", Colour.RED),
        (Colour, 2, Colour.DARK),
        (Colour, "DARK", Colour.DARK),
        (Colour | None, "red", Colour.RED),
        (Shape, "SQUARE", Shape.SQUARE),
        (tuple[int, str], ["1", 2], (1, "2")),
        (tuple[int, ...], ["1", 2.0], (1, 2)),
        (set[int], [1, "1", 2], {1, 2}),
        (frozenset, ["a"], frozenset({"a"})),
        (Sequence[int], ["1"], [1]),
        (Mapping[str, int], {"a": "1"}, {"a": 1}),
        (Point, {"x": "1"}, Point(1, 0.5, "here", [])),
        (Path, {"start": {"x": 1, "y": 2}, "colour": 2}, Path(Point(1, 2.0), Colour.DARK)),
        (list[Point], [{"x": 1}, {"x": 2}], [Point(1), Point(2)]),
        (Point | None, {"x": 1}, Point(1)),
        (Options, {"depth": "2"}, {"depth": 2}),
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
        (Colour, "blue", "one of 'red', 2"),
        (Colour, True, "one of 'red', 2"),
        (tuple[int, str], [1], "a list of 2 items"),
        (tuple[int, str], ["x", "a"], "a list whose item 1 is a whole number"),
        (set[Any], [[1]], "a list of plain values"),
        (Point, [1], "an object with the keys x, y, label, seen"),
        (Point, {}, "an object with the key 'x'"),
        (Point, {"x": 1, "z": 2}, "an object without 'z'; its keys are: x, y, label, seen"),
        (Point, {"x": "a"}, "an object whose 'x' is a whole number"),
        (Path, {"start": {"x": "a"}}, "an object whose 'start' is an object whose 'x' is a whole number"),
        (Positive, {"n": 0}, "a valid Positive: n must be above 0"),
        (Options, {"name": "a"}, "an object with the key 'depth'"),
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


def no_annotation(x):
    """Do."""


def variadic(*x: int):
    """Do."""


def unknown_type(x: bytes):
    """Do."""


def unresolvable(x: "Nowhere"):  # noqa: F821 (it is the point)
    """Do."""


def recursive(x: Node):
    """Do."""


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (no_annotation, "'x' has no type annotation"),
        (variadic, "passed by name"),
        (unknown_type, "has no JSON form"),
        (unresolvable, "cannot be read"),
        (recursive, "Node contains itself"),
    ],
)
def test_bad_signatures_are_refused_when_the_tool_is_made(function, complaint):
    with pytest.raises(InvalidConfigError, match=complaint):
        Tool(function)


# Schemas of what is not plain.


def draw(
    path: Path,
    corners: tuple[int, int],
    options: Options,
    names: Annotated[set[str], "Each once."] = frozenset({"a"}),
    colour: Colour = Colour.DARK,
    at: Point = Point(1),  # noqa: B008 (a default that is an object)
    hook: Any = print,
):
    """Draw.

    Args:
        path: Along this.
        names: Not this.
    """


def test_schema_of_classes_and_defaults():
    point = {
        "type": "object",
        "properties": {
            "x": {"type": "integer"},
            "y": {"type": "number", "default": 0.5},
            "label": {"type": "string", "description": "What it is called.", "default": "here"},
            "seen": {"type": "array", "items": {"type": "integer"}},
        },
        "required": ["x"],
        "additionalProperties": False,
    }
    assert Tool(draw).parameters == {
        "type": "object",
        "properties": {
            "path": {
                "type": "object",
                "properties": {"start": point, "colour": {"enum": ["red", 2], "default": "red"}},
                "required": ["start"],
                "additionalProperties": False,
                "description": "Along this.",
            },
            "corners": {
                "type": "array",
                "prefixItems": [{"type": "integer"}, {"type": "integer"}],
                "minItems": 2,
                "maxItems": 2,
            },
            "options": {
                "type": "object",
                "properties": {"depth": {"type": "integer"}, "name": {"type": "string"}},
                "required": ["depth"],
                "additionalProperties": False,
            },
            "names": {
                "type": "array",
                "uniqueItems": True,
                "items": {"type": "string"},
                "description": "Each once.",
                "default": ["a"],
            },
            "colour": {"enum": ["red", 2], "default": 2},
            "at": point | {"default": {"x": 1, "y": 0.5, "label": "here", "seen": []}},
            "hook": {},
        },
        "required": ["path", "corners", "options"],
    }


# Schemas that come from elsewhere.

SEARCH = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "minLength": 2},
        "limit": {"type": "integer", "maximum": 10},
        "ids": {"type": "array", "items": {"type": "integer"}},
        "filter": {"$ref": "#/$defs/filter"},
    },
    "required": ["query"],
    "$defs": {"filter": {"type": "object", "properties": {"op": {"enum": ["lt", "gt"]}}, "required": ["op"]}},
}


def search(**arguments: Any) -> Any:
    return arguments


def from_schema(parameters=SEARCH, **options):
    return Tool(search, description="Search.", parameters=parameters, **options)


def test_from_schema():
    tool = from_schema(timeout_s=5, cost=2)
    assert tool.schema["function"] == {"name": "search", "description": "Search.", "parameters": SEARCH}
    given = {"query": "cats", "limit": "3", "ids": ["1", 2.0], "filter": {"op": "lt"}, "extra": None}
    assert json.loads(tool(given).output) == given | {"limit": 3, "ids": [1, 2]}
    again = pickle.loads(pickle.dumps(tool))
    assert again.schema == tool.schema and (again.timeout_s, again.cost) == (5, 2)
    assert again({"query": "x"}).error == INVALID_ARGUMENTS


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        ({}, "Error: arguments of search: 'query' is a required property"),
        ({"query": "cats", "limit": "x"}, "Error: argument limit of search: 'x' is not of type 'integer'"),
        ({"query": "cats", "limit": 11}, "Error: argument limit of search: 11 is greater than the maximum of 10"),
        ({"query": "cats", "ids": [1, None]}, "Error: argument ids[1] of search: None is not of type 'integer'"),
        (
            {"query": "cats", "filter": {"op": "\ud800"}},
            "Error: argument filter.op of search: '\\ud800' is not one of ['lt', 'gt']",
        ),
    ],
)
def test_arguments_that_a_given_schema_refuses(arguments, output):
    result = from_schema()(arguments)
    assert (result.error, result.output) == (INVALID_ARGUMENTS, output)


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({"type": "array"}, "they must be an object"),
        ({"type": "object", "properties": {"x": {"type": "what"}}}, "not a JSON Schema: 'what' is not valid"),
        ({"x": {1}}, "are not a JSON Schema: Object of type set"),
        ([], "must be an object"),
    ],
)
def test_bad_schemas_are_refused(parameters, complaint):
    with pytest.raises(InvalidConfigError, match=complaint):
        from_schema(parameters)


def test_a_reference_to_another_document_is_not_fetched():
    tool = from_schema({"properties": {"x": {"$ref": "http://127.0.0.1:9/schema.json"}}})
    result = tool({"x": 1})
    assert not result.success
    assert "Unresolvable" in result.output


def test_without_jsonschema_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'llm-envs\[tools\]'"):
        from_schema()
