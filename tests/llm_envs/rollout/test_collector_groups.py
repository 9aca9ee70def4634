"""The collector's groups: filters and refills, fail-fast, over-sampling with partials, streams; and 2,000 schedules."""

from __future__ import annotations

import asyncio
import contextlib
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_envs.errors import InvalidConfigError, JudgeError, RolloutFailedError, counted
from llm_envs.policies import OraclePolicy, with_latency
from llm_envs.rollout import (
    Collector,
    Curriculum,
    EpisodeSpec,
    PromptSource,
    PromptTask,
    SeedSource,
    TrajectoryWriter,
    finished,
    group_specs,
)
from llm_envs.rollout.filters import create_min_scored_filter, create_selection, create_spread_filter, mean_reward
from llm_envs.rollout.group_tracker import GroupTracker, groups_to_admit
from llm_envs.rollout.staleness import admission_capacity
from llm_envs.testing import ByteCodec, HashingTokenPolicy, NumbersEnv, with_failures
from llm_envs.types import Trajectory, TrajectoryGroup, validate_batch

CODEC = ByteCodec()
DIGITS = [str(digit) for digit in range(10)]


def make(policy=None, env=NumbersEnv, **settings) -> Collector:
    policy = policy or HashingTokenPolicy(CODEC, DIGITS)
    return Collector(env, policy, codec=CODEC, progress=False, **settings)


def check_books(collector: Collector) -> None:
    stats = collector.stats
    assert stats.running + stats.partials + stats.accepted + stats.dropped == stats.submitted


def right_digit(prompt_ids, random):
    return CODEC.decode_reply(prompt_ids).rsplit("Say ", 1)[1][0]


def coin(prompt_ids, random):
    """Right every other time, as the turn's seed says."""
    return right_digit(prompt_ids, random) if random.random() < 0.5 else "x"


# Decisions


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ((4, 0, 0), 4),
        ((4, 1, 3), 0),
        ((4, 1, 2), 1),
        ((4, 4, 0), 0),
        ((4, 0, 0, 1.5), 6),
        ((4, 2, 0, 1.5), 3),
        ((3, 0, 9, 2.0), 0),
    ],
)
def test_how_many_groups_begin(state, expected):
    assert groups_to_admit(*state) == expected


def test_the_book_hands_out_in_order_and_pins_versions():
    supply = iter([group_specs(EpisodeSpec("e", group_id=str(i)), 2) for i in range(3)])
    tracker = GroupTracker(supply)
    assert tracker.next_episode() is None
    tracker.admit(2)
    first, second = tracker.next_episode(version=5), tracker.next_episode(version=6)
    assert (first.index, first.spec.member, second.index, second.spec.member) == (0, 0, 0, 1)
    assert tracker.version_of(first) == tracker.version_of(second) == 5  # a group has one version
    third = tracker.next_episode(version=6)
    assert third.index == 1 and tracker.version_of(third) == 6
    assert tracker.n_open == 2
    tracker.abandon(third)
    assert tracker.next_episode() is None and tracker.n_open == 2
    tracker.admit(9)
    assert tracker.next_episode().index == 2 and tracker.next_episode().index == 2
    assert tracker.next_episode() is None and tracker.n_open == 3  # the supply has ended


# Filters


def test_groups_without_spread_are_replaced_in_the_order_of_submission():
    collector = make(HashingTokenPolicy(CODEC, coin), group_filter=create_spread_filter(), max_concurrency=5)
    groups = collector.collect(6, 4)
    assert len(groups) == 6
    assert all(len({t.reward for t in group.trajectories}) > 1 for group in groups)
    everything = make(HashingTokenPolicy(CODEC, coin)).collect(20, 4)
    kept = [group for group in everything if create_spread_filter()(group)]
    assert groups == kept[:6]  # no group that passes is skipped, however long it took
    assert collector.stats.rejected_groups == [g.group_id for g in everything].index(groups[-1].group_id) + 1 - 6
    assert collector.stats.submitted == 4 * (6 + collector.stats.rejected_groups)
    assert counted(collector.stats.rejected_groups, "group") + " filtered out" in collector.stats.summary()
    check_books(collector)


