"""`max_concurrency="auto"`: the search for the best number, and the collector that uses it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

from llm_envs.errors import InvalidConfigError
from llm_envs.policies import ConstantPolicy, with_latency
from llm_envs.policies.scripted import before_turn
from llm_envs.rollout import Collector, SeedSource
from llm_envs.rollout.concurrency import FIRST, HIGHEST, AutoConcurrency, ConcurrencySearch, EpisodeSlots, climb
from llm_envs.testing import ByteCodec, HashingTokenPolicy, NumbersEnv
from llm_envs.tracking.stats import CollectorStats

CODEC = ByteCodec()


def settle(rate: Callable[[int], float], *, room: int = HIGHEST, noise: float = 0.0, n: int = 200) -> list[int]:
    """Return the limits of `n` measurements of an engine that preempts above `room` episodes."""
    random, state, limits = Random(0), ConcurrencySearch(), []
    for _ in range(n):
        measured = rate(state.limit) * random.uniform(1 - noise, 1 + noise)
        state = climb(state, measured, is_preempting=state.limit > room)
        limits.append(state.limit)
    return limits


class TestClimb:
    @pytest.mark.parametrize("noise", [0.0, 0.03])
    @pytest.mark.parametrize("knee", [4, 24, 64, 200])
    def test_the_throughput_is_near_the_highest(self, knee: int, noise: float) -> None:
        # Up to the knee each further episode adds its share; beyond, nothing.
        limits = settle(lambda limit: min(limit, knee), noise=noise)
        assert all(min(limit, knee) >= 0.9 * knee for limit in limits[-100:])
        # A search that does not end at the knee would need the memory for nothing.
        assert sorted(limits)[100] <= 4 * max(knee, FIRST)

    def test_a_throughput_that_always_rises_reaches_the_highest_limit(self) -> None:
        assert settle(float)[-1] == HIGHEST

    def test_a_measured_curve(self) -> None:
        """An engine with a small cache, in benchmarks/auto_concurrency.py: the last doubling brings 8%."""
        widths, rates = [8, 16, 32, 64, 128, 256], [18.3, 29.6, 43.3, 57.9, 70.7, 76.1]
        limits = settle(lambda limit: float(np.interp(limit, widths, rates)), noise=0.01)
        assert all(np.interp(limit, widths, rates) >= 0.95 * rates[-1] for limit in limits[-100:])

    def test_limits_double_at_first(self) -> None:
        assert settle(float, n=4) == [32, 64, 128, 256]

    def test_preemption_lowers_the_limit_at_once(self) -> None:
        state = climb(ConcurrencySearch(limit=64, base=64, base_rate=100.0), 100.0, is_preempting=True)
        assert (state.limit, state.base) == (48, 48)
        assert climb(ConcurrencySearch(limit=1, base=1), 1.0, is_preempting=True).limit == 1

    def test_an_engine_that_preempts_is_rarely_asked_for_more(self) -> None:
        limits = settle(float, room=50)
        assert sum(limit > 50 for limit in limits[-100:]) <= 4
        assert sorted(limits[-100:])[50] >= 30

    def test_a_workload_that_changes_is_followed(self) -> None:
        state = ConcurrencySearch()
        for _ in range(50):
            state = climb(state, min(state.limit, 16))
        assert state.base <= 32
        for _ in range(300):
            state = climb(state, min(state.limit, 128))
        assert state.base >= 115


class TestSlots:
    def test_the_number_changes_while_slots_are_in_use(self) -> None:
        async def scenario() -> list[int]:
            slots, running, seen = EpisodeSlots(2), 0, []
            gates = [asyncio.Event() for _ in range(9)]

            async def hold(gate: asyncio.Event) -> None:
                nonlocal running
                async with slots:
                    running += 1
                    await gate.wait()
                    running -= 1

            async def note(*opened: int) -> None:
                for index in opened:
                    gates[index].set()
                for _ in range(9):
                    await asyncio.sleep(0)
                seen.append(running)

            tasks = [asyncio.create_task(hold(gate)) for gate in gates]
            await note()
            slots.resize(5)
            await note()
            slots.resize(3)
            await note()
            await note(0)
            await note(1)
            await note(2)
            slots.resize(1)
            slots.resize(4)
            await note()
            await note(*range(9))
            await asyncio.gather(*tasks)
            slots.resize(1)
            async with slots:
                assert slots.locked()
            return seen

        assert asyncio.run(scenario()) == [2, 5, 5, 4, 3, 3, 4, 0]


class Clock:
    """A clock that shows the seconds it is told."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Preempting:
    """A policy that says how many turns its engine preempted."""

    def __init__(self) -> None:
        self.n = 0

    async def count_preemptions(self) -> int:
        return self.n


