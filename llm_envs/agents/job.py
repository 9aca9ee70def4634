"""Run one agent, a function or a command, in a thread or a worker process, where it can block, hang or crash.

1. `AgentRun` plays one episode where it is called. It pickles if the agent does, so it may go to a worker.
2. A job's `done` gets the agent's result or exception, once.
3. `AgentJob.cancel` ends a coroutine at its next await and kills a command with all its children; the end of this
   process kills them too. A plain function cannot be ended: its next request is refused, and its thread, a daemon, is
   left behind if it never comes back.
4. `WorkerJob.cancel` (`worker`) kills the worker's process, whatever the agent does there.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, runtime_checkable

from llm_envs.agents.server import Endpoint
from llm_envs.agents.task import EnvTask, TaskState
from llm_envs.errors import LLMEnvsError, extra_needed
from llm_envs.processes import ended_with_this_process
from llm_envs.processes.peer import end_group
from llm_envs.rollout.workers.runner import Target, make_env

__all__ = [
    "Agent",
    "AgentError",
    "AgentJob",
    "AgentRun",
    "Assignment",
    "OnCancel",
    "Playing",
    "as_exception",
    "create_openai_client",
]

OnCancel = Callable[[Callable[[], None]], None]
"""Gets the function that ends the agent."""


@runtime_checkable
class Playing(Protocol):
    """An agent that plays by itself: `SandboxedAgent`."""

    def play(self, endpoint: Endpoint, on_cancel: OnCancel, task: Any) -> Any:
        """Play one episode; return its result."""
        ...


Agent = Callable[[Any, Any], Any] | Sequence[str] | Playing
"""(task, client) -> result, plain or asynchronous; or a command line. A command gets the session's address and key in
the variables OPENAI_BASE_URL and OPENAI_API_KEY (and ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY) and the task as JSON on
its standard input; its result is what it prints."""

_TAIL = 2000
"""Characters of a failed command's errors that are kept."""
_MAX_OUTPUT = 1 << 20
"""Characters of a command's output that count as its result."""


class AgentError(LLMEnvsError, RuntimeError):
    """An agent ended in another way than by a result or an exception: its command failed, it called exit(), ..."""


def create_openai_client(endpoint: Endpoint, *, is_async: bool) -> Any:
    """Return a client of the package `openai` for a session. It does not retry, and uses no proxy.

    Raises:
        MissingExtraError: If the package is not installed.
    """
    with extra_needed(
        "the agent's client is of the package openai: pip install 'llm-envs[agents]', or give "
        "AgentEnv(create_client=...), a function (endpoint) -> client."
    ):
        import openai
    common: dict[str, Any] = {"base_url": endpoint.base_url, "api_key": endpoint.api_key, "max_retries": 0}
    if is_async:
        return openai.AsyncOpenAI(**common, http_client=openai.DefaultAsyncHttpxClient(trust_env=False))
    return openai.OpenAI(**common, http_client=openai.DefaultHttpxClient(trust_env=False))