@pytest.mark.parametrize("concurrency", [1, 7, 64])
def test_filtered_groups_are_the_same_at_any_concurrency(concurrency):
    policy = with_latency(HashingTokenPolicy(CODEC, coin), 0.001, jitter=1.0)
    groups = make(policy, group_filter=create_spread_filter(), max_concurrency=concurrency).collect(5, 2)
    again = make(HashingTokenPolicy(CODEC, coin), group_filter=create_spread_filter()).collect(5, 2)
    assert [t.to_json(timings=False) for g in groups for t in g] == [t.to_json(timings=False) for g in again for t in g]


@pytest.mark.parametrize("concurrency", [1, 7, 64])
def test_given_groups_that_a_filter_drops_are_replaced_by_the_refills_in_order(concurrency):
    def groups(name, n):
        return [group_specs(EpisodeSpec("NumbersEnv", seed=seed, group_id=f"{name}{seed}"), 2) for seed in range(n)]

    policy = HashingTokenPolicy(CODEC, coin)
    with make(policy, max_concurrency=concurrency) as collector:
        played = collector.play(groups("a", 12) + groups("b", 30))
    with make(policy, max_concurrency=concurrency) as collector:
        kept = collector.play(groups("a", 12), group_filter=create_spread_filter(), refills=groups("b", 30))
        check_books(collector)
    passing = [group for group in played if create_spread_filter()(group)]
    assert [group.group_id for group in kept] == [group.group_id for group in passing][:12]
    assert kept == passing[:12] and any(group.group_id.startswith("b") for group in kept)
    with make(policy, max_concurrency=concurrency) as collector:
        some = collector.play(groups("a", 12), group_filter=create_spread_filter(), refills=groups("b", 2))
    assert some == [group for group in played[:14] if create_spread_filter()(group)] and len(some) < 12


def test_a_filter_that_nothing_passes_stops_with_a_message():
    collector = make(HashingTokenPolicy(CODEC, right_digit), group_filter=create_spread_filter(), max_refills=3)
    with pytest.raises(RolloutFailedError, match=r"6 groups .*0 of the 2 .*: 1, 1"):
        collector.collect(2, 2)
    assert collector.stats.running == 0
    check_books(collector)


def test_a_stream_that_nothing_passes_stops_with_a_message():
    collector = make(group_filter=lambda group: False, max_refills=2)
    with pytest.raises(RolloutFailedError, match=r"6 groups .*max_refills=2, 3 open"):
        list(collector.stream(2, max_open=3))
    assert collector.stats.running == 0
    check_books(collector)
    failing = make(with_failures(HashingTokenPolicy(CODEC, DIGITS), 1.0), fail_fast=True, max_refills=2, max_retries=0)
    with pytest.raises(RolloutFailedError, match=r"errored.*In total") as caught:
        list(failing.stream(2, max_open=3))
    assert "success" not in str(caught.value)  # nothing was scored: there is no share of it


def test_what_a_filter_raises_ends_the_call():
    def broken(group):
        raise KeyError("no such part")

    collector = make(group_filter=broken)
    with pytest.raises(KeyError, match="no such part"):
        collector.collect(2, 2)
    assert collector.stats.running == 0 and collector.stats.accepted >= 2


def test_fail_fast_begins_no_further_member_and_replaces_the_group():
    policy = with_failures(HashingTokenPolicy(CODEC, DIGITS), 0.3)
    collector = make(policy, fail_fast=True, max_retries=0, max_concurrency=1)
    groups = collector.collect(5, 4)
    assert len(groups) == 5 and all(t.status == "ok" for g in groups for t in g)
    assert all(len(g.trajectories) == 4 for g in groups)
    stats = collector.stats
    assert stats.rejected_groups > 0
    assert stats.submitted < 4 * (5 + stats.rejected_groups)  # some members were never begun
    check_books(collector)


def test_the_minimum_viable_group():
    policy = with_failures(HashingTokenPolicy(CODEC, DIGITS), 0.4)
    groups = make(policy, max_retries=0, group_filter=create_min_scored_filter(3)).collect(8, 4)
    scored = [sum(t.status == "ok" for t in group.trajectories) for group in groups]
    assert min(scored) == 3 and max(scored) == 4  # what failed is still there, and no zero
    assert all(t.is_success is None for g in groups for t in g if t.status == "errored")


