"""Environments in worker processes: the same results as inline, and nothing that they do costs more than themselves."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from machine import PATIENCE_S, is_running, wait_until
from rogue_envs import LongEnv, PidEnv, RogueEnv

from llm_envs.errors import EnvContractError, InvalidConfigError, JudgeError, NoEnvServerError, WorkerDiedError
from llm_envs.policies import ConstantPolicy, OraclePolicy, RandomPolicy
from llm_envs.rollout import Collector, EnvChoice, EpisodeSpec, RolloutLimits, play_episode, play_member
from llm_envs.rollout import episode as episodes
from llm_envs.rollout.token_transcript import TokenTranscript
from llm_envs.rollout.workers.pool import WorkerPool
from llm_envs.rollout.workers.remote import TOKEN_VARIABLE, EnvServers
from llm_envs.rollout.workers.runner import EnvMaker, EnvRunner, Runner
from llm_envs.rollout.workers.server import EnvServer
from llm_envs.rollout.workers.wire import Foreign, RemoteError, dump_plain, error_bases, load_plain, revive
from llm_envs.testing import ByteCodec, HashingTokenPolicy, NumbersEnv
from llm_envs.types import FinishReason, SamplingParams, StopReason, ToolResult, Trajectory, VersionSpan

CODEC = ByteCodec()
SPEC = EpisodeSpec("Rogue", {}, seed=7)
ACTIONS = [
    "1",
    "<answer>5</answer>",
    '<tool_call>{"name": "calculate", "arguments": {"expression": "1+1"}}</tool_call>',
]


@pytest.fixture(scope="module", params=["here", "served"])
def pool(request: pytest.FixtureRequest) -> Iterator[WorkerPool]:
    """Two workers for all tests that do not look at processes: of this process, and of an environment server."""
    if request.param == "here":
        with WorkerPool(2) as pool:
            yield pool
        return
    token = "for these tests only"
    with pytest.MonkeyPatch.context() as patch, EnvServer(2, token.encode()) as server:
        patch.setenv(TOKEN_VARIABLE, token)
        with WorkerPool(2, EnvServers([server.address])) as pool:
            yield pool


def maker(**kwargs: Any) -> EnvMaker:
    return EnvMaker("Rogue", kwargs, RogueEnv)


async def play(
    runner: Runner, spec: EpisodeSpec, policy: Any, limits: RolloutLimits | None = None, run_seed: int = 0
) -> Trajectory:
    """Do what `play_episode` does, with a given runner."""
    codec = CODEC if hasattr(policy, "sample") else None
    limits = limits or RolloutLimits()
    if hasattr(policy, "for_episode"):
        policy = policy.for_episode(episodes.derive_seed(run_seed, spec.group_id, spec.member))
    kind, transcript = episodes.policy_kind(policy, codec), TokenTranscript(codec, "append")
    sampler = episodes.TurnSampler(policy, spec, codec, limits, run_seed)
    episode = episodes._Episode(spec, kind, transcript, SamplingParams(), limits, runner, sampler)
    try:
        await episode.run()
    except episodes._Failure as failure:
        episode.fail(failure)
    finally:
        runner.close()
    return episode.trajectory()


def play_one(
    pool: WorkerPool | None, make: EnvMaker, policy: Any = None, *, seed: int = 7, limit_s: float | None = None
) -> Trajectory:
    """Play an episode in a worker, or inline if there is no pool."""
    spec = EpisodeSpec(make.env_id, {}, seed=seed)
    runner: Runner = EnvRunner(make, limit_s) if pool is None else pool.runner(make, limit_s)
    return asyncio.run(play(runner, spec, policy or OraclePolicy()))


def children() -> set[int]:
    """Return the ids of this process's children, zombies too."""
    found = set()
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            found |= set(map(int, Path(f"/proc/self/task/{thread}/children").read_text().split()))
    return found


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