class TestMeasuring:
    def play(self, auto: AutoConcurrency, stats: CollectorStats, clock: Clock, n: int, **kwargs: Any) -> None:
        async def scenario() -> None:
            for _ in range(n):
                clock.now_s += 1 / auto.state.limit
                stats.turns += 1
                stats.written_tokens += 10
                await auto.episode_ended(**{"is_full": True} | kwargs)

        asyncio.run(scenario())

    def test_a_measurement_takes_three_turns_a_slot(self) -> None:
        stats, clock = CollectorStats(), Clock()
        auto = AutoConcurrency(stats, ConstantPolicy(""), clock=clock)
        self.play(auto, stats, clock, 3 * FIRST)
        assert auto.state.limit == FIRST
        self.play(auto, stats, clock, 2)
        assert auto.state.limit == 2 * FIRST
        assert auto.state.base_rate == pytest.approx(10 * FIRST)

    def test_times_with_free_slots_do_not_count(self) -> None:
        stats, clock = CollectorStats(), Clock()
        auto = AutoConcurrency(stats, ConstantPolicy(""), clock=clock)
        for _ in range(20):
            self.play(auto, stats, clock, 2 * FIRST)
            self.play(auto, stats, clock, 1, is_full=False)
        assert auto.state.limit == FIRST

    def test_the_policy_says_whether_its_engine_preempts(self) -> None:
        stats, clock, policy = CollectorStats(), Clock(), Preempting()
        auto = AutoConcurrency(stats, policy, clock=clock)  # type: ignore[arg-type]
        policy.n = 3
        self.play(auto, stats, clock, 4 * FIRST)
        assert auto.state.limit == FIRST * 3 // 4


class TestCollector:
    def test_more_episodes_run_where_each_waits(self) -> None:
        """At 64 they end 213 times a second, which a slow machine can do too."""
        policy = with_latency(ConstantPolicy("2"), 0.3)
        with Collector(NumbersEnv, policy, max_concurrency="auto", progress=False) as collector:
            collector.collect(700)
            assert collector.max_concurrency >= 64

    def test_the_same_episodes_as_with_a_fixed_number(self) -> None:
        policy = HashingTokenPolicy(CODEC, ["1", "2", "3"], latency_s=0.001)

        def collect(**kwargs: Any) -> Any:
            source = SeedSource(NumbersEnv, seed=3)
            with Collector(source, policy, codec=CODEC, progress=False, **kwargs) as collector:
                return collector.collect(60, 4), collector

        (groups, collector), (same, _) = collect(max_concurrency="auto"), collect(max_concurrency=7)
        assert groups == same
        stats = collector.stats
        assert stats.submitted == stats.accepted == 240 and stats.running == 0

    def test_never_more_than_the_limit(self) -> None:
        running, highest = 0, 0
        excess: list[int] = []

        async def note(*_: Any) -> None:
            nonlocal running, highest
            running, highest = running + 1, max(highest, collector.max_concurrency)
            excess.append(running - highest)
            await asyncio.sleep(0.005)
            running -= 1

        with Collector(
            NumbersEnv, before_turn(ConstantPolicy("2"), note), max_concurrency="auto", progress=False
        ) as collector:
            collector.collect(600)
        assert max(excess) == 0

    def test_workers_are_its_highest(self) -> None:
        policy = with_latency(ConstantPolicy("2"), 0.01)
        with Collector(NumbersEnv, policy, max_concurrency="auto", workers=2, progress=False) as collector:
            assert collector.max_concurrency == 2
            collector.collect(20)
            assert collector.max_concurrency <= 2

    @pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "many", None])
    def test_other_values_are_refused(self, wrong: Any) -> None:
        with pytest.raises(InvalidConfigError, match=r"max_concurrency .*'auto'"):
            Collector(NumbersEnv, ConstantPolicy("2"), max_concurrency=wrong)
