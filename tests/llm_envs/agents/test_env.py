"""Agents as episodes: the collector, groups, limits and failures; and the rows that an environment leaves too."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import family_tokenizer
from http_agents import Client, answers, plays, rewarded

from llm_envs import evaluate
from llm_envs.agents import AgentEnv, Endpoint, EnvTask
from llm_envs.agents import env as agent_env
from llm_envs.chat import ChatCodec
from llm_envs.errors import EnvContractError, InvalidConfigError, JudgeError, UnknownTaskError
from llm_envs.parsers import format_answer, format_tool_call
from llm_envs.policies import ConstantPolicy, OraclePolicy, TransformersPolicy
from llm_envs.processes import children_of
from llm_envs.rollout import Collector, RolloutLimits, collect_run, create_window, read_trajectories
from llm_envs.sources.source import EnvChoice, SeedSource
from llm_envs.testing import ByteCodec, HashingTokenPolicy, NumbersEnv, with_failures
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.types import SamplingParams, StopReason, Trajectory, validate_batch

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

CODEC = ByteCodec()
CALCULATOR = "llm/Calculator-v0"
TASKS = [{"question": f"Say {n}.", "answer": str(n)} for n in range(3)]


def digits() -> HashingTokenPolicy:
    return HashingTokenPolicy(CODEC, [str(n) for n in range(10)])


def agent(play: Any, tasks: Any = TASKS, reward_fn: Any = rewarded, **settings: Any) -> AgentEnv:
    return AgentEnv(play, tasks, reward_fn, create_client=Client, **settings)


def play(env: AgentEnv, policy: Any = None, n: int = 1, size: int = 1, codec: Any = CODEC, **settings: Any) -> Any:
    settings = {"progress": False, "max_retries": 0} | settings
    with Collector(env, policy or digits(), codec=codec, **settings) as collector:
        trajectories = [t for group in collector.collect(n, size) for t in group]
    assert validate_batch(trajectories) == []
    assert len(agent_env._shared) == 0
    return trajectories


class TestThroughTheCollector:
    def test_groups_of_tasks_and_rewards(self) -> None:
        trajectories = play(agent(answers), n=3, size=4)
        assert [t.member for t in trajectories] == [0, 1, 2, 3] * 3
        assert {t.env_id for t in trajectories} == {"agent"}
        for t in trajectories:
            assert (t.status, t.terminated, t.stop_reason) == ("ok", True, StopReason.TERMINATED)
            assert t.metadata["result"] == t.messages[-1].content
            assert t.reward == rewarded(t.metadata["result"], t) == t.components["reward"]
        assert len({t.messages[0].content for t in trajectories[:4]}) == 1  # a group has one task
        assert len({t.messages[-1].content for t in trajectories[:4]}) > 1  # and its members their own seeds

    def test_the_same_seeds_give_the_same_episodes_at_any_concurrency(self) -> None:
        one, many = (play(agent(answers), n=4, size=2, max_concurrency=most) for most in (1, 8))
        assert one == many

    def test_an_asynchronous_agent_and_rewards_of_parts(self) -> None:
        async def asks(task: dict[str, Any], client: Client) -> str:
            await asyncio.sleep(0)
            return answers(task, client)

        async def reward(result: str, trajectory: Trajectory) -> dict[str, float]:
            await asyncio.sleep(0)
            return {"right": 1.0, "long": -0.5}

        (t,) = play(agent(asks, reward_fn=reward, success_at=0.5))
        assert (t.reward, dict(t.components), t.is_success) == (0.5, {"right": 1.0, "long": -0.5}, True)

    @pytest.mark.parametrize(("trains", "spans"), [(False, [2, 0]), (True, [2, 1])])
    def test_children_are_recorded_and_trained_only_if_asked(self, trains: bool, spans: list[int]) -> None:
        def asks(task: dict[str, Any], client: Client) -> str:
            messages: list[Any] = [{"role": "user", "content": task["question"]}]
            first = client.ask(messages)
            Client(client.endpoint.child).ask([{"role": "user", "content": "A title?"}])
            return str(client.ask([*messages, first, {"role": "user", "content": "Sure?"}])["content"])

        (t,) = play(agent(asks, trains_children=trains))
        assert [len(row.spans) for row in t.rows] == spans
        assert t.metadata["children"] == {"child": 1}
        assert "A title?" in [message.content for message in t.messages]

    def test_a_run_is_stored_and_resumed(self, tmp_path: Any) -> None:
        settings: dict[str, Any] = {"codec": CODEC, "group_size": 2, "out": tmp_path / "run", "max_retries": 0}
        collect_run(agent(answers), digits(), n_groups=2, **settings)
        collect_run(agent(answers), digits(), n_groups=2, resume=True, **settings)
        stored = read_trajectories(tmp_path / "run")
        assert sorted(t.to_json(timings=False) for t in stored) == sorted(
            t.to_json(timings=False) for t in play(agent(answers), n=2, size=2)
        )

    def test_every_task_of_a_list_once_an_epoch_and_in_a_mixture(self) -> None:
        choice = EnvChoice("agent", factory=agent(answers), problems=TASKS)
        once = play(SeedSource([choice], seed=1), n=3)  # type: ignore[arg-type]
        assert sorted(t.messages[0].content for t in once) == [task["question"] for task in TASKS]
        source = SeedSource([choice, EnvChoice(CALCULATOR)], seed=1)
        expected = [source.spec(index).env_id for index in range(12)]
        assert set(expected) == {"agent", CALCULATOR}
        assert [t.env_id for t in play(source, n=12)] == expected  # type: ignore[arg-type]

    def test_evaluate_takes_it(self) -> None:
        env = agent(answers, test_tasks=[{"question": "Test?"}])
        result = evaluate(env, digits(), n=3, codec=CODEC, progress=False)
        assert result.n == 3
        assert {t.messages[0].content for t in result.trajectories} == {"Test?"}
        with pytest.raises(InvalidConfigError, match="give AgentEnv\\(test_tasks"):
            evaluate(agent(answers), digits(), n=3, codec=CODEC, progress=False)

    def test_over_sampling_parks_agents_at_the_gate(self) -> None:
        def twice(task: dict[str, Any], client: Client) -> str:
            first = client.ask([{"role": "user", "content": task["question"]}])
            return str(client.ask([{"role": "user", "content": "Again."}, first, {"role": "user", "content": "?"}]))

        policy = HashingTokenPolicy(CODEC, ["1", "22"], latency_s=0.02)
        settings: dict[str, Any] = {"over_sampling": 2.0, "max_concurrency": 4, "progress": False}
        with Collector(agent(twice), policy, codec=CODEC, **settings) as collector:
            trajectories = [t for _ in range(2) for group in collector.collect(2, 2) for t in group]
        assert [t.status for t in trajectories] == ["ok"] * 8
        assert [(len(t.turns), len(t.rows)) for t in trajectories] == [(2, 2)] * 8

    def test_requests_cannot_change_how_the_run_samples(self) -> None:
        def cold(task: dict[str, Any], client: Client) -> str:
            return str(client.ask([{"role": "user", "content": "x"}], temperature=0.0, seed=1, max_tokens=3)["content"])

        policy = HashingTokenPolicy(CODEC, ["a longer reply"])
        (first, second) = play(agent(cold), policy, size=2, sampling=SamplingParams(temperature=0.7))
        assert first.metadata["overridden"] == ["seed", "temperature"]
        assert {most for _, _, most in policy.calls} == {3}
        assert len({seed for _, seed, _ in policy.calls}) == 2
        assert first.turns[0].finish_reason == second.turns[0].finish_reason == "length"


class TestLikeAnEnvironment:
    """An agent's loop leaves the rows of the same task played as an environment, token for token."""

    def compare(self, policy: Callable[[], Any], codec: Any, env: str, n: int, **settings: Any) -> list[Trajectory]:
        settings = {"progress": False, "seed": 3, "max_retries": 0} | settings
        kwargs = settings.pop("env_kwargs", {})
        with Collector(env, policy(), codec=codec, env_kwargs=kwargs, **settings) as collector:
            expected = [t for group in collector.collect(n, 2) for t in group]
        agents = agent(plays, env, None)
        with Collector(agents, policy(), codec=codec, env_kwargs=kwargs, **settings) as collector:
            found = [t for group in collector.collect(n, 2) for t in group]
        for ours, theirs in zip(found, expected, strict=True):
            assert len(ours.rows) == len(theirs.rows)
            for a, b in zip(ours.rows, theirs.rows, strict=True):
                np.testing.assert_array_equal(a.ids, b.ids)
                np.testing.assert_array_equal(a.mask, b.mask)
                np.testing.assert_array_equal(a.logps, b.logps)
                assert a.spans == b.spans
            # Turns, rewards, messages, seeds, metadata: all but reasons of forks and cuts, which only an agent has.
            notes = {k: v for k, v in ours.metadata.items() if k not in ("row_reasons", "limit")}
            assert replace(ours, metadata=notes) == theirs
        return found

    def test_tool_calls_of_a_scripted_policy(self) -> None:
        codec = ChatCodec(tiny_tokenizer())
        calls = [format_tool_call("calculator", expression=e) for e in ("2*3", "1/0", "37*24")]
        texts = [*calls, f"{calls[0]}\n{calls[1]}", format_tool_call("other", x=1), "<tool_call>{", format_answer(6)]
        texts += [f"<think>Hm.</think>{calls[2]}", "No idea."]
        found = self.compare(lambda: HashingTokenPolicy(codec, texts), codec, CALCULATOR, 12)
        reasons = {t.stop_reason for t in found}
        assert reasons == {StopReason.TERMINATED, StopReason.ENV_TRUNCATED}
        assert max(len(t.turns) for t in found) == 4
        assert any(t.tool_results for t in found)

    def test_a_transformers_model(self) -> None:
        tokenizer = tiny_tokenizer()
        model = tiny_model(tokenizer, hidden_size=32, n_layers=1, n_heads=2, max_length=2048)
        policies: list[TransformersPolicy] = []

        def policy() -> TransformersPolicy:
            policies.append(TransformersPolicy(model, tokenizer, max_batch_size=1))
            return policies[-1]

        try:
            sampling = SamplingParams(max_new_tokens=12)
            found = self.compare(policy, ChatCodec(tokenizer), CALCULATOR, 2, sampling=sampling)
        finally:
            for made in policies:
                asyncio.run(made.aclose())
        assert all((row.logps[row.mask] < 0).all() for t in found for row in t.rows)

    def test_forks_of_a_template_that_drops_thinking(self) -> None:
        codec = ChatCodec(family_tokenizer("qwen3"))
        calls = [format_tool_call("calculator", expression=e) for e in ("2*3", "37*24")]
        texts = [f"<think>\n{thought}\n</think>\n\n{reply}" for thought in "ab" for reply in (*calls, "No idea.")]
        found = self.compare(lambda: HashingTokenPolicy(codec, texts), codec, CALCULATOR, 6, history="template")
        assert max(len(t.rows) for t in found) > 1

    def test_an_environment_that_truncates_and_one_whose_results_are_a_tools(self) -> None:
        texts = [str(n) for n in range(10)]
        kwargs = {"n_turns": 3, "as_tool": False, "truncate_at": 2}
        found = self.compare(lambda: HashingTokenPolicy(CODEC, texts), CODEC, NumbersEnv, 4, env_kwargs=kwargs)  # type: ignore[arg-type]
        assert {t.stop_reason for t in found} == {StopReason.ENV_TRUNCATED}

    @pytest.mark.parametrize(
        ("limits", "reason"),
        [
            (RolloutLimits(max_turns=2), StopReason.MAX_TURNS),
            (RolloutLimits(max_episode_tokens=70), StopReason.MAX_TOKENS),
        ],
    )
    def test_limits_of_the_run_cut_at_the_same_place(self, limits: RolloutLimits, reason: StopReason) -> None:
        texts = [str(n) for n in range(10)]
        more: dict[str, Any] = {"env_kwargs": {"n_turns": 9}, "limits": limits}
        found = self.compare(lambda: HashingTokenPolicy(CODEC, texts), CODEC, NumbersEnv, 4, **more)  # type: ignore[arg-type]
        assert {t.stop_reason for t in found} == {reason}

    def test_a_text_that_the_agent_returns_is_the_last_action(self) -> None:
        def says(task: EnvTask, client: Client) -> str:
            client.ask(task.messages)
            return "<answer>888</answer>"

        env = agent(says, CALCULATOR, None)
        with Collector(env, digits(), codec=CODEC, progress=False) as collector:
            spec = collector.source.spec(0)
            given = type(spec)(CALCULATOR, options={"problem": {"expression": "37*24"}})
            ((t,),) = collector.play([[given]])
        assert (t.is_success, t.reward, t.metadata["result"]) == (True, 1.0, "<answer>888</answer>")


