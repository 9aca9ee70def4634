"""The tools of an environment, and running the calls of one turn.

1. The results are in the order of the calls, whatever order they end in. Calls are charged to their budgets in that
   order.
2. Calls that may run in parallel (`Tool.parallel`: by default those of coroutine functions) run in parallel with their
   neighbours: coroutines on the background loop, plain functions each in a thread.
3. Any other call runs by itself, after all earlier calls and before all later ones. Without a limit it runs in the
   caller's thread, so it can use objects bound to a thread (an SQLite connection).
4. A single call starts no thread and no loop, unless it needs one (a limit, a coroutine).
5. A failure or timeout of one call does not affect the others.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from llm_envs.errors import InvalidConfigError
from llm_envs.tools.background_loop import LimitReached, guard_s, wait, wait_async
from llm_envs.tools.base import PASSED_ON, Tool, unknown_tool
from llm_envs.tools.budget import Budget
from llm_envs.tools.toolset import Toolset, as_tools
from llm_envs.types import ToolCall, ToolResult

if TYPE_CHECKING:
    from llm_envs.sandbox import PythonTool

__all__ = ["MAX_PARALLEL", "Executor", "Toolbox", "arun_calls", "as_results", "run_calls"]

MAX_PARALLEL = 16
"""Calls of one turn that may run at once; the default equals the default number of calls in a turn."""

Executor = Callable[[Sequence[ToolCall]], Sequence[ToolResult | str] | Awaitable[Sequence[ToolResult | str]]]
"""Calls of one reply -> one result each, in order, or an awaitable of that. A str is the output of a call that
succeeded."""


def as_results(calls: Sequence[ToolCall], given: object) -> list[ToolResult]:
    """Return what an executor returned as results, one for each call.

    Raises:
        InvalidConfigError: If it is not a list of results, or of another length.
    """
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise InvalidConfigError(
            f"the executor returned a value of type {type(given).__name__}; it must be a list of results."
        )
    if len(given) != len(calls):
        raise InvalidConfigError(f"the executor returned {len(given)} results for {len(calls)} calls.")
    results = []
    for call, result in zip(calls, given, strict=True):
        if isinstance(result, str):
            result = ToolResult(call.name, call.arguments, result, True)
        if not isinstance(result, ToolResult):
            raise InvalidConfigError(
                f"the executor returned a value of type {type(result).__name__} for the call of {call.name!r}; it must "
                "be a ToolResult, or the output as a str."
            )
        results.append(result)
    return results


class Toolbox(dict[str, Tool]):
    """The tools of one environment by name, with the toolsets and budgets behind them.

    Args:
        given: Typed functions, `Tool`s, `Toolset`s and `PythonTool`s, or one of them.
        env: The environment.

    Raises:
        InvalidConfigError: If an item is not a tool, two tools have one name, or another environment uses one of the
            toolsets.
    """

    def __init__(
        self, given: Toolset | Iterable[Tool | Toolset | PythonTool | Callable[..., Any]], env: object
    ) -> None:
        made = as_tools(given, f"{type(env).__name__}.make_tools")
        super().__init__((tool.name, tool) for tool in made)
        if len(self) != len(made):
            raise InvalidConfigError(f"{type(env).__name__}: two tools have one name: {[tool.name for tool in made]}.")
        self.toolsets: list[Toolset] = _distinct(tool.toolset for tool in made)
        self.budgets: list[Budget] = _distinct(tool.budget for tool in made)
        self.keeps_state = bool(self.toolsets or self.budgets)
        for toolset in self.toolsets:
            toolset.claim(env)

    @property
    def blocking(self) -> bool:
        """Whether a toolset declares that its calls block."""
        return any(toolset.blocking for toolset in self.toolsets)

    def waits(self, timeout_s: float | None) -> bool:
        """Return whether a call may have to wait: for a loop, a thread (under this limit in seconds) or a process."""
        return self.blocking or any(
            tool.parallel or tool.is_async or tool.limit_s(timeout_s) is not None for tool in self.values()
        )

    def reset(self, problem: Mapping[str, Any], rng: np.random.Generator) -> None:
        """Begin an episode: see `Toolset.reset` and `Budget.reset`."""
        for toolset in self.toolsets:
            toolset.reset(problem, rng)
        for budget in self.budgets:
            budget.reset()

    def close(self) -> None:
        """Close the toolsets, except shared ones."""
        with ExitStack() as stack:
            for toolset in self.toolsets:
                if not toolset.shared:
                    stack.callback(toolset.close)


def _distinct(parts: Iterable[Any]) -> list[Any]:
    """Return each object once, in order, without None."""
    return list({id(part): part for part in parts if part is not None}.values())


class _Job(NamedTuple):
    """An admitted call."""

    place: int
    tool: Tool
    arguments: Mapping[str, Any]
    bound: dict[str, Any]


_Results = list[ToolResult | BaseException | None]
"""An entry for each call: its result, an exception to raise, or None while it is running."""


def run_calls(
    tools: Mapping[str, Tool],
    calls: Sequence[ToolCall],
    *,
    timeout_s: float | None = None,
    max_parallel: int = MAX_PARALLEL,
) -> tuple[ToolResult, ...]:
    """Run the calls of one turn and return their results, in order. See the module docstring for parallel calls.

    Works from any thread, even if an event loop is running.

    Args:
        tools: By name.
        calls: As the model wrote them; an unknown name gives a result too.
        timeout_s: Limit in seconds of each call, for tools without their own limit.
        max_parallel: How many may run at once, at least 1.

    Raises:
        KeyboardInterrupt: If it was interrupted; running calls are cancelled. `CancelledError` passes in the same way.
    """
    if len(calls) == 1:
        (call,) = calls
        tool = tools.get(call.name)
        return (unknown_tool(tools, call) if tool is None else tool(call.arguments, timeout_s),)
    _check(max_parallel)
    results: _Results = [None] * len(calls)
    for batch in _batches(tools, calls, results):
        if len(batch) == 1:
            (job,) = batch
            results[job.place] = _execute(job, timeout_s)
        else:
            try:
                wait(_side_by_side(batch, results, timeout_s, max_parallel), _guard_s(batch, timeout_s, max_parallel))
            except LimitReached:  # the loop is blocked
                _give_up(batch, results, timeout_s)
    return _checked(results)


async def arun_calls(
    tools: Mapping[str, Tool],
    calls: Sequence[ToolCall],
    *,
    timeout_s: float | None = None,
    max_parallel: int = MAX_PARALLEL,
) -> tuple[ToolResult, ...]:
    """Run the calls of one turn: `run_calls` for asynchronous code. It uses the event loop's thread as the caller's.

    Args:
        tools: As for `run_calls`.
        calls: As for `run_calls`.
        timeout_s: As for `run_calls`.
        max_parallel: As for `run_calls`.

    Raises:
        CancelledError: If it was cancelled; so are the calls that were running.
    """
    _check(max_parallel)
    results: _Results = [None] * len(calls)
    for batch in _batches(tools, calls, results):
        tool = batch[0].tool
        if len(batch) == 1 and not tool.parallel and not tool.is_async and tool.limit_s(timeout_s) is None:
            results[batch[0].place] = _execute(batch[0], timeout_s)
        else:
            work = _side_by_side(batch, results, timeout_s, max_parallel)
            try:
                await wait_async(work, _guard_s(batch, timeout_s, max_parallel))
            except LimitReached:
                _give_up(batch, results, timeout_s)
    return _checked(results)


def _batches(tools: Mapping[str, Tool], calls: Sequence[ToolCall], results: _Results) -> Iterator[list[_Job]]:
    """Yield the calls in order, in batches: a call that must run by itself, or neighbours that may run in parallel.

    A call is admitted, and charged, when its turn comes; a refused call has its result at once.
    """
    batch: list[_Job] = []
    for index, call in enumerate(calls):
        tool = tools.get(call.name)
        if tool is None:
            results[index] = unknown_tool(tools, call)
            continue
        if not tool.parallel and batch:
            yield batch
            batch = []
        started = time.perf_counter()
        try:
            job = _Job(index, tool, call.arguments, tool.admit(call.arguments))
        except BaseException as refusal:
            results[index] = tool.failed(call.arguments, started, refusal)
            continue
        if tool.parallel:
            batch.append(job)
        else:
            yield [job]
    if batch:
        yield batch


def _execute(job: _Job, timeout_s: float | None) -> ToolResult:
    """Run one admitted call and wait for it."""
    started = time.perf_counter()
    try:
        return job.tool.succeeded(job.arguments, started, job.tool.execute(job.bound, timeout_s))
    except BaseException as raised:
        return job.tool.failed(job.arguments, started, raised)


async def _side_by_side(jobs: Sequence[_Job], results: _Results, timeout_s: float | None, max_parallel: int) -> None:
    """Run admitted calls on the background loop and store their outcomes."""
    gate = asyncio.Semaphore(max_parallel)

    async def run(job: _Job) -> None:
        async with gate:
            results[job.place] = await job.tool.complete(job.arguments, job.bound, timeout_s)

    await asyncio.gather(*map(run, jobs))


def _guard_s(jobs: Sequence[_Job], timeout_s: float | None, max_parallel: int) -> float | None:
    """Return the seconds after which all calls must be over by their limits, unless the loop is blocked."""
    limits = [job.tool.limit_s(timeout_s) for job in jobs]
    known = [limit for limit in limits if limit is not None]
    if len(known) < len(limits):
        return None
    return guard_s(max(known), math.ceil(len(jobs) / max_parallel))


def _give_up(jobs: Sequence[_Job], results: _Results, timeout_s: float | None) -> None:
    for job in jobs:
        if results[job.place] is None:
            limit = LimitReached(job.tool.limit_s(timeout_s))
            results[job.place] = job.tool.failed(job.arguments, time.perf_counter(), limit)


def _checked(results: _Results) -> tuple[ToolResult, ...]:
    over: list[ToolResult] = []
    for result in results:
        if isinstance(result, PASSED_ON):
            raise result
        assert isinstance(result, ToolResult)
        over.append(result)
    return tuple(over)


def _check(max_parallel: int) -> None:
    if max_parallel < 1:
        raise InvalidConfigError(f"run_calls: max_parallel is {max_parallel!r}; it must be at least 1.")
