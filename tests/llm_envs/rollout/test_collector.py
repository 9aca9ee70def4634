"""The collector: its invariants, order, determinism, statistics, and what an interrupt leaves."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from llm_envs.errors import InvalidConfigError, UnknownTaskError
from llm_envs.policies import ConstantPolicy, OraclePolicy, RandomPolicy, with_latency
from llm_envs.policies.base import Policy
from llm_envs.policies.scripted import before_turn
from llm_envs.rollout import (
    Collector,
    CollectorStats,
    EnvChoice,
    EpisodeSpec,
    RolloutLimits,
    SeedSource,
    TrajectoryWriter,
    derive_seed,
    group_specs,
    play_group,
    play_member,
    read_trajectories,
)
from llm_envs.rollout.group import check_group
from llm_envs.testing import ByteCodec, HashingTokenPolicy, NumbersEnv, with_failures
from llm_envs.types import SamplingParams, StopReason, Trajectory, TrajectoryGroup, validate_batch

CODEC = ByteCodec()
DIGITS = [str(digit) for digit in range(10)]


def flatten(groups: list[TrajectoryGroup]) -> list[Trajectory]:
    return [trajectory for group in groups for trajectory in group]


def check_books(stats: CollectorStats) -> None:
    assert stats.running + stats.partials + stats.accepted + stats.dropped == stats.submitted


def together(policy: HashingTokenPolicy, n: int) -> Policy:
    """Return the policy, whose first turns wait until there are `n` of them."""
    arrived, all_here = [], asyncio.Event()

    async def wait(_: Random) -> None:
        arrived.append(1)
        if len(arrived) == n:
            all_here.set()
        await asyncio.wait_for(all_here.wait(), 120)

    return before_turn(policy, wait)


class TestSource:
    def test_seeds_are_pinned(self) -> None:
        # blake2b of the parts joined by the unit separator: a change would silently change every run.
        assert derive_seed(0, "reset", 1) == 2394534693844723
        assert derive_seed("a", "b") != derive_seed("ab", "") != derive_seed("", "ab")
        assert 0 <= derive_seed(1) < 2**53

    def test_an_item_depends_on_seed_and_index_alone(self) -> None:
        one, two = SeedSource("a/A-v0", seed=5), SeedSource("a/A-v0", seed=5)
        one.take(3)
        assert list(one.take(2)) == [two.spec(3), two.spec(4)]
        assert two.spec(3) != SeedSource("a/A-v0", seed=6).spec(3)
        assert len({two.spec(index).seed for index in range(1000)}) == 1000

    def test_mixtures_follow_their_weights(self) -> None:
        source = SeedSource({"a/A-v0": 3.0, "b/B-v0": 1.0}, seed=1)
        counts = Counter(spec.env_id for spec in source.take(4000))
        assert abs(counts["a/A-v0"] - 3000) < 120  # 4.4 standard deviations

    def test_kwargs_of_a_choice_win(self) -> None:
        source = SeedSource(
            [EnvChoice("a/A-v0", kwargs={"difficulty": "hard"})], env_kwargs={"split": "test", "difficulty": "easy"}
        )
        assert source.spec(0).env_kwargs == {"split": "test", "difficulty": "hard"}

    def test_state_resumes_and_another_mixture_is_refused(self) -> None:
        source = SeedSource(["a/A-v0", ("b/B-v0", 2.0)], seed=1)
        source.take(7)
        other = SeedSource(["a/A-v0", ("b/B-v0", 2.0)], seed=1)
        other.load_state_dict(source.state_dict())
        assert list(other.take(1)) == list(source.take(1)) == [source.spec(7)]
        with pytest.raises(InvalidConfigError, match="mixture"):
            SeedSource("a/A-v0", seed=1).load_state_dict(source.state_dict())
        with pytest.raises(InvalidConfigError, match="seed"):
            SeedSource(["a/A-v0", ("b/B-v0", 2.0)], seed=2).load_state_dict(source.state_dict())

    @pytest.mark.parametrize("envs", [[], [("a", -1.0)], [3]])
    def test_bad_mixtures_are_refused(self, envs: Any) -> None:
        with pytest.raises(InvalidConfigError):
            SeedSource(envs)


class TestGroups:
    def test_members_share_the_seed_and_come_in_order(self) -> None:
        groups = Collector(NumbersEnv, RandomPolicy(DIGITS), env_kwargs={"n_turns": 3}, seed=1).collect(5, 4)
        assert [group.group_id for group in groups] == [f"1-{index:06d}" for index in range(5)]
        for group in groups:
            assert [t.member for t in group] == [0, 1, 2, 3]
            assert {t.seed for t in group} == {group.seed}
            assert len({t.messages[1].content for t in group}) == 1  # one problem
        assert len({tuple(m.content for m in t.messages) for t in groups[0]}) == 4  # played four ways

    def test_a_failure_that_passes_leaves_no_mark_but_its_count(self) -> None:
        failures = iter([True, True, False])

        async def fail(random: Random) -> None:
            if next(failures, False):
                raise RuntimeError("down")

        def play(policy: Any) -> Trajectory:
            collector = Collector(NumbersEnv, policy, codec=CODEC)
            (group,) = collector.collect(1)
            return group.trajectories[0]

        policy = HashingTokenPolicy(CODEC, DIGITS)
        retried, plain = play(before_turn(policy, fail)), play(policy)
        assert retried.metadata["retries"] == 2 and "retries" not in plain.metadata
        assert retried.rows[0].ids.tolist() == plain.rows[0].ids.tolist()
        assert retried.status == "ok"

    def test_a_lasting_failure_is_tried_three_times_and_reported(self) -> None:
        calls = []

        async def fail(random: Random) -> None:
            calls.append(1)
            raise RuntimeError("down")

        collector = Collector(NumbersEnv, before_turn(ConstantPolicy("1"), fail))
        (group,) = collector.collect(1)
        assert len(calls) == 3
        assert group.scored == () and group.trajectories[0].metadata["retries"] == 2
        assert collector.stats.errored == 1 and collector.stats.retries == 2
        assert "1 errored (1 x policy: RuntimeError: down)" in collector.stats.summary()

    def test_a_cancellation_that_leaks_out_of_a_policy_is_a_failure(self) -> None:
        async def leak(random: Random) -> None:
            raise asyncio.CancelledError

        collector = Collector(NumbersEnv, before_turn(OraclePolicy(), leak), max_retries=0)
        (group,) = collector.collect(1)
        assert group.trajectories[0].error is not None
        assert group.trajectories[0].error.kind == "CancelledError"
        check_books(collector.stats)

    def test_a_group_by_itself(self) -> None:
        async def play(spec: EpisodeSpec) -> Trajectory:
            from llm_envs.rollout import play_episode

            return await play_episode(NumbersEnv, spec, OraclePolicy())

        specs = group_specs(EpisodeSpec("N", seed=3, group_id="x"), 3)
        group = asyncio.run(play_group(specs[::-1], play))
        assert [t.member for t in group] == [0, 1, 2] and group.group_id == "x"
        assert asyncio.run(play_member(specs[1], play)) == group.trajectories[1]

    @pytest.mark.parametrize(
        "specs",
        [
            [],
            [EpisodeSpec("N", seed=1), EpisodeSpec("N", seed=2, member=1)],
            [EpisodeSpec("N", group_id="a"), EpisodeSpec("N", group_id="b", member=1)],
            [EpisodeSpec("N"), EpisodeSpec("N")],
        ],
    )
    def test_what_is_no_group_is_refused(self, specs: list[EpisodeSpec]) -> None:
        with pytest.raises(InvalidConfigError):
            check_group(specs)

    def test_group_size_0_is_refused(self) -> None:
        with pytest.raises(InvalidConfigError, match="group_size"):
            Collector(NumbersEnv, OraclePolicy()).collect(1, 0)


class TestOrder:
    @pytest.mark.parametrize("seed", [0, 1])
    def test_same_seed_same_trajectories_at_any_concurrency(self, seed: int) -> None:
        def collected(concurrency: int) -> list[str]:
            policy = with_failures(HashingTokenPolicy(CODEC, DIGITS), 0.05)
            jittered = with_latency(policy, 0.002, jitter=1.0)
            collector = Collector(
                NumbersEnv,
                jittered,
                codec=CODEC,
                env_kwargs={"n_turns": 3},
                seed=seed,
                max_concurrency=concurrency,
                limits=RolloutLimits(max_turns=2),
            )
            trajectories = flatten(collector.collect(12, 5))
            assert validate_batch(trajectories) == []
            return [t.to_json(timings=False) for t in trajectories]

        at_1, at_7, at_64 = collected(1), collected(7), collected(64)
        assert at_1 == at_7 == at_64
        assert len(set(at_1)) == 60

    def test_concurrency_is_used_and_never_exceeded(self) -> None:
        policy = HashingTokenPolicy(CODEC, DIGITS, latency_s=0.005)
        Collector(NumbersEnv, together(policy, 7), codec=CODEC, max_concurrency=7).collect(40)
        assert policy.most_running == 7

    def test_no_barrier_a_slow_episode_holds_nobody_up(self) -> None:
        finished: list[int] = []

        async def first_is_slow(random: Random) -> None:
            begun.append(1)
            await (asyncio.wait_for(others_finished.wait(), 120) if len(begun) == 1 else asyncio.sleep(0.001))

        def note(trajectory: Trajectory) -> None:
            finished.append(int(trajectory.group_id.split("-")[1]))
            if len(finished) == 19:
                others_finished.set()

        begun: list[int] = []
        others_finished = asyncio.Event()
        collector = Collector(
            NumbersEnv, before_turn(OraclePolicy(), first_is_slow), max_concurrency=2, on_trajectory=note
        )
        groups = collector.collect(20)
        assert finished == [*range(1, 20), 0]  # the other slot played all the others meanwhile
        assert [group.group_id for group in groups] == [f"0-{index:06d}" for index in range(20)]

    def test_group_ids_are_unique_across_calls(self) -> None:
        with Collector(NumbersEnv, OraclePolicy()) as collector:
            groups = collector.collect(3) + collector.collect(2) + collector.collect(0)
        assert len({group.group_id for group in groups}) == len(groups) == 5
        assert len({group.seed for group in groups}) == 5

    def test_explicit_groups_come_back_in_their_order(self) -> None:
        specs = [group_specs(EpisodeSpec("NumbersEnv", {}, seed, f"step3-{seed}"), 2) for seed in (5, 3, 9)]
        collector = Collector(NumbersEnv, OraclePolicy())
        groups = asyncio.run(collector.aplay(specs))
        assert [(group.seed, group.group_id, len(group)) for group in groups] == [
            (5, "step3-5", 2),
            (3, "step3-3", 2),
            (9, "step3-9", 2),
        ]
        with pytest.raises(InvalidConfigError, match="step3-5"):
            asyncio.run(collector.aplay([specs[0], specs[0]]))

    def test_a_mixture_of_registered_environments(self) -> None:
        for name, turns in (("test/NumbersOne-v0", 1), ("test/NumbersTwo-v0", 2)):
            if name not in gym.registry:
                gym.register(name, entry_point="llm_envs.testing:NumbersEnv", kwargs={"n_turns": turns})
        collector = Collector({"test/NumbersOne-v0": 1, "test/NumbersTwo-v0": 1}, OraclePolicy())
        trajectories = flatten(collector.collect(60))
        turns_by_id = {t.env_id: len(t.turns) for t in trajectories}
        assert turns_by_id == {"test/NumbersOne-v0": 1, "test/NumbersTwo-v0": 2}
        assert all(t.is_success for t in trajectories)


class TestInvariants:
    def test_what_a_callback_raises_ends_the_call_and_leaves_nothing_running(self) -> None:
        def full(trajectory: Trajectory) -> None:
            if trajectory.group_id.endswith("3"):
                raise OSError("disk full")

        policy = HashingTokenPolicy(CODEC, DIGITS, latency_s=0.002)
        collector = Collector(NumbersEnv, policy, codec=CODEC, max_concurrency=4, on_trajectory=full)
        with pytest.raises(OSError, match="disk full"):
            collector.collect(50)
        check_books(collector.stats)
        assert collector.stats.running == 0 and policy.running == 0 and collector.stats.dropped >= 1
        assert collector.stats.submitted < 50

    def test_a_failing_progress_function_keeps_the_books(self) -> None:
        def show(stats: CollectorStats, total: int) -> None:
            raise ZeroDivisionError

        collector = Collector(NumbersEnv, OraclePolicy(), max_concurrency=2, progress=show)
        with pytest.raises(ZeroDivisionError):
            collector.collect(5)
        check_books(collector.stats)
        assert collector.stats.running == 0 and collector.stats.accepted >= 1

    def test_calls_side_by_side_share_the_limit(self) -> None:
        policy = HashingTokenPolicy(CODEC, DIGITS, latency_s=0.002)
        collector = Collector(NumbersEnv, together(policy, 5), codec=CODEC, max_concurrency=5)

        async def main() -> list[list[TrajectoryGroup]]:
            return await asyncio.gather(collector.acollect(20), collector.acollect(20))

        first, second = asyncio.run(main())
        assert policy.most_running == 5
        assert {g.group_id for g in first}.isdisjoint(g.group_id for g in second)
        check_books(collector.stats)


class TestInterrupt:
    def interrupt_in_the_middle(self, collector: Collector) -> None:
        """Send this process a Ctrl-C when the collector, which is about to begin, has finished its first episodes."""

        def interrupt() -> None:
            while collector.stats.accepted < 5:
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt, daemon=True).start()

    def check_after(self, collector: Collector, policy: HashingTokenPolicy, path: Path) -> None:
        check_books(collector.stats)
        assert policy.running == 0 and collector.stats.running == 0 and collector.stats.dropped > 0
        saved = read_trajectories(path)
        assert len(saved) == collector.stats.accepted > 0
        assert all(t.status == "ok" for t in saved)

    def test_ctrl_c_leaves_nothing_running_and_everything_finished_saved(self, tmp_path: Path) -> None:
        policy = HashingTokenPolicy(CODEC, DIGITS, latency_s=0.02)
        with TrajectoryWriter(tmp_path / "run") as writer:
            collector = Collector(NumbersEnv, policy, codec=CODEC, max_concurrency=4, on_trajectory=writer.write)
            self.interrupt_in_the_middle(collector)
            with pytest.raises(KeyboardInterrupt):
                collector.collect(1_000_000)
        self.check_after(collector, policy, tmp_path / "run")

    def test_ctrl_c_in_a_notebook(self, tmp_path: Path) -> None:
        policy = HashingTokenPolicy(CODEC, DIGITS, latency_s=0.02)
        with TrajectoryWriter(tmp_path / "run") as writer:
            collector = Collector(NumbersEnv, policy, codec=CODEC, max_concurrency=4, on_trajectory=writer.write)

            async def cell() -> None:
                self.interrupt_in_the_middle(collector)
                with pytest.raises(KeyboardInterrupt):
                    collector.collect(1_000_000)

            # A notebook's loop leaves Python's own interrupt handler in place, unlike asyncio.run.
            loop = asyncio.new_event_loop()
            loop.run_until_complete(cell())
            loop.close()
        self.check_after(collector, policy, tmp_path / "run")

    def test_it_goes_on_after_an_interrupt(self) -> None:
        policy = HashingTokenPolicy(CODEC, DIGITS, latency_s=0.005)
        collector = Collector(NumbersEnv, policy, codec=CODEC)
        self.interrupt_in_the_middle(collector)
        with pytest.raises(KeyboardInterrupt):
            collector.collect(1_000_000)
        assert len(collector.collect(3)) == 3


class TestUse:
    def test_from_a_running_loop_and_from_none(self) -> None:
        async def cell(collector: Collector) -> list[TrajectoryGroup]:
            return collector.collect(2)

        with Collector(NumbersEnv, with_latency(OraclePolicy(), 0.001)) as collector:
            assert len(collector.collect(2)) == 2
            assert len(asyncio.run(cell(collector))) == 2
            assert len(collector.collect(2)) == 2
        assert collector.stats.accepted == 6

    def test_one_loop_from_call_to_call(self) -> None:
        loops = set()

        async def note(random: Random) -> None:
            loops.add(asyncio.get_running_loop())

        with Collector(NumbersEnv, before_turn(OraclePolicy(), note)) as collector:
            collector.collect(2)
            collector.collect(2)
        assert len(loops) == 1

    def test_an_error_reaches_the_notebook(self) -> None:
        async def cell() -> None:
            Collector(NumbersEnv, OraclePolicy()).collect(1, 0)

        with pytest.raises(InvalidConfigError):
            asyncio.run(cell())

    def test_wrong_settings_are_said_at_once(self) -> None:
        with pytest.raises(UnknownTaskError, match="nobody/Made-v0"):
            Collector("nobody/Made-v0", OraclePolicy())
        with pytest.raises(TypeError, match="colour"):
            Collector(NumbersEnv, OraclePolicy(), env_kwargs={"colour": "red"})
        with pytest.raises(InvalidConfigError, match="max_concurrency"):
            Collector(NumbersEnv, OraclePolicy(), max_concurrency=0)
        with pytest.raises(InvalidConfigError, match="codec="):
            Collector(NumbersEnv, HashingTokenPolicy(CODEC, DIGITS))

    def test_statistics_by_hand(self) -> None:
        # Three digits 0, 1, 2 asked one each; the policy always says 1.
        specs = [
            [EpisodeSpec("NumbersEnv", {}, 0, f"g{digit}", options={"problem": {"digits": [digit]}})]
            for digit in range(3)
        ]
        seen: list[tuple[int, int]] = []
        collector = Collector(
            NumbersEnv,
            HashingTokenPolicy(CODEC, ["1"]),
            codec=CODEC,
            progress=lambda stats, total: seen.append((stats.accepted, total)),
        )
        started = time.perf_counter()
        asyncio.run(collector.aplay(specs))
        wall_s, stats = time.perf_counter() - started, collector.stats
        assert (stats.accepted, stats.successes, stats.reward, stats.turns) == (3, 1, 1.0, 3)
        assert (stats.sampled_tokens, stats.tokens) == (6, 3 * 20)
        assert stats.stop_reasons == {StopReason.TERMINATED: 3}
        assert seen == [(1, 3), (2, 3), (3, 3)]
        assert "success 33.3%" in stats.summary() and "terminated=3" in stats.summary()
        assert 0 < stats.elapsed_s == stats.clock.earlier_s <= wall_s

    def test_weight_versions_are_those_of_the_call(self) -> None:
        policy = HashingTokenPolicy(CODEC, DIGITS)
        collector = Collector(NumbersEnv, policy, codec=CODEC)
        first = collector.collect(1)[0].trajectories[0]
        policy.update_weights([], version=4)
        second = collector.collect(1)[0].trajectories[0]
        assert [t.turns[0].weight_versions[0].version for t in (first, second)] == [0, 4]

    def test_memory_per_token(self) -> None:
        policy = HashingTokenPolicy(CODEC, ["x" * 999])
        (group,) = Collector(NumbersEnv, policy, codec=CODEC, sampling=SamplingParams(max_new_tokens=1000)).collect(1)
        (row,) = group.trajectories[0].rows
        assert len(row) > 1000
        assert sum(np.asarray(a).nbytes for a in (row.ids, row.mask, row.logps)) / len(row) == 9

    def test_a_hung_environment_does_not_hold_the_run_up(self) -> None:
        released = threading.Event()

        class Sometimes(NumbersEnv):
            def step(self, action: str) -> Any:
                if self.digits[0] == 7:
                    released.wait(600)
                return super().step(action)

        limits = RolloutLimits(max_step_s=1.0)  # which the others must not reach
        collector = Collector(Sometimes, OraclePolicy(), limits=limits, max_concurrency=8, max_retries=0)
        started = time.perf_counter()
        trajectories = flatten(collector.collect(30))
        hung = [t for t in trajectories if t.error is not None]
        assert len(hung) == sum("Say 7" in t.messages[1].content for t in trajectories) > 0
        assert time.perf_counter() - started < 300
        released.set()


def test_arguments_that_cannot_be_recorded_are_refused_at_construction() -> None:
    with pytest.raises(InvalidConfigError, match=r"env_kwargs.*JSON"):
        Collector(lambda **kwargs: NumbersEnv(), ConstantPolicy("1"), env_kwargs={"x": object()})