class TestSameAsInline:
    @pytest.mark.parametrize("env_id", ["Arithmetic", "Calculator", "Countdown", "GuessNumber"])
    def test_trajectories_byte_for_byte(self, env_id: str, pool: WorkerPool) -> None:
        """With an oracle, with random actions, and with a token policy, whose rows and log-probabilities count too."""
        make = EnvMaker(f"llm/{env_id}-v0", {"split": "test"})
        policies: list[Any] = [OraclePolicy(), RandomPolicy(ACTIONS), HashingTokenPolicy(CODEC, ACTIONS)]
        for policy in policies:
            for seed in (1, 2):
                inline, remote = (play_one(where, make, policy, seed=seed) for where in (None, pool))
                assert inline.status == "ok" and inline.turns
                assert remote.to_json(timings=False) == inline.to_json(timings=False)

    @pytest.mark.parametrize(
        "result",
        [
            *["nothing", "a text", "four", "no reward", "nan", "no text", "odd text", "odd components"],
            *[
                "odd component",
                "array of success",
                "role only",
                "a set in a message",
                "decimals",
                "numpy",
                "odd info",
                "odd success",
            ],
        ],
    )
    def test_whatever_step_returns(self, result: str, pool: WorkerPool) -> None:
        """The same error, word for word, or the same trajectory."""
        inline, remote = (play_one(where, maker(result=result)) for where in (None, pool))
        assert remote.to_json(timings=False) == inline.to_json(timings=False)
        assert (inline.status == "ok") is (result in ("decimals", "numpy", "odd info"))

    @pytest.mark.parametrize("deed", ["unpicklable", "mute", "KeyError", "StopIteration", "ValueError", "SystemExit"])
    @pytest.mark.parametrize("at", ["make", "reset", "step"])
    def test_whatever_is_raised(self, at: str, deed: str, pool: WorkerPool) -> None:
        inline, remote = (play_one(where, maker(at=at, deed=deed)) for where in (None, pool))
        assert inline.error is not None and inline.error.where == f"env.{at}"
        assert remote.to_json(timings=False) == inline.to_json(timings=False)

    @pytest.mark.parametrize("deed", ["GeneratorExit", "KeyboardInterrupt", "UnicodeDecodeError"])
    def test_what_would_end_the_run_inline_is_data(self, deed: str, pool: WorkerPool) -> None:
        trajectory = play_one(pool, maker(at="step", deed=deed))
        assert trajectory.error is not None and trajectory.error.where == "env.step"
        assert trajectory.error.kind == {"GeneratorExit": "RuntimeError"}.get(deed, deed)

    def test_retries_are_counted_as_for_any_error(self, pool: WorkerPool) -> None:
        def once(spec: EpisodeSpec) -> Any:
            return play(pool.runner(maker(at="step", deed="exit"), None), spec, OraclePolicy())

        play_one(pool, maker())  # starts a worker, if this test is the first
        before = pool.n_started
        trajectory = asyncio.run(play_member(EpisodeSpec("Rogue"), once, max_retries=1))
        assert trajectory.status == "errored" and trajectory.metadata["retries"] == 1
        assert pool.n_started == before + 1  # the second try had the other worker, or a new one

    def test_tool_results_cross(self, pool: WorkerPool) -> None:
        (turn,) = play_one(pool, maker()).turns
        assert turn.tool_results == (ToolResult("f", {"x": 1}, "o", True),) and turn.tool_results[0].seconds == 0.25

    def test_what_it_prints_is_no_reply(self, pool: WorkerPool) -> None:
        assert play_one(pool, maker(at="step", deed="print")).reward == 1.0

    def test_long_observations_and_actions_cross(self, pool: WorkerPool) -> None:
        long = EnvMaker("Long", {"n_characters": 5_000_000}, LongEnv)
        trajectory = play_one(pool, long, ConstantPolicy("é" * 2_000_000))
        assert trajectory.metadata["final_observation"] == "é" * 5_000_000

    def test_too_long_an_observation_is_the_environments_fault(self, pool: WorkerPool) -> None:
        play_one(pool, maker())  # starts a worker, if this test is the first
        before = pool.n_started
        trajectory = play_one(pool, EnvMaker("Long", {"n_characters": 70 << 20}, LongEnv), ConstantPolicy("x"))
        assert trajectory.error is not None and trajectory.error.kind == "EnvContractError"
        assert "at most 67108864" in trajectory.error.message
        assert pool.n_started == before  # nothing was lost with it