@dataclass(frozen=True, slots=True)
class Assignment:
    """One run of an agent: its task and the session that it plays in."""

    endpoint: Endpoint
    """The session."""
    task: Mapping[str, Any] = field(default_factory=dict)
    """A task of a list; not used with an environment."""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    options: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class AgentRun:
    """An agent, to be run where this is called.

    Args:
        agent: The agent.
        create_client: Makes the client that a function gets; None: `create_openai_client`.
        target: The environment that the agent acts in; None: it gets a task of a list.
    """

    agent: Agent
    create_client: Callable[[Endpoint], Any] | None = None
    target: Target | None = None

    def __call__(self, assignment: Assignment, report: TaskState, on_cancel: OnCancel) -> Any:
        """Run the agent to its end; return its result.

        Args:
            assignment: The task and its session.
            report: Gets what happens in the environment.
            on_cancel: Gets the function that ends the agent early.
        """
        plays = self._execute
        if isinstance(self.agent, Playing):
            plays = self.agent.play
        elif callable(self.agent):
            plays = self._call
        run = partial(plays, assignment.endpoint, on_cancel)
        if self.target is None:
            return run(dict(assignment.task))
        make = partial(make_env, self.target, assignment.env_kwargs)
        task = EnvTask(make, assignment.seed, assignment.options, report)
        try:
            task.reset()
            is_command = isinstance(self.agent, Sequence)
            result = run({"messages": task.messages, "tools": task.tools} if is_command else task)
            if isinstance(result, str) and not task.is_over:
                task.step(result)
            return result
        finally:
            task.close()

    def _call(self, endpoint: Endpoint, on_cancel: OnCancel, task: Any) -> Any:
        agent: Any = self.agent
        is_async = inspect.iscoroutinefunction(agent) or inspect.iscoroutinefunction(type(agent).__call__)
        create = self.create_client or partial(create_openai_client, is_async=is_async)
        client = create(endpoint)

        async def main() -> Any:
            loop, current = asyncio.get_running_loop(), asyncio.current_task()
            assert current is not None

            def cancel() -> None:
                with suppress(RuntimeError):  # the agent has ended, and its loop is closed
                    loop.call_soon_threadsafe(current.cancel)

            on_cancel(cancel)
            try:
                return await agent(task, client)
            finally:
                closed = client.close() if hasattr(client, "close") else None
                if inspect.isawaitable(closed):
                    await closed

        if is_async:
            return asyncio.run(main())
        try:
            result = agent(task, client)
            if inspect.iscoroutine(result):
                result.close()
                raise AgentError("the agent returned a coroutine: write it as `async def`, or return what it awaits.")
            return result
        finally:
            if hasattr(client, "close"):
                client.close()

    def _execute(self, endpoint: Endpoint, on_cancel: OnCancel, task: Any) -> str:
        local = "127.0.0.1,localhost"
        given = {"OPENAI_BASE_URL": endpoint.base_url, "OPENAI_API_KEY": endpoint.api_key}
        given |= {"ANTHROPIC_BASE_URL": endpoint.anthropic_url, "ANTHROPIC_API_KEY": endpoint.api_key}
        environment = {**os.environ, **given, "NO_PROXY": local, "no_proxy": local}
        # Files, not pipes: a child that outlives the command would keep a pipe open.
        with tempfile.TemporaryFile() as inputs, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            inputs.write(json.dumps(task).encode())
            inputs.seek(0)
            command: Any = self.agent
            process = subprocess.Popen(
                list(command), stdin=inputs, stdout=out, stderr=err, env=environment, start_new_session=True
            )

            kill = partial(end_group, process.pid)
            on_cancel(kill)
            try:
                with ended_with_this_process(process.pid):
                    code = process.wait()
            finally:
                kill()  # children that it left behind
                process.wait()
                on_cancel(lambda: None)
            if code:
                raise AgentError(f"{command[0]} ended with {code}: {_end_of(err, _TAIL) or 'it wrote no error'}")
            return _end_of(out, _MAX_OUTPUT)


class AgentJob:
    """One run of an agent in its own thread. Construct it in the event loop that awaits `done`.

    Args:
        run: Runs the agent, in its thread.
    """

    def __init__(self, run: Callable[[OnCancel], Any]) -> None:
        self._run_agent = run
        self._ended: Future[Any] = Future()
        self.done = asyncio.wrap_future(self._ended)
        # Read, so that an abandoned job logs nothing.
        self.done.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._cancel: Callable[[], None] = lambda: None
        self._is_cancelled = False
        self._lock = threading.Lock()  # guards the two above
        threading.Thread(target=self._run, name="llm-envs-agent", daemon=True).start()

    def cancel(self) -> None:
        """End the agent, as far as that is possible. Harmless when repeated."""
        with self._lock:
            self._is_cancelled = True
            self._cancel()

    def _run(self) -> None:
        try:
            self._ended.set_result(self._run_agent(self._on_cancel))
        except BaseException as error:
            self._ended.set_exception(as_exception(error))

    def _on_cancel(self, cancel: Callable[[], None]) -> None:
        with self._lock:
            self._cancel = cancel
            if self._is_cancelled:
                cancel()


def as_exception(error: BaseException) -> Exception:
    """Return what an agent raised as an `Exception`: one that calls exit() ends only its episode."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    # A future refuses a StopIteration, and would raise a SystemExit through the event loop.
    return AgentError(f"{type(error).__name__}: {error}")


def _end_of(file: Any, most: int) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - most))
    return str(file.read().decode(errors="replace")).strip()
