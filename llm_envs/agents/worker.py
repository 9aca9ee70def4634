"""Agents in worker processes, for those that compute, hang or crash: as environments of the workers' protocol.

1. The agent runs in a thread of the worker, and asks the model by HTTP like everywhere. Its environment is there too.
2. A step of the worker's environment, `AgentHost`, lasts until the agent needs something of the session that HTTP does
   not give (a `TaskState`), or ends. So what it needs is asked by the worker's replies, and answered by the next step.
3. An agent that is cut or given up is killed with its process, and the pool replaces that.
"""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from typing import Any

import gymnasium as gym

from llm_envs.agents.job import AgentError, AgentRun, Assignment, as_exception
from llm_envs.agents.task import TaskState
from llm_envs.errors import WorkerDiedError
from llm_envs.rollout.workers.pool import WorkerRunner
from llm_envs.spaces import TextSpace

__all__ = ["AgentHost", "DeclaredEnv", "WorkerJob", "is_json"]

_REQUESTS = ("exact_text", "find_call", "stepped", "refuse_requests", "failed")
"""The methods of a `TaskState` that an agent in a worker process may call."""


class DeclaredEnv(gym.Env[str, str]):
    """The declarations of an agent with a list of tasks. It cannot be stepped."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  # as Gymnasium declares it
    observation_space = action_space = TextSpace()

    def __init__(self, n_problems: int | None = None) -> None:
        self.n_problems = n_problems


class AgentHost(DeclaredEnv):
    """Runs an agent in a worker process. Its actions and infos are plain data; the observations mean nothing.

    Args:
        run: The agent.
        keeps_result: Whether a reward function needs the agent's result, which must be of JSON types then.
    """

    def __init__(self, run: AgentRun, keeps_result: bool) -> None:
        super().__init__()
        self._run, self._keeps_result = run, keeps_result
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._asked: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._asking = threading.Lock()

    def ask(self, *request: Any) -> Any:
        """Return the answer of the parent process to a request, from the agent's thread."""
        with self._asking:
            self._asked.put(("asked", request))
            return self._answers.get()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start the agent; the options have its `Assignment`."""
        assert options is not None
        threading.Thread(target=self._play, args=(options["assignment"],), daemon=True).start()
        return "", {}

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Answer the last request with `action`, (answer,), if there was one; wait for the next, or the result."""
        if action:
            self._answers.put(action[0])
        kind, value = self._asked.get()
        if kind == "failed":
            raise value
        return "", 0.0, kind == "result", False, {kind: value}

    def _play(self, assignment: Assignment) -> None:
        try:
            report: Any = _Asking(self)
            result = self._run(assignment, report, lambda cancel: None)
            self._asked.put(("result", self._plain(result)))
        except BaseException as error:  # reported by the step that waits
            self._asked.put(("failed", as_exception(error)))

    def _plain(self, result: Any) -> Any:
        if is_json(result):
            return result
        if not self._keeps_result:
            return None
        raise AgentError(
            f"the result is {result!r:.80}; from a worker process it must be of JSON types. Return a text, a number, "
            "or a list or dict of them."
        )


def is_json(value: Any) -> bool:
    """Return whether JSON can have a value."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


class _Asking:
    """The `TaskState` in a worker process: passes every call to the parent."""

    def __init__(self, host: AgentHost) -> None:
        self._host = host

    def __getattr__(self, name: str) -> Any:
        if name not in _REQUESTS:
            raise AttributeError(name)
        return lambda *arguments: self._host.ask(name, *arguments)


class WorkerJob:
    """One run of an agent in a worker process. Construct it in the event loop that awaits `done`.

    Args:
        runner: The worker, with an `AgentHost` that is open.
        assignment: The agent's task and session.
        report: Answers the agent's requests here.
    """

    def __init__(self, runner: WorkerRunner, assignment: Assignment, report: TaskState) -> None:
        self._runner, self._assignment, self._report = runner, assignment, report
        self.done: asyncio.Task[Any] = asyncio.create_task(self._play())
        # Read, so that an abandoned job logs nothing.
        self.done.add_done_callback(lambda done: done.cancelled() or done.exception())

    def cancel(self) -> None:
        """Kill the process if the agent has not ended. Harmless when repeated."""
        if not self.done.done():
            self._runner.kill()

    async def _play(self) -> Any:
        try:
            await self._runner.reset(None, {"assignment": self._assignment})
            answer: tuple[Any, ...] = ()
            while True:
                *_, info = await self._runner.step(answer)
                if "result" in info:
                    return info["result"]
                name, *arguments = info["asked"]
                if name not in _REQUESTS:
                    self._runner.kill()
                    raise WorkerDiedError(f"its worker asked for {name!r:.80}, which is none of {', '.join(_REQUESTS)}")
                answer = (getattr(self._report, name)(*arguments),)
        except WorkerDiedError as error:
            raise WorkerDiedError(str(error).replace("died in env.step", "died in the agent")) from None
