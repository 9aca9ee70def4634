"""Run one agent, a function or a command, in its own thread, where it can block, hang or crash without harm to others.

1. `done` gets the agent's result or exception, once.
2. `cancel` ends a coroutine at its next await and kills a command with all its children. A plain function cannot be
   ended: its next request is refused, and its thread, a daemon, is left behind if it never comes back.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from llm_envs.agents.server import Endpoint
from llm_envs.errors import LLMEnvsError, MissingExtraError

__all__ = ["Agent", "AgentError", "create_openai_client"]

Agent = Callable[[Any, Any], Any] | Sequence[str]
"""(task, client) -> result, plain or asynchronous; or a command line. A command gets the session's address and key in
the variables OPENAI_BASE_URL and OPENAI_API_KEY and the task as JSON on its standard input; its result is what it
prints."""

_TAIL = 2000
"""Characters of a failed command's errors that are kept."""
_MOST_OUTPUT = 1 << 20
"""Characters of a command's output that count as its result."""


class AgentError(LLMEnvsError, RuntimeError):
    """An agent's command failed."""


def create_openai_client(endpoint: Endpoint, *, is_async: bool) -> Any:
    """Return a client of the package `openai` for a session. It does not retry, and uses no proxy.

    Raises:
        MissingExtraError: If the package is not installed.
    """
    try:
        import openai
    except ImportError as error:
        raise MissingExtraError(
            "the agent's client is of the package openai: pip install 'llm-envs[agents]', or give "
            "AgentEnv(create_client=...), a function (endpoint) -> client."
        ) from error
    common: dict[str, Any] = {"base_url": endpoint.base_url, "api_key": endpoint.api_key, "max_retries": 0}
    if is_async:
        return openai.AsyncOpenAI(**common, http_client=openai.DefaultAsyncHttpxClient(trust_env=False))
    return openai.OpenAI(**common, http_client=openai.DefaultHttpxClient(trust_env=False))


class AgentJob:
    """One run of an agent. Construct it in the event loop that awaits `done`.

    Args:
        agent: The agent.
        play: Called in the agent's thread with a function (task) -> result that runs the agent; returns the result.
        endpoint: The session.
        create_client: Makes the client that a function gets; None: `create_openai_client`.
    """

    def __init__(
        self,
        agent: Agent,
        play: Callable[[Callable[[Any], Any]], Any],
        endpoint: Endpoint,
        create_client: Callable[[Endpoint], Any] | None = None,
    ) -> None:
        self._agent, self._play, self._endpoint, self._create_client = agent, play, endpoint, create_client
        self._home = asyncio.get_running_loop()
        self.done: asyncio.Future[Any] = self._home.create_future()
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
        result: Any = None
        failure: BaseException | None = None
        try:
            result = self._play(self._call if callable(self._agent) else self._execute)
        except BaseException as error:  # also SystemExit: an agent that calls exit() ends only its episode
            failure = error
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            self._home.call_soon_threadsafe(self._settle, result, failure)

    def _settle(self, result: Any, failure: BaseException | None) -> None:
        if self.done.done():
            return
        if failure is None:
            self.done.set_result(result)
            return
        if not isinstance(failure, Exception):  # a future would raise it through the event loop
            failure = AgentError(f"{type(failure).__name__}: {failure}")
        self.done.set_exception(failure)
        self.done.exception()  # read, so that an abandoned job logs nothing

    def _on_cancel(self, cancel: Callable[[], None]) -> None:
        with self._lock:
            self._cancel = cancel
            if self._is_cancelled:
                cancel()

    def _call(self, task: Any) -> Any:
        agent: Any = self._agent
        is_async = inspect.iscoroutinefunction(agent) or inspect.iscoroutinefunction(type(agent).__call__)
        if self._create_client is None:
            client = create_openai_client(self._endpoint, is_async=is_async)
        else:
            client = self._create_client(self._endpoint)

        async def main() -> Any:
            loop, current = asyncio.get_running_loop(), asyncio.current_task()
            assert current is not None

            def cancel() -> None:
                with suppress(RuntimeError):  # the agent has ended, and its loop is closed
                    loop.call_soon_threadsafe(current.cancel)

            self._on_cancel(cancel)
            try:
                return await agent(task, client)
            finally:
                closed = client.close() if hasattr(client, "close") else None
                if inspect.isawaitable(closed):
                    await closed

        if is_async:
            return asyncio.run(main())
        try:
            return agent(task, client)
        finally:
            if hasattr(client, "close"):
                client.close()

    def _execute(self, task: Any) -> str:
        local = "127.0.0.1,localhost"
        given = {"OPENAI_BASE_URL": self._endpoint.base_url, "OPENAI_API_KEY": self._endpoint.api_key}
        environment = {**os.environ, **given, "NO_PROXY": local, "no_proxy": local}
        # Files, not pipes: a child that outlives the command would keep a pipe open.
        with tempfile.TemporaryFile() as inputs, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            inputs.write(json.dumps(task).encode())
            inputs.seek(0)
            command: Any = self._agent
            process = subprocess.Popen(
                list(command), stdin=inputs, stdout=out, stderr=err, env=environment, start_new_session=True
            )

            def kill() -> None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)

            self._on_cancel(kill)
            try:
                code = process.wait()
            finally:
                kill()  # children that it left behind
                process.wait()
                self._on_cancel(lambda: None)
            if code:
                raise AgentError(f"{command[0]} ended with {code}: {_end_of(err, _TAIL) or 'it wrote no error'}")
            return _end_of(out, _MOST_OUTPUT)


def _end_of(file: Any, most: int) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - most))
    return str(file.read().decode(errors="replace")).strip()
