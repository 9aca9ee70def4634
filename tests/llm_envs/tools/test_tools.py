"""Tools from typed functions: schema, arguments, results."""

import asyncio
import enum
import functools
import json
import math
import pickle
import threading
import time
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest

from llm_envs.errors import InvalidActionError, InvalidConfigError, JudgeError, MissingExtraError, SandboxError
from llm_envs.tools import TOOL_TIMEOUT, UNKNOWN_TOOL, Tool, run_calls
from llm_envs.types import ToolCall


class Colour(enum.Enum):
    RED = "red"
    DARK = 2


@dataclass
class Booking:
    city: str
    colour: Colour = Colour.RED


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
                    "nights": {"type": "integer", "description": "How long.", "default": 1},
                    "kind": {"enum": ["single", "double"], "default": "single"},
                    "tags": {
                        "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}],
                        "default": None,
                    },
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


@pytest.mark.parametrize(
    ("stop", "output"),
    [
        (SystemExit(3), "Error: SystemExit: 3"),
        (GeneratorExit(), "Error: GeneratorExit: "),
        (StopIteration(), "Error: StopIteration: "),
        (BaseExceptionGroup("two", [SystemExit()]), "Error: BaseExceptionGroup: two (1 sub-exception)"),
    ],
)
def test_a_tool_that_exits_does_not_end_the_run(stop, output):
    def leave() -> int:
        """Leave."""
        raise stop

    async def leave_later() -> int:
        """Leave."""
        raise stop

    result = Tool(leave)({})
    assert (result.success, result.error, result.output) == (False, type(stop).__name__, output)
    if not isinstance(stop, StopIteration):  # which a coroutine turns into a RuntimeError itself
        assert Tool(leave_later)({}) == Tool(leave, name="leave_later")({})
    assert Tool(leave, timeout_s=9)({}) == result


def test_an_exception_that_cannot_be_written_is_a_result():
    class Silent(Exception):
        def __str__(self):
            raise ValueError("no words")

    def fail() -> int:
        """Fail."""
        raise Silent

    assert Tool(fail)({}).output == "Error: Silent: its message cannot be written"


@pytest.mark.parametrize("stop", [KeyboardInterrupt, asyncio.CancelledError])
def test_what_comes_from_outside_gets_through(stop):
    def interrupted() -> int:
        """Stop."""
        raise stop

    with pytest.raises(stop):
        Tool(interrupted)({})


@pytest.mark.parametrize("kind", [SandboxError, MissingExtraError, JudgeError])
def test_a_failure_of_what_a_tool_runs_on_is_not_shown_to_the_agent(kind):
    failure = kind("it is gone")

    def fail() -> int:
        """Fail."""
        raise failure

    async def fail_later() -> int:
        """Fail."""
        raise failure

    for tool in (Tool(fail), Tool(fail_later), Tool(fail, timeout_s=9)):
        with pytest.raises(kind):
            tool({})
        with pytest.raises(kind):
            run_calls({"fail": tool}, [ToolCall("fail", {})] * 2)
        with pytest.raises(kind):
            asyncio.run(tool.acall({}))


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
        (["\ud800"], '["�"]'),
        ([float("nan"), float("inf")], "[NaN, Infinity]"),
        (float("nan"), "nan"),
        ({1: {2, 1}}, '{"1": [1, 2]}'),
        ({(1, 2): 3}, "{(1, 2): 3}"),
        ([Colour.RED, b"x"], """["red", "b'x'"]"""),
        (Colour.DARK, "2"),
        (Booking("Rome"), '{"city": "Rome", "colour": "red"}'),
        ([np.int64(3), np.float32(0.5)], "[3, 0.5]"),
        (np.arange(3), "[0, 1, 2]"),
        (np.int64(3), "3"),
        (b"x", "b'x'"),
    ],
)
def test_output_is_text(value, output):
    def f() -> Any:
        """Return."""
        return value

    assert Tool(f)({}).output == output


def test_output_that_cannot_be_written_is_an_error():
    circle: list[Any] = []
    circle.append(circle)

    class Mute:
        def __str__(self):
            raise RuntimeError("mute")

    def give(what: Literal["circle", "huge", "mute"]) -> Any:
        """Give."""
        return {"circle": circle, "huge": 10**5000, "mute": Mute()}[what]

    assert Tool(give)({"what": "circle"}).output == "[[...]]"
    assert Tool(give)({"what": "huge"}).error == "ValueError"
    assert Tool(give)({"what": "mute"}).output == "Error: RuntimeError: mute"


def test_long_output_is_cut_with_a_note():
    def f() -> str:
        """Return."""
        return "x" * 10_005

    assert Tool(f)({}).output == "x" * 10_000 + "\n[cut: 5 more characters]"


def test_an_unknown_tool():
    tools = {"book": Tool(book)}
    assert run_calls(tools, [ToolCall("book", {"city": "Rome"})])[0].success
    (result,) = run_calls(tools, [ToolCall("look\ud800", {})])
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


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"timeout_s": 0}, "timeout_s is 0; it must be above 0"),
        ({"timeout_s": -1.0}, "timeout_s is -1.0"),
        ({"cost": -1}, "cost is -1; it must be a number of at least 0"),
        ({"cost": math.inf}, "cost is inf"),
    ],
)
def test_bad_numbers_are_refused(options, complaint):
    with pytest.raises(InvalidConfigError, match=complaint):
        Tool(book, **options)