class Unjudged(NumbersEnv):
    """What judges it has no verdict for some digits."""

    def step(self, action):
        if self.digits[0] in (3, 5):
            raise JudgeError("no verdict")
        return super().step(action)


class Undecided(NumbersEnv):
    """What judges it has no verdict for a wrong reply, where one of some digits is asked for."""

    hard_digits = range(10)

    def step(self, action):
        if action == "x" and self.digits[self.turn] in self.hard_digits:
            raise JudgeError("no verdict")
        return super().step(action)


class SeldomUndecided(Undecided):
    hard_digits = range(3)


def test_a_judge_that_fails_is_counted_and_not_asked_again(tmp_path):
    policy = HashingTokenPolicy(CODEC, right_digit)
    with TrajectoryWriter(tmp_path / "run") as writer:
        collector = make(policy, Unjudged, on_trajectory=writer.write)
        groups = collector.collect(20, 2)
        writer.compact()
        done = finished(tmp_path / "run")
    stats, everything = collector.stats, [t for g in groups for t in g]
    unjudged = [t for t in everything if t.status == "unscored"]
    assert len(unjudged) == stats.unscored > 0 and stats.errored == stats.retries == 0
    (reason,) = stats.why_unscored
    assert reason.startswith("env.step: JudgeError: ") and stats.why_unscored[reason] == stats.unscored
    assert f"{stats.unscored} unscored ({stats.unscored} x {reason})" in stats.summary()
    assert len(policy.calls) == 40  # one turn each: none was played anew
    assert stats.scored == 40 - stats.unscored and stats.reward == stats.scored  # no zero among them
    check_books(collector)
    # A resumed run has them played anew: there may be a judge by then.
    assert done == {(t.group_id, t.member) for t in everything} - {(t.group_id, t.member) for t in unjudged}


@pytest.mark.parametrize("rule", ["as they are", "fail-fast", "minimum-viable"])
def test_an_unjudged_member_is_treated_as_an_errored_one(rule):
    settings = {
        "fail-fast": {"fail_fast": True, "max_refills": 99},
        "minimum-viable": {"group_filter": create_min_scored_filter(3)},
    }
    collector = make(HashingTokenPolicy(CODEC, coin), Undecided, max_concurrency=1, **settings.get(rule, {}))
    groups = collector.collect(8, 4)
    n_scored = [len(group.scored) for group in groups]
    assert all(len(group) == 4 for group in groups)
    assert all(t.reward == 1 for group in groups for t in group.scored)
    if rule == "as they are":
        assert min(n_scored) < 3 and collector.stats.rejected_groups == 0
    elif rule == "fail-fast":
        assert set(n_scored) == {4} and collector.stats.submitted < 4 * (8 + collector.stats.rejected_groups)
    else:
        assert set(n_scored) == {3, 4}
    # What a trainer makes of a group: a baseline over the scored ones alone.
    spread = create_spread_filter()
    assert not any(spread(group) for group in groups)  # an unjudged member that counted as 0 would be a spread
    check_books(collector)


def test_a_failing_judge_and_workers():
    with make(HashingTokenPolicy(CODEC, right_digit), Unjudged, workers=2) as collector:
        remote = collector.collect(12)
    assert remote == make(HashingTokenPolicy(CODEC, right_digit), Unjudged).collect(12)
    assert collector.stats.unscored > 0 and collector.stats.errored == 0


# Selection


def test_a_selection_keeps_the_best_of_more_in_the_order_of_submission():
    policy = HashingTokenPolicy(CODEC, coin)
    collector = make(policy, select_fn=create_selection(mean_reward), select_from=2.5)
    kept = collector.collect(4, 3)
    candidates = make(policy).collect(10, 3)
    # Worked out by another way than sorting: nothing that was left has more than the least that was kept, and of
    # equals the earlier ones are kept.
    rewards = {group.group_id: sum(t.reward for t in group) for group in candidates}
    ids = [group.group_id for group in candidates]
    best = sorted(ids, key=lambda group_id: (-rewards[group_id], ids.index(group_id)))[:4]
    assert [group.group_id for group in kept] == [group_id for group_id in ids if group_id in best]
    assert kept == [group for group in candidates if group.group_id in best]
    assert collector.stats.rejected_groups == 6 and collector.stats.submitted == 30
    again = collector.collect(4, 3)  # goes on behind all that were candidates
    assert {group.group_id for group in again}.isdisjoint(ids)