class TestWhatToMake:
    def test_a_class_from_inside_a_function_goes_by_value(self, pool: WorkerPool) -> None:
        class Local(NumbersEnv):
            def step(self, action: str) -> Any:
                return f"in {os.getpid() != here}", 1.0, True, False, {}

        here = os.getpid()
        trajectory = play_one(pool, EnvMaker("Local", {}, Local))
        assert trajectory.metadata["final_observation"] == "in True"

    def test_an_environment_that_exists_is_refused(self, pool: WorkerPool) -> None:
        with pytest.raises(InvalidConfigError, match="NumbersEnv"):
            pool.runner(NumbersEnv(), None)  # type: ignore[arg-type]

    def test_what_cannot_be_pickled_is_refused_by_name(self, pool: WorkerPool) -> None:
        lock = __import__("threading").Lock()
        with pytest.raises(InvalidConfigError, match=r"lambda.*TypeError.*lock"):
            pool.runner(lambda: NumbersEnv(split=str(lock)), None)

    def test_what_cannot_be_imported_there_says_so(self, pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
        spec = gym.envs.registration.EnvSpec("no/Such-v0", entry_point="no_such_module:Env")
        monkeypatch.setitem(gym.registry, "no/Such-v0", spec)
        trajectory = play_one(pool, EnvMaker("no/Such-v0"))
        assert trajectory.error is not None and trajectory.error.kind == "InvalidConfigError"
        assert "no_such_module" in trajectory.error.message and trajectory.error.where == "env.make"

    def test_a_task_that_is_registered_only_here(self, pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
        spec = gym.envs.registration.EnvSpec("only/Here-v0", entry_point="rogue_envs:PidEnv")
        monkeypatch.setitem(gym.registry, "only/Here-v0", spec)
        assert play_one(pool, EnvMaker("only/Here-v0", {"n_turns": 2})).reward == 1.0

    def test_check_raises_the_class_itself(self, pool: WorkerPool) -> None:
        pool.check(EnvMaker("llm/Arithmetic-v0"))
        with pytest.raises(InvalidConfigError, match="difficulty 'odd'"):
            pool.check(EnvMaker("llm/Arithmetic-v0", {"difficulty": "odd"}))
        with pytest.raises(RemoteError, match="with a lock"):
            pool.check(maker(at="make", deed="unpicklable"))

    def test_check_survives_a_worker_that_is_killed_meanwhile(self, pool: WorkerPool, tmp_path: Path) -> None:
        """As by the system when there is no memory left; an environment that kills each worker is reported."""

        class KilledOnce(NumbersEnv):
            def __init__(self) -> None:
                super().__init__()
                if not (tmp_path / "killed").exists():
                    (tmp_path / "killed").touch()
                    os.kill(os.getpid(), signal.SIGKILL)

        pool.check(KilledOnce)
        assert (tmp_path / "killed").exists()
        with pytest.raises(WorkerDiedError, match=r"env\.make"):
            pool.check(maker(at="make", deed="kill"))


class TestPolicies:
    def test_what_a_policy_may_ask(self, pool: WorkerPool) -> None:
        seen: list[Any] = []

        class Curious:
            def act(self, env: gym.Env[str, str], observation: str) -> str:
                seen.append((env.get_wrapper_attr("system_prompt"), env.get_wrapper_attr("digits")))
                seen.append((env.unwrapped.digits, env.has_wrapper_attr("nothing"), hasattr(env.unwrapped, "nothing")))  # type: ignore[attr-defined]
                return str(env.unwrapped.oracle())  # type: ignore[attr-defined]

        trajectory = play_one(pool, maker(n_turns=1), Curious())
        assert trajectory.reward == 1.0
        (digit,) = seen[0][1]
        assert seen == [("Repeat.", [digit]), ([digit], False, False)]

    @pytest.mark.parametrize("use", ["np_random", "action_space", "reset", "step"])
    def test_what_it_may_not_is_refused(self, use: str, pool: WorkerPool) -> None:
        class Nosy:
            def act(self, env: Any, observation: str) -> str:
                value = getattr(env, use)
                return str(value("1") if use == "step" else value())

        error = play_one(pool, maker(), Nosy()).error
        assert error is not None and (error.kind, error.where) == ("EnvContractError", "policy")
        assert "in a worker process" in error.message and "needs it without workers" in error.message

    def test_an_oracle_that_hangs_is_killed(self) -> None:
        class Sleeps(NumbersEnv):
            def oracle(self) -> str:
                return str(time.sleep(3_600))

        with WorkerPool(1) as pool:
            play_one(pool, maker())  # what a worker imports first is not what takes long
            error = play_one(pool, EnvMaker("Sleeps", {}, Sleeps), limit_s=2.0).error
        assert error is not None and (error.kind, error.where) == ("TimeoutError", "policy")


@pytest.fixture(scope="module")
def one() -> Iterator[WorkerPool]:
    """One worker, which is killed again and again."""
    with WorkerPool(1) as pool:
        yield pool


class TestDeath:
    @pytest.mark.parametrize(
        ("deed", "how"),
        [
            ("fault", "SIGSEGV"),
            ("exit", "exited with code 3"),
            ("kill", r"SIGKILL \(out of memory"),
            ("fork", "exited with code 4"),
            ("close", "closed its connection, and was killed"),
            ("close and go on", "exited with code 1"),
            ("write", "it sent a frame without the MAC of its key and place, and was killed"),
        ],
    )
    def test_a_worker_that_dies_is_named_and_replaced(
        self, deed: str, how: str, one: WorkerPool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("llm_envs.rollout.workers.channel._PULSE_S", 0.1)
        trajectory = play_one(one, maker(at="step", deed=deed))
        error = trajectory.error
        assert error is not None and (error.kind, error.where) == ("WorkerDiedError", "env.step")
        with pytest.raises(WorkerDiedError, match=how):
            raise WorkerDiedError(error.message)
        assert trajectory.is_success is None and trajectory.turns == ()
        assert play_one(one, maker()).reward == 1.0

    @pytest.mark.parametrize(
        ("at", "deed"), [("make", "hang"), ("reset", "hang"), ("step", "spin"), ("step", "ignore SIGTERM")]
    )
    def test_a_call_over_its_limit_is_killed(self, at: str, deed: str, one: WorkerPool) -> None:
        play_one(one, maker())  # what a worker imports first is not what takes long
        limit_s = 0.5 if at == "make" else 2.0  # calls before the one that hangs must not reach it
        error = play_one(one, maker(at=at, deed=deed), limit_s=limit_s).error
        assert error is not None and (error.kind, error.where) == ("TimeoutError", f"env.{at}")
        assert error.message == f"env.{at} took longer than max_step_s={limit_s:g} s; its process was killed."
        assert play_one(one, maker(), limit_s=PATIENCE_S).reward == 1.0

    def test_a_make_that_hangs_without_a_limit_is_killed(
        self, one: WorkerPool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        play_one(one, maker())  # so that only `make` is watched
        monkeypatch.setattr("llm_envs.processes.IDLE_S", 0.5)
        error = play_one(one, maker(at="make", deed="hang")).error
        assert error is not None and (error.kind, error.where) == ("TimeoutError", "env.make")
        assert "done nothing for 0.5 s" in error.message

    def test_a_close_that_hangs_costs_the_next_a_moment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("llm_envs.rollout.workers.pool.CLOSE_S", 0.2)
        with WorkerPool(1) as pool:
            assert play_one(pool, maker(at="close", deed="hang")).reward == 1.0
            assert play_one(pool, maker()).reward == 1.0
            assert pool.n_started == 2

    def test_one_that_dies_between_two_episodes_costs_neither(self, one: WorkerPool) -> None:
        pid = int(play_one(one, EnvMaker("Pid", {}, PidEnv)).metadata["final_observation"])
        os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: not is_running(pid))
        again = play_one(one, EnvMaker("Pid", {}, PidEnv))
        assert again.error is None and again.metadata["final_observation"] != str(pid)

    def test_what_the_environment_started_dies_too(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        notes = tmp_path / "pids"
        monkeypatch.setenv("ROGUE_NOTES", str(notes))
        with WorkerPool(1) as pool:
            play_one(pool, maker())  # what a worker imports first is not what takes long
            play_one(pool, maker(at="step", deed="leave"), limit_s=4.0)
        pids = [int(pid) for pid in notes.read_text().split()]
        assert len(pids) == 3
        assert wait_until(lambda: not any(map(is_running, pids)))

    def test_one_in_twenty_hangs_for_ever_and_the_rest_is_on_time(self) -> None:
        """60 episodes: 3 hang in `step`, 3 end their worker, and 3 raise."""
        deeds = {0: "hang", 1: "exit", 2: "KeyError"}

        async def main(pool: WorkerPool) -> list[Trajectory]:
            wrong = [deeds.get(seed % 20) for seed in range(60)]
            makers = [maker(n_turns=2, **({"at": "step", "deed": deed} if deed else {})) for deed in wrong]
            runners = [pool.runner(make, 3.0) for make in makers]
            specs = [EpisodeSpec("Rogue", {}, seed=seed) for seed in range(60)]
            return await asyncio.gather(*map(play, runners, specs, [OraclePolicy()] * 60))

        with WorkerPool(4) as pool:
            started = time.perf_counter()
            trajectories = asyncio.run(main(pool))
            seconds = time.perf_counter() - started
        kinds = [t.error.kind if t.error else t.reward for t in trajectories]
        assert kinds == ["TimeoutError", "WorkerDiedError", "KeyError", *[1.0] * 17] * 3
        assert pool.n_started <= 4 + 6
        assert seconds < 1_000  # 3 × 3 s of hanging and 10 starts; no limit at all would be an hour


class TestPlaces:
    def test_more_episodes_than_workers_wait_first_come_first_served(self, one: WorkerPool) -> None:
        order: list[int] = []

        async def play_index(index: int) -> None:
            runner = one.runner(maker(), None)
            try:
                await runner.open()
                order.append(index)
                await asyncio.sleep(0.001)
            finally:
                runner.close()

        async def main() -> None:
            await asyncio.gather(*map(play_index, range(30)))

        play_one(one, maker())
        before = one.n_started
        asyncio.run(main())
        assert order == list(range(30)) and one.n_started == before

    def test_cancelled_waiters_lose_no_place(self) -> None:
        async def main(pool: WorkerPool) -> None:
            holder, last = pool.runner(maker(), None), pool.runner(maker(), None)
            await holder.open()
            waiting = [asyncio.create_task(pool.runner(maker(), None).open()) for _ in range(5)]
            waiting.append(asyncio.create_task(last.open()))
            await asyncio.sleep(0.01)
            holder.close()  # grants the place to the first, which is cancelled before it can take it
            for task in waiting[:5]:
                task.cancel()
            await asyncio.wait_for(waiting[5], PATIENCE_S)
            assert all(task.cancelled() for task in waiting[:5])
            last.close()

        with WorkerPool(1) as pool:
            asyncio.run(main(pool))
            assert play_one(pool, maker()).reward == 1.0
            assert pool.n_started == 1

    @pytest.mark.parametrize(("deed", "n_started"), [("note and wait", 1), ("note", 2)])
    def test_a_cancelled_call_is_waited_for_by_the_next(
        self, deed: str, n_started: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Long enough for it to come to its end and the environment to be closed; and no longer."""
        notes = tmp_path / "notes"
        monkeypatch.setenv("ROGUE_NOTES", str(notes))
        monkeypatch.setattr("llm_envs.rollout.workers.pool.CLOSE_S", 0.2 if deed == "note" else PATIENCE_S)

        async def main(pool: WorkerPool) -> None:
            runner = pool.runner(maker(at="step", deed=deed), None)
            await runner.open()
            await runner.reset(7, None)
            task = asyncio.create_task(runner.step("1"))
            assert await asyncio.to_thread(wait_until, notes.exists)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            runner.close()
            notes.unlink()  # from here on, a call that only waits can come to its end

        with WorkerPool(1) as pool:
            asyncio.run(main(pool))
            assert play_one(pool, maker()).reward == 1.0
            assert pool.n_started == n_started

    def test_event_loops_and_threads_take_turns(self, pool: WorkerPool) -> None:
        """Two loops in two threads, more episodes each than there are workers."""

        def many() -> list[float]:
            async def main() -> list[float]:
                runners = [pool.runner(maker(n_turns=3), None) for _ in range(8)]
                played = await asyncio.gather(*(play(runner, SPEC, OraclePolicy()) for runner in runners))
                return [round(trajectory.reward, 6) for trajectory in played]

            return asyncio.run(main())

        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(2) as threads:
            assert [f.result() for f in [threads.submit(many) for _ in range(2)]] == [[1.0] * 8] * 2

    def test_workers_are_kept(self, pool: WorkerPool) -> None:
        seen = {play_one(pool, EnvMaker("Pid", {}, PidEnv)).metadata["final_observation"] for _ in range(4)}
        assert 1 <= len(seen) <= 2 and str(os.getpid()) not in seen

    @pytest.mark.parametrize("n_workers", [0, -1, 1.5, True, "2"])
    def test_a_wrong_number_is_refused(self, n_workers: Any) -> None:
        with pytest.raises(InvalidConfigError, match="n_workers"):
            WorkerPool(n_workers)


class TestEnd:
    def test_nothing_is_left_after_close(self) -> None:
        before, open_before = children(), descriptors()
        pool = WorkerPool(2)
        for deed in ("", "exit", "KeyError"):
            play_one(pool, maker(at="step" if deed else "", deed=deed))
        assert children() > before
        pool.close()
        pool.close()
        assert children() <= before and descriptors() <= open_before
        with pytest.raises(InvalidConfigError, match="closed"):
            asyncio.run(pool.runner(maker(), None).open())

    def test_a_pool_that_nobody_has_any_more_ends(self) -> None:
        gc.collect()  # what earlier tests left must not go in the meantime
        before, open_before = children(), descriptors()
        pool = WorkerPool(1)
        play_one(pool, maker())
        assert children() > before
        del pool
        gc.collect()
        assert children() <= before and descriptors() <= open_before

    def test_close_ends_running_episodes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        notes = tmp_path / "notes"
        monkeypatch.setenv("ROGUE_NOTES", str(notes))

        async def main(pool: WorkerPool) -> list[Any]:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(play(pool.runner(maker(at="step", deed="note"), None), SPEC, OraclePolicy()))
                    for _ in range(2)
                ]
                assert await asyncio.to_thread(wait_until, notes.exists)
                await asyncio.to_thread(pool.close)
            return [task.result().error for task in tasks]

        before = children()
        errors = asyncio.run(main(WorkerPool(1)))
        assert sorted(error.kind for error in errors) == ["InvalidConfigError", "WorkerDiedError"]
        assert children() <= before

    def test_a_fork_has_a_pool_of_its_own(self) -> None:
        """The child plays with workers of its own, ends, and leaves its parent's alone."""
        with WorkerPool(1) as pool:
            first = play_one(pool, EnvMaker("Pid", {}, PidEnv)).metadata["final_observation"]
            child = os.fork()
            if not child:
                code = 1
                try:
                    own = play_one(pool, EnvMaker("Pid", {}, PidEnv)).metadata["final_observation"]
                    pool.close()
                    code = 0 if own != first else 2
                finally:
                    os._exit(code)
            assert os.waitpid(child, 0)[1] == 0
            assert play_one(pool, EnvMaker("Pid", {}, PidEnv)).metadata["final_observation"] == first


SCRIPT = """
import asyncio, os, signal, sys, time
import gymnasium as gym
from llm_envs.policies import OraclePolicy
from llm_envs.registration import register_task
from llm_envs.rollout.workers.runner import EnvMaker
from llm_envs.rollout.workers.pool import WorkerPool
from llm_envs.testing import NumbersEnv

print("main module ran", flush=True)

def say_pid(pid):
    os.write(1, f"pid {{pid}}\\n".encode())  # at once: two processes write into one pipe

class Mine(NumbersEnv):
    def step(self, action):
        say_pid(os.getpid())
        if HANG:
            {hang}
        return super().step(action)

HANG = {is_hanging}
register_task("mine/Task-v0", Mine)

async def one(pool, make):
    runner = pool.runner(make, None)
    try:
        env = await runner.open()
        await runner.reset(1, None)
        print("reward", (await runner.step(env.unwrapped.oracle()))[1] > 0, flush=True)
    finally:
        runner.close()

async def main(pool):
    makers = [EnvMaker("mine/Task-v0", {{"n_turns": 2}}), EnvMaker("f", {{}}, lambda: Mine())]
    await asyncio.gather(*(one(pool, make) for make in makers))

pool = WorkerPool(2)
asyncio.run(main(pool))
print("done", flush=True)
"""


def script(*, hang: str = "") -> str:
    return textwrap.dedent(SCRIPT).format(hang=hang or "pass", is_hanging=bool(hang))


class TestPrograms:
    """Whole programs, whose main module has the environment and no `__main__` guard, and which never close the pool."""

    @pytest.mark.parametrize("way", ["-c", "file"])
    def test_the_main_module_is_not_run_again(self, way: str, tmp_path: Path) -> None:
        path = tmp_path / "program.py"
        path.write_text(script())
        arguments = {"-c": ["-c", script()], "file": [str(path)]}[way]
        done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert lines.count("main module ran") == 1 and lines.count("reward True") == 2 and lines[-1] == "done"
        pids = [int(line.split()[1]) for line in lines if line.startswith("pid")]
        assert len(set(pids)) == 2 and not any(map(is_running, pids))

    @pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
    def test_a_parent_that_is_ended_leaves_nothing(self, sent: signal.Signals) -> None:
        """One of its environments sleeps and cannot be terminated, one is in C code that lets no thread run."""
        hang = (
            "say_pid(__import__('subprocess').Popen(['sleep', '3600']).pid); "
            "signal.signal(signal.SIGTERM, signal.SIG_IGN); "
            "time.sleep(3600) if self.n_turns == 1 else __import__('re').match(r'(a+)+$', 'a' * 60 + 'b')"
        )
        program = subprocess.Popen(
            [sys.executable, "-c", script(hang=hang)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert program.stdout is not None
        pids: list[int] = []
        while len(pids) < 4:  # two workers, and a child of each
            line = program.stdout.readline()
            assert line, "the program ended early"
            if line.startswith("pid"):
                pids.append(int(line.split()[1]))
        assert all(map(is_running, pids))
        program.send_signal(sent)
        program.wait(timeout=PATIENCE_S)
        program.stdout.close()
        assert wait_until(lambda: not any(map(is_running, pids)))


class TestWire:
    @pytest.mark.smoke
    def test_data_comes_as_it_is(self) -> None:
        plain = [1, -(2**70), 2.5, float("inf"), None, True, 1j, ("x", b"y"), {3}, frozenset({"x"}), bytearray(b"\xff")]
        shared = (1, 2)
        data = {
            "plain": [*plain, "\ud83d", "\ud83d" + "\ude00", [], {}, (), shared, shared],
            ("a", 1): {1: "one", None: StopReason.ERROR},
            "records": [ToolResult("f", {"x": (1,)}, "o", True), FinishReason.LENGTH, VersionSpan(0, 1, 2)],
        }
        same = load_plain(dump_plain(data))
        assert same == data and repr(same) == repr(data) and str(load_plain(dump_plain(float("nan")))) == "nan"

    def test_subclasses_come_as_plain_data(self) -> None:
        from collections import OrderedDict, defaultdict
        from enum import IntEnum

        class Level(IntEnum):
            HIGH = 3

        data = [OrderedDict(a=1), defaultdict(list, b=[2]), Level.HIGH, np.str_("x"), os.environ.__class__]
        *same, kind = load_plain(dump_plain(data))
        assert same == [{"a": 1}, {"b": [2]}, 3, "x"] and [type(x) for x in same] == [dict, dict, int, str]
        assert isinstance(kind, Foreign)

    @pytest.mark.parametrize(
        "array",
        [
            np.arange(6, dtype=np.int16).reshape(2, 3).T,
            np.zeros((0, 3), ">f4"),
            np.array(True),
            np.float32(0.1),
            np.bool_(False),
            np.uint64(2**64 - 1),
            np.array([1 + 2j, float("nan")]),
        ],
        ids=repr,
    )
    def test_numbers_of_numpy_come_as_they_are(self, array: Any) -> None:
        same = load_plain(dump_plain({"a": array}))["a"]
        assert type(same) is type(array) and same.dtype == array.dtype and same.shape == array.shape
        np.testing.assert_array_equal(same, array)

    def test_other_arrays_come_without_their_bytes(self) -> None:
        """Their bytes would be pointers, or text that is none."""
        objects, dates = np.array([{}, None]), np.array(["2024-01-01"], "M8[D]")
        there = load_plain(dump_plain([np.array([["a"], ["b"]]), objects, dates, np.dtype("O")]))
        assert there[0] == [["a"], ["b"]] and all(isinstance(value, Foreign) for value in there[1:])
        assert [repr(value) for value in there[1:]] == [repr(value) for value in (objects, dates, objects.dtype)]

    @pytest.mark.parametrize(
        "value", [os.system, subprocess.Popen, gym.make, WorkerPool, eval], ids=lambda v: v.__name__
    )
    def test_nothing_else_is_loaded(self, value: Any) -> None:
        """A worker with damaged memory, or under the control of an attacker, could send such bytes."""
        with pytest.raises(ValueError):
            load_plain(pickle.dumps(value))

    @pytest.mark.parametrize(
        "body",
        [
            b"cnumpy.f2py.__main__\nndarray\n.",  # a pickle that imports a program, which exits
            b'{"import": "numpy.f2py.__main__"}',
            b'{"record": ["ToolResult", {}], "enum": ["StopReason", "error"]}',
            b'{"record": ["StopReason", {"value": "x", "names": ["y"], "module": "os"}]}',
            b'{"record": ["Mapping", {}]}',
            b'{"enum": ["ToolResult", "x"]}',
            b'{"foreign": ["x", "y", "nan", null]}',
        ],
    )
    def test_a_forged_reply_is_refused(self, body: bytes) -> None:
        modules = set(sys.modules)
        with pytest.raises((ValueError, KeyError, TypeError)):
            load_plain(body)
        assert set(sys.modules) == modules

    @pytest.mark.smoke
    @pytest.mark.parametrize(
        ("dtype", "shape", "n_bytes"),
        [
            ("|O", [1], 8),  # pointers of the sender's choice
            ("<U1", [1], 4),
            ("V8", [1], 8),
            ("<f8,O", [1], 16),
            ("<f4", [2], 4),
            ("<f4", [-1], 4),
            ("<f4", [2**62, 4], 0),
            ("<f4", [True], 4),
            ("<f3", [1], 3),
        ],
    )
    def test_a_forged_array_is_refused(self, dtype: str, shape: list[int], n_bytes: int) -> None:
        data = base64.b64encode(b"\xff" * n_bytes).decode()
        for kind in ("array", "scalar"):
            with pytest.raises((ValueError, TypeError)):
                load_plain(json.dumps({kind: [dtype, shape, data]}).encode())

    def test_keys_that_would_take_for_ever_are_refused(self) -> None:
        """Integers that leave the same rest by 2**61 - 1 have one hash: a set of n of them takes n**2 comparisons."""
        keys = [1 + (2**61 - 1) * k for k in range(100)]
        for value in (set(keys), dict.fromkeys(keys)):
            with pytest.raises(ValueError, match="64"):
                load_plain(dump_plain(value))
        assert load_plain(dump_plain(set(keys[:64]))) == set(keys[:64])

    def test_deep_and_endless_values_are_refused_by_the_sender(self, monkeypatch: pytest.MonkeyPatch) -> None:
        deep: Any = ()
        for _ in range(100):
            deep = {"a": deep}
        assert load_plain(dump_plain(deep)) == deep
        ring: list[Any] = []
        ring.append(ring)
        monkeypatch.setattr("llm_envs.rollout.workers.wire.MAX_FRAME_BYTES", 10_000)
        wide: Any = ()
        for _ in range(45):  # small in memory, and 2**45 values long
            wide = (wide, wide)
        for value in ([deep], ring, wide):
            with pytest.raises(EnvContractError, match=r"100|10000"):
                dump_plain(value)

    def test_what_is_foreign_keeps_its_text_number_and_truth(self) -> None:
        from decimal import Decimal

        class Rude:
            def __repr__(self) -> str:
                raise ValueError

            __bool__ = __float__ = __repr__

        number, rude = load_plain(dump_plain([Decimal("1.5"), Rude()]))
        assert isinstance(number, Foreign) and (repr(number), float(number), bool(number)) == (
            "Decimal('1.5')",
            1.5,
            True,
        )
        assert repr(rude) == "<Rude>"
        for convert in (float, bool):
            with pytest.raises((TypeError, ValueError)):
                convert(rude)

    def test_errors_are_of_known_classes_only(self) -> None:
        key = revive(error_bases(KeyError), "'x'", "trace")
        assert isinstance(key, KeyError) and str(key) == "'x'" and type(key).__name__ == "KeyError"
        assert "trace" in key.__notes__[0]
        for module, name in [("builtins", "KeyboardInterrupt"), ("builtins", "eval"), ("os", "error"), ("x", "Odd")]:
            error = revive([(module, name), ("builtins", "BaseException")], "text", "")
            assert type(error).__mro__[1:3] == (RemoteError, Exception) and type(error).__name__ == name
        assert isinstance(revive(error_bases(EnvContractError), "t", ""), EnvContractError)

    def test_an_error_of_a_class_of_ones_own_is_of_the_nearest_known_one(self) -> None:
        class Down(JudgeError):
            pass

        class TimedOut(Down, TimeoutError):
            pass

        error = revive(error_bases(TimedOut), "no verdict", "")
        assert isinstance(error, JudgeError) and isinstance(error, RemoteError) and str(error) == "no verdict"
        assert type(error).__name__ == "TimedOut"


class Unjudged(NumbersEnv):
    """What judges it gives no verdict."""

    class TooLate(JudgeError):
        pass

    def step(self, action: str) -> Any:
        raise self.TooLate("no verdict")


def test_a_judge_that_fails_in_a_worker_leaves_the_episode_unscored(pool: WorkerPool) -> None:
    make = EnvMaker("Unjudged", {}, Unjudged)
    inline, remote = (play_one(where, make) for where in (None, pool))
    assert (inline.status, inline.error and inline.error.kind) == ("unscored", "TooLate")
    assert remote.to_json(timings=False) == inline.to_json(timings=False)


class Alarming(NumbersEnv):
    """Raises what would end a run if the collector itself did."""

    def __init__(self) -> None:
        raise NoEnvServerError("none has answered")


def test_a_worker_cannot_end_the_run(pool: WorkerPool) -> None:
    error = play_one(pool, EnvMaker("Alarming", {}, Alarming)).error
    assert error is not None and (error.kind, error.where) == ("NoEnvServerError", "env.make")


class TestCollector:
    """The same through `play_episode` and the collector."""

    def test_play_episode(self, pool: WorkerPool) -> None:
        make = EnvMaker("llm/Calculator-v0")
        spec = EpisodeSpec("llm/Calculator-v0", seed=3)
        inline, remote = (
            asyncio.run(play_episode(make, spec, OraclePolicy(), workers=where))  # type: ignore[call-arg]
            for where in (None, pool)
        )
        assert remote.to_json(timings=False) == inline.to_json(timings=False)

    def test_collect(self) -> None:
        def collect(workers: int) -> list[str]:
            envs = ["llm/Calculator-v0", EnvChoice("Rogue", factory=RogueEnv)]
            policy = HashingTokenPolicy(CODEC, ACTIONS)
            with Collector(envs, policy, codec=CODEC, progress=False, workers=workers) as collector:  # type: ignore[call-arg]
                groups = collector.collect(6, 2) + collector.collect(2, 2)
            return [trajectory.to_json(timings=False) for group in groups for trajectory in group]

        before = children()
        assert collect(2) == collect(0)
        assert children() <= before

    def test_one_in_twenty_hangs_for_ever(self) -> None:
        envs = EnvChoice("Rogue", kwargs={"at": "step", "deed": "hang", "one_in": 20}, factory=RogueEnv)
        settings: dict[str, Any] = {"limits": RolloutLimits(max_step_s=3.0), "max_retries": 0, "progress": False}
        started = time.perf_counter()
        with Collector(envs, OraclePolicy(), workers=4, **settings) as collector:
            groups = collector.collect(60)
        hung = [t.seed % 20 == 0 for group in groups for t in group]
        assert [t.status == "errored" for group in groups for t in group] == hung and any(hung)
        assert time.perf_counter() - started < 1_000