class TestFailures:
    def test_a_crash_is_no_zero_and_costs_its_own_episode(self) -> None:
        def crashes(task: dict[str, Any], client: Client) -> str:
            reply = answers(task, client)
            if task["answer"] == "1":
                raise KeyError("lost")
            return reply

        trajectories = play(SeedSource(EnvChoice("agent", factory=agent(crashes), problems=TASKS)), n=3)  # type: ignore[arg-type]
        (failed,) = [t for t in trajectories if t.status == "errored"]
        assert (failed.error.kind, failed.error.where, failed.is_success) == ("KeyError", "agent", None)
        assert len(failed.turns) == 1
        assert [t.status for t in trajectories].count("ok") == 2

    def test_exit_and_a_client_that_cannot_be_made(self) -> None:
        def leaves(task: Any, client: Client) -> None:
            client.ask([{"role": "user", "content": "x"}])
            sys.exit(3)

        def no_client(endpoint: Endpoint) -> Client:
            raise OSError("no client")

        (t,) = play(agent(leaves))
        assert (t.status, t.error.where, t.error.message) == ("errored", "agent", "SystemExit: 3")
        (t,) = play(AgentEnv(answers, TASKS, rewarded, create_client=no_client))
        assert (t.status, t.error.message) == ("errored", "no client")

    def test_a_plain_function_that_returns_a_coroutine_and_an_error_without_a_text(self) -> None:
        class Unprintable(Exception):
            def __str__(self) -> str:
                raise ValueError("no")

        async def later(client: Client) -> str:
            return answers(TASKS[0], client)

        def fails(task: Any, client: Client) -> None:
            answers(task, client)
            raise Unprintable

        def stops(task: Any, client: Client) -> None:
            answers(task, client)
            raise StopIteration("no more")

        (t,) = play(agent(lambda task, client: later(client)))
        assert (t.status, t.error.where) == ("errored", "agent")
        assert "the agent returned a coroutine" in t.error.message
        (t,) = play(agent(fails))
        assert (t.error.kind, t.error.message) == (
            "Unprintable",
            "(its message cannot be shown: __str__ raised ValueError)",
        )
        (t,) = play(agent(stops))
        assert (t.status, t.error.message) == ("errored", "StopIteration: no more")

    def test_an_environment_that_fails_to_close_changes_nothing(self) -> None:
        class Stuck(NumbersEnv):
            def close(self) -> None:
                raise OSError("busy")

        (t,) = play(agent(plays, Stuck, None), env_kwargs={"n_turns": 1})
        assert t.status == "ok"

    def test_an_agent_that_never_calls_is_unscored(self) -> None:
        (t,) = play(agent(lambda task, client: "done"))
        assert (t.status, t.rows, t.turns) == ("unscored", (), ())
        assert t.metadata["unscored_because"] == "the agent never called the model"

    @pytest.mark.parametrize("is_async", [False, True])
    def test_a_hung_agent_is_given_up(self, is_async: bool) -> None:
        free = threading.Event()

        def hangs(task: dict[str, Any], client: Client) -> str:
            answers(task, client)
            free.wait(600)
            return ""

        async def hangs_async(task: dict[str, Any], client: Client) -> str:
            answers(task, client)
            await asyncio.sleep(600)
            return ""

        started = time.monotonic()
        (t,) = play(agent(hangs_async if is_async else hangs), limits=RolloutLimits(max_step_s=0.2))
        free.set()
        assert time.monotonic() - started < 300
        assert (t.status, t.error.kind, t.error.where) == ("errored", "TimeoutError", "agent")

    def test_an_async_agent_that_blocks_its_loop_blocks_nobody_else(self) -> None:
        """Each waits for the others without awaiting: one after another, they would give up."""
        together = threading.Barrier(6, timeout=120)

        async def blocks(task: dict[str, Any], client: Client) -> str:
            together.wait()
            return answers(task, client)

        assert [t.status for t in play(agent(blocks), n=6)] == ["ok"] * 6

    def test_limits_cut_and_score(self) -> None:
        def loops(task: dict[str, Any], client: Client) -> str:
            messages: list[Any] = [{"role": "user", "content": "x"}]
            while True:
                messages += [client.ask(messages), {"role": "user", "content": "more"}]

        def on_cut(result: Any, trajectory: Trajectory) -> float:
            assert result is None
            return 0.25

        for limits, reason in (
            (RolloutLimits(max_turns=3), StopReason.MAX_TURNS),
            (RolloutLimits(max_completion_tokens=40), StopReason.MAX_TOKENS),
            (RolloutLimits(max_episode_s=2.0), StopReason.TIMEOUT),  # after its first turn, on any machine
        ):
            (t,) = play(agent(loops, reward_fn=on_cut), limits=limits)
            assert (t.status, t.truncated, t.stop_reason, t.reward) == ("ok", True, reason, 0.25)
            assert t.is_success is False
        (t,) = play(agent(loops, reward_fn=on_cut), HashingTokenPolicy(CODEC, ["y"], context_length=60))
        assert t.stop_reason is StopReason.CONTEXT_FULL

    def test_a_limit_that_the_agent_handles_has_not_cut(self) -> None:
        def careful(task: dict[str, Any], client: Client) -> str:
            answer = answers(task, client)
            with pytest.raises(RuntimeError, match="episode_over"):
                answers(task, client)
            return answer

        (t,) = play(agent(careful), limits=RolloutLimits(max_turns=1))
        assert (t.stop_reason, t.terminated) == (StopReason.TERMINATED, True)

    def test_an_agent_that_only_retries_is_ended(self) -> None:
        def retries(task: dict[str, Any], client: Client) -> str:
            while True:
                with contextlib.suppress(RuntimeError):
                    answers(task, client)

        (t,) = play(agent(retries), limits=RolloutLimits(max_turns=2))
        assert (t.stop_reason, len(t.turns)) == (StopReason.MAX_TURNS, 2)

    def test_the_policys_failure_is_the_policys_whatever_the_agent_does(self) -> None:
        def swallows(task: dict[str, Any], client: Client) -> str:
            try:
                return answers(task, client)
            except RuntimeError:
                return "fine"

        (t,) = play(agent(swallows), with_failures(digits(), 1.0))
        assert (t.status, t.error.where, t.error.message) == ("errored", "policy", "injected failure")

    def test_failures_of_environments_and_judges(self) -> None:
        def swallows(task: EnvTask, client: Client) -> None:
            with contextlib.suppress(RuntimeError):
                plays(task, client)

        (t,) = play(agent(swallows, NumbersEnv, None), env_kwargs={"n_turns": 2, "raise_at": 2})
        assert (t.status, t.error.where, t.error.message) == ("errored", "env.step", "the environment broke")

        class Judged(NumbersEnv):
            def step(self, action: str) -> Any:
                raise JudgeError("no judgement")

        (t,) = play(agent(plays, Judged, None))
        assert (t.status, t.error.where, len(t.turns)) == ("unscored", "env.step", 1)

        def broken(result: Any, trajectory: Trajectory) -> float:
            raise ZeroDivisionError("reward")

        (t,) = play(agent(answers, reward_fn=broken))
        assert (t.status, t.metadata["unscored_because"]) == ("unscored", "reward_fn failed: ZeroDivisionError: reward")

    def test_a_failed_episode_is_replayed_with_the_same_seeds(self) -> None:
        failed: list[str] = []

        def sometimes(task: dict[str, Any], client: Client) -> str:
            reply = answers(task, client)
            failed.append(reply)
            if len(failed) == 1:
                raise OSError("once")
            return reply

        (t,) = play(agent(sometimes), max_retries=2)
        assert (t.status, t.metadata["retries"]) == ("ok", 1)
        assert failed[0] == failed[1]

    def test_a_cancelled_collection_leaves_nothing(self) -> None:
        policy = HashingTokenPolicy(CODEC, ["x"], latency_s=3600)

        async def main() -> None:
            collector = Collector(agent(answers), policy, codec=CODEC, progress=False)
            task = asyncio.create_task(collector.acollect(3))
            while policy.running < 3:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            deadline = time.monotonic() + 120

            def is_clean() -> bool:
                return not policy.running and not agent_env._shared and len(asyncio.all_tasks()) == 1

            while not is_clean() and time.monotonic() < deadline:
                await asyncio.sleep(0.01)
            assert (policy.running, len(agent_env._shared)) == (0, 0)
            assert asyncio.all_tasks() == {asyncio.current_task()}

        asyncio.run(main())