def test_a_selection_sees_what_passed_the_filter_and_goes_with_over_sampling():
    seen = []

    def first(groups, n_wanted):
        seen.extend(groups)
        return groups[:n_wanted]

    settings = {"select_fn": first, "group_filter": create_spread_filter()}
    assert len(make(HashingTokenPolicy(CODEC, coin), **settings).collect(3, 4)) == 3
    assert len(seen) == 6 and all(create_spread_filter()(group) for group in seen)
    with make(HashingTokenPolicy(CODEC, coin), over_sampling=1.5, **settings) as collector:
        assert len(collector.collect(3, 4)) == 3
    assert len(seen) == 12


@pytest.mark.parametrize(
    "wrong",
    [
        lambda groups, n: groups,
        lambda groups, n: [groups[0]] * n,
        lambda groups, n: make().collect(n),
        lambda groups, n: None,
        lambda groups, n: [1, 2],
    ],
)
def test_a_selection_that_returns_something_else_is_refused(wrong):
    collector = make(select_fn=wrong, seed=1)
    with pytest.raises(InvalidConfigError, match=r"select_fn .* 2 of 4"):
        collector.collect(2)
    with pytest.raises(InvalidConfigError, match=r"select_from=0\.5"):
        make(select_fn=wrong, select_from=0.5)
    with pytest.raises(InvalidConfigError, match=r"over_sampling=inf"):
        make(over_sampling=float("inf"))
    with pytest.raises(InvalidConfigError, match="select_fn"):
        next(collector.stream())


# Curricula


def learning(**settings):
    curriculum = Curriculum(["0", "1", "2"], kwarg="split", min_episodes=6, window=12, floor=0.1)
    policy = with_latency(HashingTokenPolicy(CODEC, right_digit), 0.002, jitter=1.0)
    return make(policy, SeedSource(NumbersEnv, curriculum=curriculum), **settings), curriculum


@pytest.mark.parametrize("concurrency", [1, 5, 64])
def test_a_curriculum_learns_from_each_call_whatever_the_concurrency(concurrency):
    collector, curriculum = learning(max_concurrency=concurrency)
    levels, n_open = [], []
    for _ in range(4):
        groups = collector.collect(6, 2)
        levels.append([group.trajectories[0].env_kwargs["split"] for group in groups])
        n_open.append(curriculum.n_open)
    assert levels[0] == ["0"] * 6 and n_open == [2, 3, 3, 3]  # mastered, so the next opens; not within a call
    assert "1" in levels[1] and "2" not in levels[1] and "2" in levels[2]
    other, _ = learning(max_concurrency=3)
    assert [[g.trajectories[0].env_kwargs["split"] for g in other.collect(6, 2)] for _ in range(4)] == levels


@pytest.mark.parametrize("concurrency", [1, 5, 64])
def test_a_curriculum_learns_along_a_stream(concurrency):
    collector, curriculum = learning(max_concurrency=concurrency)
    levels = [g.trajectories[0].env_kwargs["split"] for g in collector.stream(2, n_groups=30, max_open=4)]
    # Three groups of two are six episodes; with four groups open, the seventh begins when the third has been taken.
    assert levels[:6] == ["0"] * 6 and set(levels[6:]) == {"0", "1", "2"} and curriculum.n_open == 3
    other, _ = learning(max_concurrency=2)
    assert levels == [g.trajectories[0].env_kwargs["split"] for g in other.stream(2, n_groups=30, max_open=4)]


