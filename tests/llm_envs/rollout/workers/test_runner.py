"""Environments inline and in threads: which where, threads that are kept, and threads that hang."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from machine import wait_until

from llm_envs.errors import EnvContractError, InvalidConfigError, ResetNeededError
from llm_envs.processes import threads as pooled
from llm_envs.rollout.workers import runner as runners
from llm_envs.rollout.workers import slow_calls
from llm_envs.rollout.workers.runner import EnvMaker, EnvRunner, check_made, check_reset, check_step, close_env
from llm_envs.testing import NumbersEnv

MAIN = threading.get_ident()


class Where(NumbersEnv):
    """Notes in which thread it was made, played and closed."""

    notes: list[tuple[str, int]] = []

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.note("make")

    def note(self, what: str) -> None:
        self.notes.append((what, threading.get_ident()))

    def step(self, action: str) -> Any:
        self.note("step")
        return super().step(action)

    def close(self) -> None:
        self.note("close")


class Slow(Where):
    """Says so in the class."""

    blocking = True  # type: ignore[assignment]  # an instance's, in NumbersEnv

    def __init__(self) -> None:
        super().__init__(blocking=True)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    Where.notes.clear()
    monkeypatch.setattr(runners, "_found_blocking", set())
    monkeypatch.setattr(runners, "_steps", Counter())
    monkeypatch.setattr(runners, "_waits", Counter())
    pooled._threads.reset_after_fork()
    before = threads()
    yield
    # A play is over before its environment's last words: they are not the next test's.
    assert wait_until(lambda: threads() - before <= len(pooled._threads._free))


async def play(make: Callable[[], Any], limit_s: float | None = None) -> float:
    runner = EnvRunner(make, limit_s)
    try:
        env = await runner.open()
        await runner.reset(7, None)
        return (await runner.step(env.unwrapped.oracle()))[1]
    finally:
        runner.close()


def threads() -> int:
    return sum(thread.name == "llm-envs-call" for thread in threading.enumerate())


def noted() -> dict[str, bool]:
    """Return for each thing that was noted whether it was in the main thread."""
    return {what: ident == MAIN for what, ident in Where.notes}


class TestWhere:
    def test_light_ones_run_inline(self) -> None:
        before = threads()
        assert asyncio.run(play(EnvMaker("Where", {}, Where))) == 1.0
        assert noted() == {"make": True, "step": True, "close": True} and threads() <= before

    @pytest.mark.parametrize("make", [Slow, EnvMaker("Slow", {}, Slow)])
    def test_a_class_that_declares_blocking_is_made_in_its_thread(self, make: Callable[[], Any]) -> None:
        assert asyncio.run(play(make)) == 1.0
        assert wait_until(lambda: "close" in noted())
        assert noted() == {"make": False, "step": False, "close": False}
        assert len({ident for _, ident in Where.notes}) == 1

    def test_one_that_is_found_to_be_blocking_is_made_in_a_thread_from_then_on(self) -> None:
        make = EnvMaker("Where", {"blocking": True}, Where)
        assert not make.blocking
        asyncio.run(play(make))
        assert wait_until(lambda: noted() == {"make": True, "step": False, "close": False})
        Where.notes.clear()
        assert EnvMaker("Where", {"blocking": True, "n_turns": 1}, Where).blocking
        asyncio.run(play(EnvMaker("Where", {"blocking": True}, Where)))
        assert wait_until(lambda: noted() == {"make": False, "step": False, "close": False})

    def test_a_limit_moves_everything(self) -> None:
        asyncio.run(play(Where, limit_s=120))
        assert wait_until(lambda: noted() == {"make": False, "step": False, "close": False})

    def test_a_registered_class_is_looked_at_but_not_imported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        module = type(sys)("module_of_slow")
        module.Slow = Slow  # type: ignore[attr-defined]
        spec = gym.envs.registration.EnvSpec("x/Slow-v0", entry_point="module_of_slow:Slow")
        monkeypatch.setitem(gym.registry, "x/Slow-v0", spec)
        make = EnvMaker("x/Slow-v0")
        assert not make.blocking and "module_of_slow" not in sys.modules
        monkeypatch.setitem(sys.modules, "module_of_slow", module)
        assert make.blocking
        assert EnvMaker("no/Such-v0").target == "no/Such-v0" and not EnvMaker("no/Such-v0").blocking


class TestThreads:
    def test_they_are_kept_from_episode_to_episode(self) -> None:
        async def main() -> None:
            for _ in range(20):
                await play(Slow)
                while pooled._threads._free == []:
                    await asyncio.sleep(0.001)

        asyncio.run(main())
        assert len({ident for _, ident in Where.notes}) == 1

    def test_there_are_as_many_as_run_at_once(self) -> None:
        """Each step waits for the others: one after another, they would give up."""
        together = threading.Barrier(16, timeout=120)

        class Meets(Where):
            def step(self, action: str) -> Any:
                together.wait()
                return super().step(action)

        async def main() -> None:
            meets = EnvMaker("Meets", {"blocking": True}, Meets)
            assert await asyncio.gather(*(play(meets) for _ in range(16))) == [1.0] * 16

        before = threads()
        asyncio.run(main())
        assert threads() - before <= 16
        assert wait_until(lambda: threads() - before <= len(pooled._threads._free))
        asyncio.run(main())
        assert threads() - before <= 16

    def test_no_result_is_lost_where_many_come_at_once(self) -> None:
        """Threads that end together wake their event loop together, and again in the next loop."""

        async def main() -> None:
            assert await asyncio.wait_for(asyncio.gather(*(play(Slow) for _ in range(200))), 120) == [1.0] * 200

        for _ in range(3):
            asyncio.run(main())

    def test_a_hung_one_is_replaced_closes_when_it_comes_back_and_is_used_again(self) -> None:
        release = threading.Event()

        class Hangs(Where):
            def step(self, action: str) -> Any:
                release.wait(600)
                return super().step(action)

        with pytest.raises(TimeoutError, match=r"env\.step .*max_step_s=1 s"):
            asyncio.run(play(Hangs, limit_s=1.0))  # which the calls before the step must not reach
        assert "close" not in noted() and pooled._threads._free == []
        assert asyncio.run(play(Where, limit_s=120)) == 1.0
        assert wait_until(lambda: len(pooled._threads._free) == 1)
        release.set()
        assert wait_until(lambda: len(pooled._threads._free) == 2)
        closes = [ident for what, ident in Where.notes if what == "close"]
        assert len(set(closes)) == 2

    def test_an_unused_one_ends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pooled, "_IDLE_S", 0.05)
        before = threads()
        for _ in range(3):
            asyncio.run(play(Slow))
            assert wait_until(lambda: threads() == before)
        assert pooled._threads._free == []

    @pytest.mark.parametrize("raised", [RuntimeError, KeyboardInterrupt, SystemExit])
    def test_a_close_that_raises_costs_no_thread(self, raised: type[BaseException]) -> None:
        class Raises(Where):
            def close(self) -> None:
                raise raised

        asyncio.run(play(Raises, limit_s=120))
        assert wait_until(lambda: len(pooled._threads._free) == 1)

    def test_a_forked_child_starts_its_own(self) -> None:
        asyncio.run(play(Slow))
        assert wait_until(lambda: len(pooled._threads._free) == 1)
        child = os.fork()
        if not child:
            code = 1
            try:
                code = 0 if asyncio.run(asyncio.wait_for(play(Slow), 120)) == 1.0 else 2
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0


class TestForm:
    def test_calls_before_open(self) -> None:
        runner = EnvRunner(Where, None)
        with pytest.raises(ResetNeededError, match="open"):
            asyncio.run(runner.reset(1, None))
        runner.close()
        runner.close()

    @pytest.mark.parametrize("result", [None, "x", ("x",), ("x", 1), ["x", {}]])
    def test_of_reset(self, result: Any) -> None:
        assert check_reset(("x", {})) == ("x", {})
        with pytest.raises(EnvContractError, match="it must return"):
            check_reset(result)

    def test_of_step(self) -> None:
        assert check_step(("x", np.float32(0.5), np.bool_(True), 0, {})) == ("x", 0.5, True, False, {})
        for result, match in [
            (("x", 1.0, True, False), "it must return"),
            (("x", 1.0, True, False, []), "it must return"),
            (("x", [], True, False, {}), r"the reward is \[\]; it must be a number"),
            (("x", "0.5", True, False, {}), "the reward is '0.5'; it must be a number"),
            (("x", float("inf"), True, False, {}), "the reward is inf; it must be finite"),
            (("x", 10**400, True, False, {}), "the reward is 1000.*; it must be finite"),
            (("x", 1.0, "no", False, {}), "terminated is 'no'"),
            (("x", 1.0, True, None, {}), "truncated is None"),
            (("x", 1.0, True, np.array([0, 1]), {}), "truncated is array"),
        ]:
            with pytest.raises(EnvContractError, match=match):
                check_step(result)


class Quits(NumbersEnv):
    """Calls `sys.exit` when it is made, closed, or both."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at = at
        if at == "make":
            sys.exit(3)

    def close(self) -> None:
        sys.exit(3)


