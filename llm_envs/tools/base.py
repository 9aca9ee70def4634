"""A tool made from a typed Python function.

The signature becomes the JSON Schema that the model sees, and each call's arguments are checked against it. The outcome
of a call is always data: a wrong argument, an exception in the function, a timeout or an exceeded budget becomes a
result that the model can read. Only failures of a tool's infrastructure (`PASSED_ON`, for example a sandbox that cannot
start) are raised: they are not the agent's fault, and the episode is errored.

`executor.run_calls` runs the calls of one turn, in parallel where that is allowed.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import functools
import inspect
import json
import math
import time
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from llm_envs.errors import InvalidActionError, InvalidConfigError, JudgeError, MissingExtraError, SandboxError
from llm_envs.parsers import typed_arguments
from llm_envs.processes.suspension import can_suspend
from llm_envs.spaces import encodable
from llm_envs.tools.background_loop import (
    LimitReached,
    call_within,
    capture,
    guard_s,
    refuse_on_loop,
    start_thread,
    wait_async,
    wait_for_outcome,
)
from llm_envs.tools.schema import Converter, Mismatch, describe, json_default, quote, schema_converter, with_default
from llm_envs.types import ToolCall, ToolResult

if TYPE_CHECKING:
    from llm_envs.tools.budget import Budget

__all__ = ["BUDGET_EXCEEDED", "INVALID_ARGUMENTS", "TOOL_TIMEOUT", "UNKNOWN_TOOL", "Tool", "unknown_tool"]

UNKNOWN_TOOL = "UnknownToolError"
"""`ToolResult.error` of a call with an unknown name."""
INVALID_ARGUMENTS = "InvalidArgumentsError"
"""`ToolResult.error` of a call whose arguments do not fit the tool's signature."""
TOOL_TIMEOUT = "ToolTimeoutError"
"""`ToolResult.error` of a call that exceeded its time limit."""
BUDGET_EXCEEDED = "BudgetExceededError"
"""`ToolResult.error` of a call that was not run because its budget does not cover it."""

MAX_OUTPUT_CHARACTERS = 10_000
"""Longer outputs are cut, with a note, so that a single tool cannot fill the model's context."""

_WRITTEN_AS_JSON = (dict, list, tuple, set, frozenset, bool, type(None), np.ndarray)

PASSED_ON = (KeyboardInterrupt, asyncio.CancelledError, SandboxError, MissingExtraError, JudgeError)
"""Exceptions of a tool that the agent never sees: an interrupt, and failures of the tool's infrastructure, which are
unrelated to the call. They make the episode errored or unscored. Other exceptions become results, even `exit()`."""


class _NotCovered(Exception):
    """The budget does not cover a call; the message is for the model."""


