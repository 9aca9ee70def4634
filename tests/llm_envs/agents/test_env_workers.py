"""Agents in worker processes: the episodes of agents in threads; crashes and hangs cost their own episode."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from http_agents import Client, answers, plays, rewarded

from llm_envs.agents import AgentEnv, EnvTask
from llm_envs.chat import ChatCodec
from llm_envs.errors import InvalidConfigError, JudgeError
from llm_envs.parsers import format_answer, format_tool_call
from llm_envs.rollout import Collector, RolloutLimits
from llm_envs.rollout.workers.remote import TOKEN_VARIABLE
from llm_envs.rollout.workers.server import EnvServer
from llm_envs.testing import ByteCodec, HashingTokenPolicy, NumbersEnv
from llm_envs.tiny_model import tiny_tokenizer
from llm_envs.types import StopReason, Trajectory, validate_batch

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
if sys.platform == "win32":
    pytest.skip("workers need a POSIX system", allow_module_level=True)

CODEC = ByteCodec()
CALCULATOR = "llm/Calculator-v0"
TASKS = [{"question": f"Say {n}.", "kind": kind} for n, kind in enumerate(["well", "well", "odd"])]


async def answers_later(task: dict[str, Any], client: Client) -> str:
    await asyncio.sleep(0)
    return answers(task, client)


async def acts_later(task: EnvTask, client: Client) -> str | None:
    await asyncio.sleep(0)
    return plays(task, client)


def runs_tools(task: EnvTask, client: Client) -> str | None:
    """As frameworks do: each call by itself, and the text of a reply without calls is the result."""
    messages = list(task.messages)
    while not task.is_over:
        reply = client.ask(messages, tools=task.tools)
        messages.append(reply)
        if not reply.get("tool_calls"):
            return str(reply["content"])
        for call in reply["tool_calls"]:
            content = task.call(call["function"]["name"], json.loads(call["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
    return None


def digits() -> HashingTokenPolicy:
    return HashingTokenPolicy(CODEC, [str(n) for n in range(10)])


def play(
    agent: Any,
    tasks: Any = TASKS,
    reward_fn: Any = rewarded,
    *,
    policy: Callable[[], Any] = digits,
    codec: Any = CODEC,
    n: int = 1,
    size: int = 1,
    **settings: Any,
) -> tuple[list[Trajectory], int]:
    """Return the trajectories, and how many workers were started."""
    env = AgentEnv(agent, tasks, reward_fn, create_client=Client)
    settings = {"progress": False, "max_retries": 0, "workers": 2} | settings
    with Collector(env, policy(), codec=codec, **settings) as collector:
        trajectories = [t for group in collector.collect(n, size) for t in group]
        n_started = 0 if collector._pool is None else collector._pool.n_started
    assert validate_batch(trajectories) == []
    return trajectories, n_started


@pytest.mark.parametrize("agent", [answers, answers_later])
def test_episodes_are_those_of_threads(agent: Any) -> None:
    inside, n_started = play(agent, n=4, size=2)
    outside, _ = play(agent, n=4, size=2, workers=0)
    assert inside == outside
    assert [t.status for t in inside] == ["ok"] * 8
    assert n_started == 2


@pytest.mark.parametrize("agent", [plays, acts_later, runs_tools])
def test_an_environments_episodes_are_those_of_threads(agent: Any) -> None:
    codec = ChatCodec(tiny_tokenizer())
    texts = [format_tool_call("calculator", expression=e) for e in ("2*3", "1/0", "37*24")]
    texts += [f"{texts[0]}\n{texts[1]}", "<tool_call>{", format_answer(6), f"<think>Hm.</think>{texts[2]}", "No idea."]
    more: dict[str, Any] = {"codec": codec, "policy": lambda: HashingTokenPolicy(codec, texts), "n": 8, "size": 2}
    inside, _ = play(agent, CALCULATOR, None, **more)
    outside, _ = play(agent, CALCULATOR, None, workers=0, **more)
    assert inside == outside
    assert {t.stop_reason for t in inside} == {StopReason.TERMINATED, StopReason.ENV_TRUNCATED}
    assert any(t.tool_results for t in inside)


def test_agents_that_compute_run_in_processes_of_their_own_side_by_side(tmp_path: Path) -> None:
    def computes(task: dict[str, Any], client: Client) -> list[int]:
        (tmp_path / str(os.getpid())).touch()
        started = time.monotonic()
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() - started < 120:
            pass  # until the other computes too
        answers(task, client)
        return [os.getpid(), len(list(tmp_path.iterdir()))]

    found, _ = play(computes, n=2)
    (one, seen_1), (two, seen_2) = (t.metadata["result"] for t in found)
    assert len({one, two, os.getpid()}) == 3
    assert seen_1 == seen_2 == 2


@pytest.mark.parametrize(
    ("code", "said"), [(3, "it exited with code 3"), (-signal.SIGKILL, "it was killed by SIGKILL (out of memory?)")]
)
def test_a_crash_costs_its_episode_and_the_worker_is_replaced(code: int, said: str) -> None:
    def crashes(task: dict[str, Any], client: Client) -> str:
        reply = answers(task, client)
        if task["kind"] == "odd":
            os._exit(code) if code > 0 else os.kill(os.getpid(), -code)
        return reply

    found, n_started = play(crashes, n=8, workers=1, max_concurrency=1)
    failed = [t for t in found if t.status == "errored"]
    assert 1 <= len(failed) < 8
    assert {t.status for t in found} == {"ok", "errored"}
    assert n_started == 1 + len([t for t in found[:-1] if t.status == "errored"])
    for t in failed:
        assert t.error is not None and t.is_success is None
        assert (t.error.kind, t.error.where) == ("WorkerDiedError", "agent")
        assert t.error.message == f"the worker process died in the agent: {said}."
        assert len(t.turns) == 1


def test_a_hang_is_cut_and_its_process_killed() -> None:
    def hangs(task: dict[str, Any], client: Client) -> str:
        pid = answers({"question": str(os.getpid())}, client)
        threading.Event().wait() if task["kind"] == "odd" else None
        return pid

    # The limit is long enough for the first request; without one the agent would hang for ever.
    found, _ = play(hangs, [TASKS[2]], limits=RolloutLimits(max_step_s=3.0), workers=1)
    ((trajectory),) = found
    assert trajectory.error is not None
    assert (trajectory.status, trajectory.error.kind, trajectory.error.where) == ("errored", "TimeoutError", "agent")
    with pytest.raises(ProcessLookupError):
        os.kill(int(trajectory.messages[0].content), 0)


class LoadsSlowly:
    """An agent with a framework that takes long to import."""

    def __init__(self) -> None:
        self.load_s = 5.0

    def __call__(self, task: dict[str, Any], client: Client) -> str:
        return answers(task, client)

    def __setstate__(self, state: dict[str, float]) -> None:
        time.sleep(state["load_s"])


def test_the_start_of_a_worker_does_not_count_as_a_hang() -> None:
    found, n_started = play(LoadsSlowly(), n=2, limits=RolloutLimits(max_step_s=3.0, max_episode_s=4.5))
    assert [t.status for t in found] == ["ok", "ok"]
    assert n_started == 2


def test_limits_cut_and_score() -> None:
    def goes_on(task: dict[str, Any], client: Client) -> str:
        while True:
            answers(task, client)

    found, _ = play(goes_on, limits=RolloutLimits(max_turns=2))
    assert (found[0].status, found[0].stop_reason, len(found[0].turns)) == ("ok", StopReason.MAX_TURNS, 2)
    assert found[0].reward == rewarded(None, found[0])

    def sleeps(task: dict[str, Any], client: Client) -> str:
        answers(task, client)
        time.sleep(3600)
        return ""

    found, _ = play(sleeps, limits=RolloutLimits(max_episode_s=3.0))
    assert (found[0].status, found[0].stop_reason) == ("ok", StopReason.TIMEOUT)


def test_failures_have_the_names_that_they_have_in_threads() -> None:
    class Judged(NumbersEnv):
        def step(self, action: str) -> Any:
            raise JudgeError("no judgement")

    def raises(task: dict[str, Any], client: Client) -> None:
        answers(task, client)
        raise {"well": KeyError("lost"), "odd": SystemExit(3)}[task["kind"]]

    def swallows(task: EnvTask, client: Client) -> None:
        with contextlib.suppress(RuntimeError):
            plays(task, client)

    cases: list[tuple[Any, Any, Any, dict[str, Any]]] = [
        (raises, [TASKS[0]], rewarded, {}),
        (raises, [TASKS[2]], rewarded, {}),
        (plays, Judged, None, {}),
        (swallows, NumbersEnv, None, {"env_kwargs": {"n_turns": 2, "raise_at": 2}}),
        (lambda task, client: "never calls", TASKS, rewarded, {}),
    ]
    for agent, tasks, reward_fn, settings in cases:
        (inside,), _ = play(agent, tasks, reward_fn, workers=1, **settings)
        (outside,), _ = play(agent, tasks, reward_fn, workers=0, **settings)
        assert inside == outside
        assert inside.status != "ok"


def test_a_worker_may_ask_for_a_few_things_only() -> None:
    def forges(task: EnvTask, client: Client) -> None:
        task._report._host.ask("__setattr__", "_session", None)  # type: ignore[attr-defined]

    (trajectory,), _ = play(forges, NumbersEnv, None, workers=1)
    assert trajectory.error is not None and trajectory.error.kind == "WorkerDiedError"
    assert "'__setattr__'" in trajectory.error.message


def test_a_command_plays_in_a_worker() -> None:
    script = (
        "import json, os, sys, urllib.request\n"
        "body = json.dumps({'messages': json.load(sys.stdin)['messages']}).encode()\n"
        "headers = {'Authorization': 'Bearer ' + os.environ['OPENAI_API_KEY']}\n"
        "request = urllib.request.Request(os.environ['OPENAI_BASE_URL'] + '/chat/completions', body, headers)\n"
        "with urllib.request.urlopen(request) as response:\n"
        "    print(json.load(response)['choices'][0]['message']['content'])\n"
    )
    found, _ = play([sys.executable, "-c", script], NumbersEnv, None, env_kwargs={"n_turns": 1}, workers=1)
    assert [t.status for t in found] == ["ok"]
    assert found[0].metadata["result"] == found[0].messages[-1].content


def test_results_that_cannot_leave_the_process() -> None:
    class Found:
        pass

    def returns(task: Any, client: Client) -> Any:
        client.ask([{"role": "user", "content": "?"}])
        return Found()

    (t,), _ = play(returns, workers=1)
    assert t.error is not None and t.status == "errored"
    assert "from a worker process it must be of JSON types" in t.error.message
    (t,), _ = play(returns, NumbersEnv, None, workers=1)  # no reward function asks for it
    assert t.status == "ok" and "result" not in t.metadata


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = threading.Lock()

    def locked(task: Any, client: Client) -> str:
        with lock:
            return answers(task, client)

    with pytest.raises(InvalidConfigError, match="cannot go to a worker process"):
        play(locked, workers=1)
    token = b"sixteen bytes at least"
    monkeypatch.setenv(TOKEN_VARIABLE, token.decode())
    with EnvServer(1, token) as server, pytest.raises(InvalidConfigError, match="leave out env_servers"):
        play(answers, workers=0, env_servers=[server.address])