def test_a_curriculum_learns_from_groups_that_the_filter_drops_too():
    """Else a level that is always solved, which no spread filter lets through, would never count as mastered."""
    curriculum = Curriculum(["0", "1"], kwarg="split", min_episodes=4)
    source = SeedSource(NumbersEnv, curriculum=curriculum)

    def mostly_right(prompt_ids, random):
        return right_digit(prompt_ids, random) if random.random() < 0.9 else "x"

    collector = make(HashingTokenPolicy(CODEC, mostly_right), source, group_filter=create_spread_filter())
    groups = collector.collect(3, 4)
    assert curriculum.success["0"] == collector.stats.successes / collector.stats.accepted > 0.8
    assert sum(t.is_success for g in groups for t in g) / 12 < 0.8 and curriculum.n_open == 2
    before = curriculum.state_dict()
    collector.play([group_specs(EpisodeSpec("NumbersEnv", {"split": "0"}, group_id="given"), 4)])
    assert curriculum.state_dict() == before  # given groups are not the source's


# Over-sampling


class SlowSome(HashingTokenPolicy):
    """Takes long over the groups whose number is even."""

    def latency_of(self, prompt_ids, session):
        number = int(session.split("/")[0].split("-")[1])
        return 0.2 if number % 2 == 0 else 0.001


def test_over_sampling_ends_with_the_first_and_resumes_the_others_from_their_tokens():
    policy = SlowSome(CODEC, right_digit)
    with make(policy, env_kwargs={"n_turns": 2}, over_sampling=2.0, max_concurrency=16) as collector:
        groups = collector.collect(4, 2)
        assert [int(g.group_id.split("-")[1]) for g in groups] == [1, 3, 5, 7]
        check_books(collector)
        assert collector.stats.partials == 8 and collector.stats.running == 0 and policy.running == 0
        policy.weight_version = policy.version = 1
        later = collector.collect(4, 2)
        numbers = {int(g.group_id.split("-")[1]) for g in later}
        assert len(numbers) == 4 and numbers.isdisjoint({1, 3, 5, 7})
        check_books(collector)
        resumed = collector.collect(4, 2)
        assert {0, 2, 4, 6} <= numbers | {int(g.group_id.split("-")[1]) for g in resumed}
    check_books(collector)
    assert collector.stats.partials == 0 and collector.stats.running == 0
    everything = [t for g in [*groups, *later, *resumed] for t in g]
    assert validate_batch(everything) == []
    assert len({(t.group_id, t.member) for t in everything}) == len(everything)
    assert all(t.is_success for t in everything)


class SlowSecondTurn(HashingTokenPolicy):
    """Says its first turn at once; the second of even groups takes long."""

    def latency_of(self, prompt_ids, session):
        number = int(session.split("/")[0].split("-")[1])
        is_second = CODEC.decode_reply(prompt_ids).count("Say") > 1
        return 30 if is_second and number % 2 == 0 and self.version == 0 else 0


def test_a_partial_has_the_versions_of_its_turns_and_of_the_pieces_of_one():
    policy = SlowSecondTurn(CODEC, lambda prompt_ids, random: right_digit(prompt_ids, random) + " " * 20)
    with make(policy, env_kwargs={"n_turns": 2}, over_sampling=2.0, max_concurrency=16) as collector:
        collector.collect(2, 1)  # groups 1 and 3; 0 and 2 are in the middle of their second turn
        assert policy.interrupted == 2 and policy.running == 0
        policy.update_weights([], 1)
        resumed = {g.group_id.split("-")[1]: g for g in collector.collect(3, 1)}
    partials = [resumed[number].trajectories[0] for number in ("000000", "000002")]
    for partial in partials:
        first, second = partial.turns
        assert [(s.start, s.stop, s.version) for s in first.weight_versions] == [(0, 22, 0)]
        seam = second.weight_versions[0].stop
        assert [(s.start, s.stop, s.version) for s in second.weight_versions] == [(0, seam, 0), (seam, 22, 1)]
        start, stop = partial.rows[0].spans[1]
        logps = partial.rows[0].logps[start:stop]  # this policy's are below minus the version
        assert (logps[:seam] > -1.01).all() and (logps[seam:] < -1).all()
        assert partial.is_success
    assert validate_batch(partials) == []


def test_over_sampling_with_other_groups_is_refused_until_closed():
    with make(over_sampling=1.5) as collector:
        collector.collect(2, 2)
        with pytest.raises(InvalidConfigError, match=r"groups of 2 .*groups of 3\."):
            collector.collect(2, 3)
        collector.close()
        assert len(collector.collect(2, 3)) == 2
    with pytest.raises(InvalidConfigError, match=r"over_sampling=0\.5"):
        make(over_sampling=0.5)