COMMAND = """
import json, os, sys, urllib.request
task = json.load(sys.stdin)
body = json.dumps({"messages": [{"role": "user", "content": task["question"]}]}).encode()
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
with urllib.request.urlopen(request) as response:
    print(json.load(response)["choices"][0]["message"]["content"])
"""


HOST = """
import sys
from llm_envs.agents.job import AgentRun, Assignment
from llm_envs.agents.server import Endpoint
AgentRun(sys.argv[1:])(Assignment(Endpoint("http://127.0.0.1:1/v1", "key")), None, lambda cancel: None)
"""


class TestCommands:
    def test_a_command_plays(self) -> None:
        trajectories = play(AgentEnv([sys.executable, "-c", COMMAND], TASKS, rewarded), n=2)
        for t in trajectories:
            assert (t.status, t.metadata["result"]) == ("ok", t.messages[-1].content)

    def test_a_command_that_fails_or_does_not_exist(self) -> None:
        (t,) = play(AgentEnv([sys.executable, "-c", "raise SystemExit('no model')"], TASKS, rewarded))
        assert (t.status, t.error.where) == ("errored", "agent")
        assert t.error.message == f"{sys.executable} ended with 1: no model"
        (t,) = play(AgentEnv(["/does/not/exist"], TASKS, rewarded))
        assert (t.error.kind, t.error.where) == ("FileNotFoundError", "agent")

    def test_a_command_that_hangs_is_killed_with_its_children(self, tmp_path: Any) -> None:
        note = tmp_path / "pid"
        command = ["sh", "-c", f"sleep 3600 & echo $! > '{note}'; wait"]  # no Python, whose start may take long
        (t,) = play(AgentEnv(command, TASKS, rewarded), limits=RolloutLimits(max_step_s=2.0))
        assert (t.status, t.error.kind) == ("errored", "TimeoutError")
        child = Path(f"/proc/{int(note.read_text())}/exe")  # of a zombie, which nobody may have buried, it is gone
        deadline = time.monotonic() + 120
        while child.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not child.exists()

    @pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="children are listed in /proc")
    def test_a_command_ends_with_its_killed_host(self, tmp_path: Path) -> None:
        os.mkfifo(fifo := tmp_path / "fifo")
        command = ["sh", "-c", f"exec > '{fifo}'; echo started; sleep 3600 & wait"]
        host = subprocess.Popen([sys.executable, "-c", HOST, *command])
        with open(fifo, "rb", buffering=0) as output:
            assert output.read(8) == b"started\n"
            deadline = time.monotonic() + 120
            while len(children_of(host.pid)) < 3:  # the command, its child, and the watch, which is started last
                assert time.monotonic() < deadline
                time.sleep(0.01)
            host.kill()
            host.wait()
            # Command and child have the other end: when it closes, both have ended.
            assert select.select([output], [], [], 300)[0] and output.read(1) == b""