def test_partials_and_callable_objects():
    class Greeter:
        """Greet."""

        def __call__(self, name: str) -> str:
            return f"hello {name}"

    tool = Tool(functools.partial(book, city="Rome"))
    assert (tool.name, tool.description) == ("book", "Book a room.")
    assert "city" not in tool.parameters["properties"]
    assert json.loads(tool({"nights": 2}).output)["city"] == "Rome"
    greeter = Tool(Greeter())
    assert (greeter.name, greeter.description) == ("Greeter", "Greet.")
    assert greeter({"name": "you"}).output == "hello you"


# Coroutine functions, and limits.


async def add_later(a: int, b: int = 1) -> int:
    """Add."""
    await asyncio.sleep(0)
    return a + b


def test_a_coroutine_function_is_a_tool():
    tool = Tool(add_later)
    assert tool.is_async and tool.parallel
    assert tool({"a": "2"}).output == "3"
    assert tool({}).output == "Error: add_later needs the argument a"
    again = pickle.loads(pickle.dumps(tool))
    assert again({"a": 2, "b": 3}).output == "5"


def test_what_returns_an_awaitable_is_awaited():
    def start(a: int) -> Any:
        """Start."""
        return add_later(a)

    class Adder:
        async def __call__(self, a: int) -> int:
            return await add_later(a)

    for function in (start, functools.partial(add_later, b=1), Adder()):
        assert Tool(function)({"a": 2}).output == "3"
        assert asyncio.run(Tool(function).acall({"a": 2})).output == "3"


def test_a_tool_in_a_running_loop():
    async def main():
        plain, later = Tool(book), Tool(add_later)
        return later({"a": 1}), await later.acall({"a": 1}), await plain.acall({"city": "Rome"})

    waited, awaited, booked = asyncio.run(main())
    assert waited.output == awaited.output == "2"
    assert booked.success


def test_a_tool_that_waits_for_another_on_their_loop_is_told_so():
    inner = Tool(add_later)

    async def outer(wrong: bool) -> str:
        """Call."""
        return (inner({"a": 1}) if wrong else await inner.acall({"a": 1})).output

    assert Tool(outer)({"wrong": False}).output == "2"
    assert Tool(outer)({"wrong": True}).output == (
        "Error: RuntimeError: an asynchronous tool waits for another one: it must await it (Tool.acall, arun_calls)"
    )


def test_a_limit_cancels_a_coroutine():
    ended = threading.Event()

    async def hang() -> str:
        """Hang."""
        try:
            await asyncio.sleep(3600)
            return "never"
        finally:
            ended.set()

    result = Tool(hang, timeout_s=0.05)({})
    assert (result.success, result.error) == (False, TOOL_TIMEOUT)
    assert result.output == "Error: hang took longer than 0.05 s and was stopped"
    assert ended.is_set()
    assert 0.05 <= result.seconds < 300


def test_a_coroutine_that_ignores_its_cancellation_is_left_alone():
    async def stubborn() -> str:
        """Stay."""
        for _ in range(300):
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                continue
        return "at last"

    started = time.perf_counter()
    assert Tool(stubborn, timeout_s=0.05)({}).error == TOOL_TIMEOUT
    assert time.perf_counter() - started < 120  # it would stay for five minutes


def test_one_cancelled_from_within_is_a_result():
    async def cancel_itself() -> str:
        """Cancel."""
        asyncio.current_task().cancel()
        await asyncio.sleep(1)
        return "never"

    assert Tool(cancel_itself)({}).output == "Error: RuntimeError: it was cancelled from within"


def test_a_limit_abandons_the_thread_of_a_plain_function():
    release = threading.Event()

    def hang() -> str:
        """Hang."""
        assert threading.current_thread().daemon
        release.wait(600)
        return "late"

    tool = Tool(hang, timeout_s=0.05)
    assert tool({}).output == "Error: hang took longer than 0.05 s and may still be running"
    assert asyncio.run(tool.acall({})).error == TOOL_TIMEOUT
    release.set()
    tool.timeout_s = 120.0  # starting a thread may take longer than the limit above
    assert tool({}).output == "late"


def test_the_tools_own_limit_goes_before_that_of_the_caller():
    release = threading.Event()

    def nap() -> str:
        """Nap."""
        release.wait(600)
        time.sleep(0.1)
        return "awake"

    assert Tool(nap)({}, 0.01).error == TOOL_TIMEOUT
    release.set()
    assert Tool(nap, timeout_s=120)({}, 0.01).output == "awake"
    assert Tool(nap, timeout_s=math.inf)({}, 0.01).output == "awake"


def test_a_plain_function_runs_where_it_is_called():
    def where() -> str:
        """Where."""
        return threading.current_thread().name

    assert Tool(where)({}).output == threading.current_thread().name
    assert Tool(where, parallel=True)({}).output == threading.current_thread().name
    assert Tool(where, timeout_s=9)({}).output == "llm-envs-call"