# Streams


def test_a_stream_yields_in_order_and_stops_what_it_began():
    policy = HashingTokenPolicy(CODEC, DIGITS, latency_s=0.001)
    with make(policy, max_concurrency=4) as collector:
        stream = collector.stream(2)
        first = [next(stream) for _ in range(5)]
        stream.close()
        assert [int(g.group_id.split("-")[1]) for g in first] == [0, 1, 2, 3, 4]
        assert collector.stats.running == 0 and policy.running == 0
        check_books(collector)
        assert list(collector.stream(2, n_groups=0)) == []
        rest = list(collector.stream(3, n_groups=3))
        assert [len(g.trajectories) for g in rest] == [3, 3, 3]
        assert {g.group_id for g in rest}.isdisjoint(g.group_id for g in first)
    assert first == make(HashingTokenPolicy(CODEC, DIGITS)).collect(5, 2)


def test_a_stream_holds_no_more_groups_than_allowed():
    most = []

    async def main():
        collector = make(HashingTokenPolicy(CODEC, DIGITS), max_concurrency=8)
        async for _ in collector.astream(1, n_groups=12, max_open=3):
            for _ in range(200):
                await asyncio.sleep(0)  # a slow consumer
            most.append(collector.stats.submitted)

    asyncio.run(main())
    # Three are under way or waiting at a time; the one that was just taken makes room only when the next is asked for.
    assert most == [min(taken + 3, 12) for taken in range(12)]


def test_a_stream_under_a_bound_on_staleness():
    """Batches of 2 groups, at most one version old: the trainer's version lets so many begin."""
    state = {"version": 0}

    def capacity(taken, waiting, under_way):
        return admission_capacity(
            version=state["version"],
            max_staleness=1,
            batch_size=2,
            n_trained=taken,
            n_accepted=waiting,
            n_running=under_way,
        )

    policy = HashingTokenPolicy(CODEC, DIGITS)
    policy.weight_version = 0

    async def main():
        ages = []
        collector = make(policy, max_concurrency=8)
        async for group in collector.astream(1, n_groups=8, capacity_fn=capacity):
            ages.append(state["version"] - group.trajectories[0].metadata["dispatch_version"])
            if len(ages) % 2 == 0:  # a batch: train, and go on with new weights
                state["version"] += 1
                policy.weight_version = policy.version = state["version"]
        return ages

    ages = asyncio.run(main())
    assert len(ages) == 8 and max(ages) <= 1

    async def starved():
        async for _ in make().astream(1, capacity_fn=lambda taken, waiting, under_way: 0):
            pass

    with pytest.raises(InvalidConfigError, match="capacity_fn returned 0, with 0"):
        asyncio.run(starved())


def test_a_stream_with_a_filter_gives_the_same_groups_as_collect():
    stream = make(HashingTokenPolicy(CODEC, coin), group_filter=create_spread_filter()).stream(4, n_groups=4)
    assert list(stream) == make(HashingTokenPolicy(CODEC, coin), group_filter=create_spread_filter()).collect(4, 4)


# Random schedules