class TestSettings:
    def test_wrong_arguments(self) -> None:
        with pytest.raises(InvalidConfigError, match="the agent 'node agent"):
            AgentEnv("node agent.js", TASKS, rewarded)
        with pytest.raises(InvalidConfigError, match="needs reward_fn"):
            AgentEnv(answers, TASKS)
        with pytest.raises(InvalidConfigError, match="it must be a list of dicts of JSON types"):
            AgentEnv(answers, [{"x": object()}], rewarded)
        with pytest.raises(InvalidConfigError, match="tasks is \\[\\]"):
            AgentEnv(answers, [], rewarded)
        with pytest.raises(InvalidConfigError, match="leave out test_tasks"):
            AgentEnv(plays, CALCULATOR, test_tasks=TASKS)
        with pytest.raises(UnknownTaskError, match="Calculator"):
            AgentEnv(plays, "llm/Calculater-v0")

    def test_what_a_collector_refuses(self) -> None:
        def collector(**settings: Any) -> Collector:
            return Collector(**({"envs": agent(answers), "policy": digits(), "codec": CODEC} | settings))

        for policy in (OraclePolicy(), ConstantPolicy("x")):
            with pytest.raises(InvalidConfigError, match="takes no token ids"):
                collector(policy=policy)
        with pytest.raises(InvalidConfigError, match="leave out context_fn"):
            collector(context_fn=create_window(1))
        with pytest.raises(InvalidConfigError, match="it takes only split"):
            collector(env_kwargs={"difficulty": "hard"})

    def test_steps_of_a_task(self) -> None:
        found: list[str] = []

        def odd(task: EnvTask, client: Client) -> None:
            client.ask(task.messages)
            with pytest.raises(InvalidConfigError, match="is not an assistant's message and not a text"):
                task.step({"role": "user", "content": "x"})
            found.append(task.step("1")[0]["content"])
            task.step({"role": "assistant", "content": "2"})
            with pytest.raises(Exception, match="the episode is over"):
                task.step("3")

        (t,) = play(agent(odd, NumbersEnv, None), env_kwargs={"n_turns": 2})
        assert t.status == "ok"
        assert found[0].startswith("Say ")

    def test_an_environment_that_breaks_its_contract(self) -> None:
        class NoTuple(NumbersEnv):
            def step(self, action: str) -> Any:
                return "observation"

        (t,) = play(agent(plays, NoTuple, None))
        assert (t.error.kind, t.error.where) == (EnvContractError.__name__, "env.step")