class Tool:
    """A function that the model can call.

    Parameters may be annotated with `str`, `int`, `float`, `bool`, `None`, `Any`, `list[...]`, `dict[str, ...]`,
    `tuple[...]`, `set[...]`, `Literal[...]`, an enumeration, a dataclass, a `TypedDict` and unions of these.
    `Annotated[..., "description"]` adds a description. Unambiguous values are converted: `"3"` or `3.0` for an `int`,
    `5` for a `str`, `{"x": 1}` for a dataclass.

    Calling the tool runs one call and waits for its result; `acall` awaits it.

    - A plain function without a limit runs in the caller's thread, and cannot be stopped. While a collector plays an
      environment in its event loop, one that may run in parallel has a thread, so that only its episode waits.
    - A plain function with a limit runs in a daemon thread. At the limit, the result is an error and the thread is
      abandoned: it runs until the function returns. Code that may hang for long needs its own process: the sandbox's,
      or a worker.
    - A coroutine function always runs on the process's event loop (`llm_envs.tools.background_loop`), so that its open
      resources belong to one loop. At its limit it is cancelled.

    Args:
        function: The function, plain or a coroutine function. The first line of its docstring describes it; a
            Google-style `Args:` section describes its parameters.
        name: The tool's name for the model; by default the function's name.
        description: Replaces the docstring's first line.
        parameters: JSON Schema of the arguments, of type object, as an MCP server provides it; None reads it from the
            signature. The library `jsonschema` checks calls against it, and the function gets JSON types by name.
        timeout_s: Seconds that one call may take. None takes the caller's limit (`run_calls`,
            `ToolEnv.tool_timeout_s`); `math.inf` means no limit.
        cost: Cost of one call, charged to a `Budget`.
        parallel: Whether a call may run in parallel with other calls of its turn. The default is yes for coroutine
            functions, which share one loop and interleave only where they await, and no for plain functions. A plain
            function that may do so runs in a thread if there are other calls, or other episodes.

    Raises:
        InvalidConfigError: If the signature cannot be turned into a schema, `parameters` is not the JSON Schema of an
            object, or a number is out of range.
        MissingExtraError: If `parameters` is given and `jsonschema` is not installed.
    """

    budget: Budget | None
    """The budget that its calls are charged to; see `budgeted`."""
    toolset: Any
    """The `Toolset` that made it, or None."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
        cost: float = 0.0,
        parallel: bool | None = None,
    ) -> None:
        core = _without_partials(function)
        docs = inspect.getdoc(core) or ""
        name = name or str(getattr(core, "__name__", type(core).__name__))
        if timeout_s is not None and not timeout_s > 0:
            raise InvalidConfigError(f"tool {name!r}: timeout_s is {timeout_s!r}; it must be above 0, or None.")
        if not 0 <= cost < math.inf:
            raise InvalidConfigError(f"tool {name!r}: cost is {cost!r}; it must be a number of at least 0.")
        self.function, self.name = function, name
        self.description = docs.partition("\n")[0] if description is None else description
        self.timeout_s, self.cost = timeout_s, cost
        self.budget, self.toolset = None, None
        self.is_async = inspect.iscoroutinefunction(_underlying(function))
        self.parallel = self.is_async if parallel is None else parallel
        self._converters: dict[str, Converter] = {}
        self._required: tuple[str, ...] = ()
        self._convert_all: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None
        self.parameters: dict[str, Any]
        """JSON Schema of the arguments."""
        if parameters is None:
            self.parameters = self._read_signature(_parameter_docs(docs))
        else:
            self._take_schema(parameters)

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema in OpenAI's shape, fresh."""
        parameters = json.loads(json.dumps(self.parameters))
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}

    def under(self, budget: Budget) -> Tool:
        """Return the same tool with its calls charged to the budget."""
        tool = copy.copy(self)
        tool.budget = budget
        return tool

    def limit_s(self, default_s: float | None) -> float | None:
        """Return the time limit of a call, given the caller's default limit."""
        limit = default_s if self.timeout_s is None else self.timeout_s
        return None if limit == math.inf else limit

    def __call__(self, arguments: Mapping[str, Any], timeout_s: float | None = None) -> ToolResult:
        """Check the arguments, call the function, and return the result.

        Args:
            arguments: The call's arguments, as JSON types.
            timeout_s: Limit in seconds, if the tool has no limit.

        Raises:
            KeyboardInterrupt: If the call was interrupted. `CancelledError` passes in the same way.
            SandboxError: If the sandbox does not work. Errors of a missing package or a failing judge pass too, but no
                others.
        """
        started = time.perf_counter()
        try:
            if (
                timeout_s is None
                and self.timeout_s is None
                and self.budget is None
                and not (self.is_async or (self.parallel and can_suspend()))
            ):
                # The path of nearly every call, so it is kept short.
                output = self.function(**self._bind(arguments))
                if type(output) is str and len(output) <= MAX_OUTPUT_CHARACTERS and output.isascii():
                    return ToolResult(self.name, arguments, output, True, None, *_times(started))
                return self.succeeded(arguments, started, self.resolve(output, None))
            return self.succeeded(arguments, started, self.execute(self.admit(arguments), timeout_s))
        except BaseException as raised:
            return self.failed(arguments, started, raised)

    async def acall(self, arguments: Mapping[str, Any], timeout_s: float | None = None) -> ToolResult:
        """Do the same without blocking the event loop: a plain function runs in a thread."""
        started = time.perf_counter()
        try:
            work = self.complete(arguments, self.admit(arguments), timeout_s)
            completed = await wait_async(work, guard_s(self.limit_s(timeout_s)))
        except LimitReached:
            return self.failed(arguments, started, LimitReached(self.limit_s(timeout_s)))
        except BaseException as raised:
            return self.failed(arguments, started, raised)
        if isinstance(completed, ToolResult):
            return completed
        raise completed

    def admit(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Charge the call and return the arguments for the function; raise if the call must fail (see `failed`)."""
        bound = self._bind(arguments)
        budget = self.budget
        if budget is not None and not budget.charge(self.cost):
            raise _NotCovered(
                f"{self.name} costs {self.cost:g}; {budget.remaining:g} of the budget of {budget.total:g} is left"
            )
        return bound

    def execute(self, bound: dict[str, Any], timeout_s: float | None) -> Any:
        """Call the function, in a thread if it has a limit, and return its result; wait for an awaitable."""
        limit_s = self.limit_s(timeout_s)
        if self.is_async:
            refuse_on_loop()
            return self.resolve(self._start(bound), limit_s)
        if limit_s is None and not (self.parallel and can_suspend()):
            return self.resolve(self.function(**bound), limit_s)
        return self.resolve(call_within(self.function, bound, limit_s), limit_s)

    def resolve(self, value: Any, limit_s: float | None) -> Any:
        """Return the value; if it is awaitable, run it on the background loop and return its result."""
        return wait_for_outcome(value, limit_s) if inspect.isawaitable(value) else value

    async def complete(
        self, arguments: Mapping[str, Any], bound: dict[str, Any], timeout_s: float | None
    ) -> ToolResult | BaseException:
        """Run an admitted call on the background loop; return its result, or an exception for the caller to raise."""
        started = time.perf_counter()
        limit_s = self.limit_s(timeout_s)
        try:
            if self.is_async:
                value, raised = await capture(self._start(bound), limit_s)
            else:
                future = asyncio.wrap_future(start_thread(self.function, bound))
                captured, raised = await capture(future, limit_s)
                value, raised = (None, raised) if raised is not None else captured
            if raised is None and inspect.isawaitable(value):
                value, raised = await capture(value, limit_s)
            if raised is None:
                return self.succeeded(arguments, started, value)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # e.g. the output cannot be written, or no thread can be started
            raised = error
        return raised if isinstance(raised, PASSED_ON) else self.failed(arguments, started, raised)

    async def _start(self, bound: dict[str, Any]) -> Any:
        return await self.function(**bound)

    def succeeded(self, arguments: Mapping[str, Any], started: float, value: Any) -> ToolResult:
        """Return the result of a call that returned `value`."""
        return self._result(arguments, started, _to_text(value), None)

    def failed(self, arguments: Mapping[str, Any], started: float, raised: BaseException) -> ToolResult:
        """Return the result of a call that raised; raise infrastructure errors again."""
        if isinstance(raised, Mismatch):
            return self._result(arguments, started, f"Error: {raised}", INVALID_ARGUMENTS)
        if isinstance(raised, _NotCovered):
            return self._result(arguments, started, f"Error: {raised}", BUDGET_EXCEEDED)
        if isinstance(raised, LimitReached):
            end = "was stopped" if self.is_async else "may still be running"
            text = f"Error: {self.name} took longer than {raised.args[0]:g} s and {end}"
            return self._result(arguments, started, text, TOOL_TIMEOUT)
        if isinstance(raised, PASSED_ON):
            raise raised
        try:
            message = str(raised)
        except Exception:  # an exception's text comes from the tool's code too
            message = "its message cannot be written"
        kind = type(raised).__name__
        if isinstance(raised, InvalidActionError):
            return self._result(arguments, started, f"Error: {message}", "InvalidActionError")
        return self._result(arguments, started, f"Error: {kind}: {message}", kind)

    def _result(self, arguments: Mapping[str, Any], started: float, output: str, error: str | None) -> ToolResult:
        output = encodable(output)
        if len(output) > MAX_OUTPUT_CHARACTERS:
            n_cut = len(output) - MAX_OUTPUT_CHARACTERS
            output = f"{output[:MAX_OUTPUT_CHARACTERS]}\n[cut: {n_cut} more characters]"
        return ToolResult(self.name, arguments, output, error is None, error, *_times(started))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by the function; converters are made again."""
        options = {name: getattr(self, name) for name in ("name", "description", "timeout_s", "cost", "parallel")}
        options["parameters"] = self.parameters if self._convert_all is not None else None
        return functools.partial(Tool, **options), (self.function,), {"budget": self.budget, "toolset": self.toolset}

    def _bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        arguments = typed_arguments(arguments, self.parameters)
        if self._convert_all is not None:
            return self._convert_all(arguments)
        converters = self._converters
        bound: dict[str, Any] = {}
        for name, value in arguments.items():
            converter = converters.get(name)
            if converter is None:
                known = ", ".join(converters) or "none"
                raise Mismatch(f"{self.name} has no argument {quote(name)}; its arguments are: {known}")
            try:
                bound[name] = converter(value)
            except Mismatch as mismatch:
                raise Mismatch(f"argument {name} of {self.name} is {quote(value)}; it must be {mismatch}") from None
        for name in self._required:
            if name not in bound:
                raise Mismatch(f"{self.name} needs the argument {name}")
        return bound

    def _take_schema(self, parameters: Mapping[str, Any]) -> None:
        try:
            copied = json.loads(json.dumps(parameters, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidConfigError(f"tool {self.name!r}: its parameters are not a JSON Schema: {error}.") from error
        if not isinstance(copied, dict) or copied.setdefault("type", "object") != "object":
            raise InvalidConfigError(
                f"tool {self.name!r}: its parameters are {quote(copied)}; they must be an object's."
            )
        self.parameters, self._convert_all = copied, schema_converter(copied, self.name)

    def _read_signature(self, docs: Mapping[str, str]) -> dict[str, Any]:
        properties: dict[str, Any] = {}
        required: list[str] = []
        try:
            hints = typing.get_type_hints(_underlying(self.function), include_extras=True)
        except (NameError, TypeError) as error:
            raise InvalidConfigError(f"tool {self.name!r}: its annotations cannot be read: {error}") from error
        for parameter in inspect.signature(self.function).parameters.values():
            where = f"tool {self.name!r}, parameter {parameter.name!r}"
            if isinstance(self.function, functools.partial) and parameter.name in self.function.keywords:
                continue  # the partial already has it
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise InvalidConfigError(f"{where}: only parameters that can be passed by name are supported.")
            if parameter.name not in hints:
                raise InvalidConfigError(
                    f"{where} has no type annotation: add one, the model's schema is made from it."
                )
            schema, self._converters[parameter.name] = describe(hints[parameter.name], where)
            if parameter.name in docs:
                schema.setdefault("description", docs[parameter.name])
            if parameter.default is parameter.empty:
                required.append(parameter.name)
            else:
                schema = with_default(schema, parameter.default)
            properties[parameter.name] = schema
        self._required = tuple(required)
        return {"type": "object", "properties": properties, "required": required}


def _times(started: float) -> tuple[float, float]:
    """Return the seconds since `started` (`time.perf_counter()`), and when that was, by `time.time()`."""
    seconds = time.perf_counter() - started
    return seconds, time.time() - seconds


def unknown_tool(tools: Mapping[str, Tool], call: ToolCall) -> ToolResult:
    """Return the result of a call with an unknown name."""
    output = f"Error: there is no tool {quote(call.name)}; known: {', '.join(tools) or 'none'}"
    return ToolResult(encodable(call.name), call.arguments, output, False, UNKNOWN_TOOL)


def _without_partials(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _underlying(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with the annotations: inside partials, or the `__call__` of an object."""
    function = _without_partials(function)
    if inspect.isroutine(function) or isinstance(function, type):
        return function
    return type(function).__call__


def _to_text(value: Any) -> str:
    if type(value) is str:
        return value
    if isinstance(value, Enum):
        return _to_text(value.value)
    if isinstance(value, _WRITTEN_AS_JSON) or dataclasses.is_dataclass(value):
        try:
            return json.dumps(value, ensure_ascii=False, default=json_default)
        except (TypeError, ValueError, RecursionError):  # keys that are not strings, a list that contains itself
            pass
    return str(value)


def _parameter_docs(docs: str) -> dict[str, str]:
    """Return the description of each parameter in the `Args:` section of a Google-style docstring."""
    found: dict[str, str] = {}
    _, _, section = docs.partition("\nArgs:\n")
    name = ""
    for line in section.splitlines():
        if not line.startswith("    "):
            break
        head, colon, rest = line.strip().partition(":")
        if colon and line[4:5] != " ":
            name = head.partition(" ")[0]
            found[name] = rest.strip()
        elif name:
            found[name] = f"{found[name]} {line.strip()}"
    return found