@pytest.mark.parametrize("way", ["collect", "stream", "over"])
@settings(max_examples=700, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    concurrency=st.integers(1, 9),
    n_groups=st.integers(0, 4),
    group_size=st.integers(1, 3),
    failing=st.sampled_from([0.0, 0.0, 0.2]),
    error=st.sampled_from([RuntimeError, asyncio.CancelledError]),
    unjudged=st.booleans(),
    interruptible=st.booleans(),
    filtered=st.booleans(),
    fail_fast=st.booleans(),
    cancel_after=st.none() | st.integers(0, 40),
)
def test_the_books_hold_on_any_schedule(
    seed,
    way,
    concurrency,
    n_groups,
    group_size,
    failing,
    error,
    unjudged,
    interruptible,
    filtered,
    fail_fast,
    cancel_after,
):
    """Random latency in turns of the event loop, failures (also of a judge), filters, interrupts in the middle of turns
    and cancellation at a random moment.
    """
    random = Random(seed)
    emitted: list[Trajectory] = []

    class Jittery(HashingTokenPolicy):
        async def _wait(self, seconds, interrupt):
            for _ in range(random.randrange(6)):
                if not interrupt.is_set():
                    await asyncio.sleep(0)

    class Uninterruptible(Jittery):
        interrupt = property()

    tokens = (Jittery if interruptible else Uninterruptible)(CODEC, coin)
    collector = make(
        with_failures(tokens, failing, error), SeldomUndecided if unjudged else NumbersEnv, env_kwargs={"n_turns": 2},
        seed=seed, max_concurrency=concurrency, max_retries=1, on_trajectory=emitted.append, fail_fast=fail_fast,
        max_refills=400, group_filter=create_min_scored_filter(1) if filtered else None,
        over_sampling=1.7 if way == "over" else 1.0,
    )  # fmt: skip
    groups: list[TrajectoryGroup] = []

    async def play() -> None:
        if way == "stream":
            async with contextlib.aclosing(collector.astream(group_size, n_groups=n_groups)) as stream:
                async for group in stream:
                    groups.append(group)
        else:
            for _ in range(2 if way == "over" else 1):
                groups.extend(await collector.acollect(n_groups, group_size))
                assert tokens.running == 0  # what is left waits, with its tokens
                tokens.version += 1
                check_books(collector)
                assert collector.stats.running == 0

    async def main() -> bool:
        task = asyncio.create_task(play())
        for _ in range(10**6 if cancel_after is None else cancel_after):
            if task.done():
                break
            await asyncio.sleep(0)
        is_cancelled = task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await collector.aclose()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return is_cancelled

    is_cancelled = asyncio.run(main())
    stats = collector.stats
    check_books(collector)
    assert stats.running == stats.partials == 0 and tokens.running == 0
    keys = [(t.group_id, t.member) for t in emitted]
    assert len(set(keys)) == len(keys) == stats.accepted  # emitted exactly once
    assert len({group.group_id for group in groups}) == len(groups)
    assert {(t.group_id, t.member) for g in groups for t in g} <= set(keys)
    if not is_cancelled:
        assert len(groups) == n_groups * (2 if way == "over" else 1)
        if way != "over":
            assert stats.dropped == 0
    if fail_fast:
        assert all(t.status == "ok" for g in groups for t in g)
    assert validate_batch(emitted) == []
    assert stats.errored == sum(t.status == "errored" for t in emitted)
    assert stats.unscored == sum(t.status == "unscored" for t in emitted) and (unjudged or not stats.unscored)
    for trajectory in emitted:
        for turn in trajectory.turns:
            start, stop = trajectory.rows[turn.row].spans[turn.span]
            spans = turn.weight_versions
            assert [s.start for s in spans] + [stop - start] == [0] + [s.stop for s in spans]
            assert [s.version for s in spans] == sorted(s.version for s in spans)
            logps = trajectory.rows[turn.row].logps[start:stop]
            assert all((logps[s.start : s.stop] < -s.version).all() for s in spans)


def test_an_oracle_streams_in_a_notebook():
    """From synchronous code beside a running loop."""

    async def main():
        collector = Collector(NumbersEnv, OraclePolicy(), progress=False)
        return [group.group_id for group in collector.stream(n_groups=3)]

    assert len(asyncio.run(main())) == 3


def test_a_source_of_prompts_and_a_curriculum_are_played():
    rows = [{"prompt": f"{n}+1?", "answer": str(n + 1)} for n in range(40)]
    task = PromptTask(rows, lambda row, reply: float(reply.answer == row["answer"]), answer_field="answer")
    with Collector(PromptSource(task), OraclePolicy(), progress=False) as collector:
        groups = collector.collect(8, 2)
    assert all(t.is_success for group in groups for t in group)
    assert len({group.trajectories[0].messages[-2].content for group in groups}) == 8
    source = SeedSource("llm/Arithmetic-v0", curriculum=Curriculum(["easy", "medium", "hard"], min_episodes=4))
    with Collector(source, OraclePolicy(), progress=False) as collector:
        played = [t for group in collector.collect(30) for t in group]
    assert {t.env_kwargs["difficulty"] for t in played} >= {"easy"}
    with pytest.raises(InvalidConfigError):
        Collector(SeedSource("llm/Arithmetic-v0", curriculum=Curriculum(["easy", "none"])), OraclePolicy())