def test_an_environment_that_exits_does_not_end_the_run() -> None:
    check_made(EnvMaker("Quits", {"at": "close"}, Quits))
    close_env(Quits("close"))
    with pytest.raises(EnvContractError, match=r"sys\.exit\(3\)"):
        check_made(EnvMaker("Quits", {"at": "make"}, Quits))


class TakesNothing(NumbersEnv):
    def __init__(self) -> None:
        super().__init__()


def takes_words(*, words: str) -> NumbersEnv:
    return NumbersEnv()


@pytest.mark.parametrize("factory", [TakesNothing, takes_words])
def test_an_environment_without_splits_is_named_with_the_ways_to_pass_none(factory: Any) -> None:
    with pytest.raises(InvalidConfigError, match=r"split='test' .*--split none"):
        check_made(EnvMaker("Mine", {"split": "test"}, factory))
    with pytest.raises(TypeError, match="wrods"):
        check_made(EnvMaker("Mine", {"split": "test", "wrods": 3}, lambda split, words=0: NumbersEnv()))


@pytest.mark.parametrize("at", ["make", "close"])
def test_a_make_or_close_that_hangs_is_named(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    released, found = threading.Event(), list[str]()

    class Hangs(NumbersEnv):
        def __init__(self) -> None:
            super().__init__()
            assert at != "make" or released.wait(120)

        def close(self) -> None:
            assert at != "close" or released.wait(120)

    def warn(message: str, **_: Any) -> None:
        if f"env.{at} of Hangs" in message:  # a busy machine may be slow in the other call too
            found.append(message)
            released.set()

    monkeypatch.setattr(slow_calls, "SLOW_S", 0.1)
    monkeypatch.setattr(slow_calls, "_watcher", slow_calls._Watcher())  # one that sleeps no longer than that
    monkeypatch.setattr(warnings, "warn", warn)
    check_made(EnvMaker("Hangs-v0", {}, Hangs))
    assert found and all("--workers" in message for message in found)


class Sleeps(NumbersEnv):
    """Waits in each step."""

    def step(self, action: str) -> Any:
        time.sleep(0.06)
        return super().step(action)


def play_steps(env: gym.Env[str, str], n: int, limit_s: float | None = None) -> list[str]:
    """Step an environment in a runner; return the warnings."""

    async def play() -> None:
        runner = EnvRunner(env, limit_s)
        await runner.open()
        for seed in range(n):
            await runner.reset(seed, None)
            await runner.step("1")
        runner.close()

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        asyncio.run(play())
    return [str(warning.message) for warning in found]


def test_an_environment_that_waits_without_a_thread_is_named_once() -> None:
    assert play_steps(Sleeps(), 2) == []
    (message,) = play_steps(Sleeps(), 3)
    assert "Sleeps" in message and "blocking = True" in message
    assert play_steps(Sleeps(), 3) == []


def test_an_environment_in_a_thread_or_one_that_seldom_waits_is_not_named() -> None:
    assert play_steps(Sleeps(blocking=True), 4) == []
    assert play_steps(Sleeps(), 4, limit_s=120.0) == []
    assert play_steps(NumbersEnv(), 20) == []
