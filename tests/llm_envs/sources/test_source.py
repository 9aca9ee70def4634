"""Schedules and sources: mixtures, epochs, problems, states."""

from __future__ import annotations

import json
import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_envs.errors import InvalidConfigError
from llm_envs.policies import ConstantPolicy
from llm_envs.rollout import Collector, Curriculum, EnvChoice, EpisodeSpec, SeedSource, derive_seed
from llm_envs.sources.mixture import Place, Schedule, choose, permutation
from llm_envs.sources.source import as_source, fingerprint_of
from llm_envs.testing import NumbersEnv

DIGITS = [{"digits": [n]} for n in range(5)]


class TestSchedule:
    def test_a_fraction_falls_to_its_share(self) -> None:
        # Weights 1, 2, 1: shares up to 0.25, 0.75, 1.
        assert [choose(x, [1, 3, 4]) for x in (0.0, 0.2499, 0.25, 0.7499, 0.75, 0.9999)] == [0, 0, 1, 1, 2, 2]
        assert choose(0.5, [0.0, 1.0]) == choose(0.0, [0.0, 1.0]) == 1  # a share of nothing is never chosen

    def test_orders_are_pinned(self) -> None:
        """A change would silently change what every resumed run plays next."""
        assert list(permutation(6, 3)) == [0, 4, 3, 5, 2, 1]
        assert sorted(permutation(1000, 7)) == list(range(1000))

    def test_every_item_comes_once_in_an_epoch_and_epochs_differ(self) -> None:
        schedule = Schedule(1, [1.0], [7])
        epochs = [[schedule.at(7 * e + i) for i in range(7)] for e in range(3)]
        for number, epoch in enumerate(epochs):
            assert sorted(place.item for place in epoch) == list(range(7))
            assert {place.epoch for place in epoch} == {number}
        assert len({tuple(place.item for place in epoch) for epoch in epochs}) == 3

    def test_unshuffled_epochs_have_the_order_of_the_items(self) -> None:
        schedule = Schedule(1, [1.0], [3], shuffle=False)
        assert [schedule.at(i) for i in range(4)] == [Place(0, 0, 0), Place(0, 1, 0), Place(0, 2, 0), Place(0, 0, 1)]

    @given(
        st.integers(0, 2**53),
        st.lists(st.tuples(st.floats(0.1, 10), st.none() | st.integers(1, 6)), min_size=2, max_size=4),
        st.permutations(range(40)),
    )
    @settings(max_examples=30, deadline=None)
    def test_what_an_index_falls_to_does_not_depend_on_what_was_asked_before(self, seed, parts, order) -> None:
        weights, lengths = zip(*parts, strict=True)
        one, two = Schedule(seed, weights, lengths), Schedule(seed, weights, lengths)
        forwards = [one.at(i) for i in range(40)]
        assert {i: two.at(i) for i in order} == dict(enumerate(forwards))
        for part, length in enumerate(lengths):
            items = [place.item for place in forwards if place.part == part]
            if length is not None:
                for start in range(0, len(items) - length + 1, length):
                    assert sorted(items[start : start + length]) == list(range(length))
                assert one.epochs(40)[part] == len(items) // length

    @pytest.mark.parametrize(
        ("weights", "lengths"),
        [
            ([], []),
            ([1.0], [0]),
            ([0.0], [1]),
            ([1.0], [1, 2]),
            (["1"], [1]),
            ([True], [1]),
            ([math.nan], [1]),
            ([math.inf, 1.0], [1, 1]),  # the first part would never be played
            ([1e308, 1e308], [1, 1]),
        ],
    )
    def test_wrong_parts_are_refused(self, weights, lengths) -> None:
        with pytest.raises(InvalidConfigError):
            Schedule(0, weights, lengths)

    @pytest.mark.parametrize("weight", ["2", None, math.inf, math.nan, -1])
    def test_a_weight_that_is_no_share_is_refused_by_name(self, weight) -> None:
        with pytest.raises(InvalidConfigError, match=r"llm/GuessNumber-v0: the weight is .*; it must be above 0"):
            SeedSource({"llm/GuessNumber-v0": weight})


class TestSeeds:
    def test_without_an_end_the_seeds_are_what_they_were(self) -> None:
        """Version 1 of the source: seeds hashed from (run seed, "reset", index)."""
        source = SeedSource("a/A-v0", seed=5)
        assert source.spec(3) == EpisodeSpec("a/A-v0", {}, derive_seed(5, "reset", 3), "5-000003")
        assert source.epoch == 0

    def test_a_finite_set_is_played_once_in_an_epoch(self) -> None:
        source = SeedSource("a/A-v0", seed=5, n_seeds=4)
        specs = list(source.take(12))
        expected = sorted(derive_seed(5, "reset", item) for item in range(4))
        for epoch in range(3):
            assert sorted(spec.seed for spec in specs[4 * epoch : 4 * epoch + 4]) == expected
        assert len({spec.group_id for spec in specs}) == 12
        assert source.epoch == 3

    def test_an_epoch_of_a_mixture_is_that_of_the_slowest(self) -> None:
        source = SeedSource({"a/A-v0": 9.0, "b/B-v0": 1.0}, seed=1, n_seeds=2)
        specs = list(source.take(40))
        counts = Counter(spec.env_id for spec in specs)
        assert source.epoch == min(counts.values()) // 2 < max(counts.values()) // 2

    def test_state_resumes_and_another_set_is_refused(self) -> None:
        source = SeedSource("a/A-v0", seed=5, n_seeds=4)
        list(source.take(6))
        state = json.loads(json.dumps(source.state_dict()))
        other = SeedSource("a/A-v0", seed=5, n_seeds=4)
        other.load_state_dict(state)
        assert list(other.take(5)) == list(source.take(5))
        with pytest.raises(InvalidConfigError, match="n_seeds 4, this one has 5"):
            SeedSource("a/A-v0", seed=5, n_seeds=5).load_state_dict(state)
        with pytest.raises(InvalidConfigError, match="shuffle"):
            SeedSource("a/A-v0", seed=5, n_seeds=4, shuffle=False).load_state_dict(state)

    def test_a_state_from_before_there_were_epochs_is_read(self) -> None:
        source = SeedSource("a/A-v0", seed=5)
        source.load_state_dict({"seed": 5, "position": 9, "mixture": [["a/A-v0", 1.0, {}]]})
        assert source.position == 9

    def test_wrong_numbers_are_refused(self) -> None:
        with pytest.raises(InvalidConfigError, match="n_seeds is 0"):
            SeedSource("a/A-v0", n_seeds=0)


class TestProblems:
    def test_each_is_played_once_in_an_epoch(self) -> None:
        source = SeedSource([EnvChoice("numbers", factory=NumbersEnv, problems=DIGITS)], seed=2)
        specs = list(source.take(10))
        played = [spec.options["problem"]["digits"][0] for spec in specs]
        assert sorted(played[:5]) == sorted(played[5:]) == [0, 1, 2, 3, 4]
        assert played[:5] != played[5:]
        again = {spec.options["problem"]["digits"][0]: spec.seed for spec in specs[:5]}
        assert all(again[spec.options["problem"]["digits"][0]] == spec.seed for spec in specs[5:])

    def test_a_collector_plays_what_the_source_gives(self) -> None:
        collector = Collector(NumbersEnv, ConstantPolicy("3"), progress=False)
        source = SeedSource([EnvChoice("NumbersEnv", factory=NumbersEnv, problems=DIGITS)], seed=2)
        groups = collector.play([[spec] for spec in source.take(5)])
        played = {t.metadata["options"]["problem"]["digits"][0]: t.is_success for group in groups for t in group}
        assert played == {0: False, 1: False, 2: False, 3: True, 4: False}

    def test_other_problems_are_refused(self) -> None:
        def source(problems):
            return SeedSource([EnvChoice("numbers", factory=NumbersEnv, problems=problems)])

        state = source(DIGITS).state_dict()
        source(list(DIGITS)).load_state_dict(state)
        with pytest.raises(InvalidConfigError, match="problems"):
            source([*DIGITS[:4], {"digits": [9]}]).load_state_dict(state)
        with pytest.raises(InvalidConfigError, match="problems is empty"):
            source([])

    def test_a_fingerprint_is_of_content_and_order(self) -> None:
        assert fingerprint_of([{"a": 1, "b": 2}]) == fingerprint_of([{"b": 2, "a": 1}])
        assert fingerprint_of([{"a": 1}, {"a": 2}]) != fingerprint_of([{"a": 2}, {"a": 1}])


class TestCurriculumInSource:
    def curriculum(self) -> Curriculum:
        return Curriculum({"short": {"n_turns": 1}, "long": {"n_turns": 2}}, min_episodes=2, window=4, floor=0.1)

    def test_levels_are_chosen_and_learned_from(self) -> None:
        source = SeedSource(NumbersEnv, seed=3, curriculum=self.curriculum())
        assert {spec.env_kwargs["n_turns"] for spec in source.take(20)} == {1}  # only the first level is open
        play = Collector(NumbersEnv, _Right(), progress=False).play
        frozen = source.take(10)
        for group in play([[spec] for spec in source.take(4)]):
            source.update(group)
        assert source.curricula["NumbersEnv"].success == {"short": 1.0, "long": None}
        assert {spec.env_kwargs["n_turns"] for spec in frozen} == {1}  # taken before, whenever it is asked for
        counts = Counter(spec.env_kwargs["n_turns"] for spec in source.take(400))
        assert abs(counts[1] - 40) < 25  # the mastered level keeps its floor of 0.1

    def test_the_state_has_what_was_learned(self) -> None:
        source = SeedSource(NumbersEnv, seed=3, curriculum=self.curriculum())
        source.update(
            t for g in Collector(NumbersEnv, _Right(), progress=False).collect(4) for t in g
        )  # of no level: default arguments
        assert source.curricula["NumbersEnv"].n_open == 1
        for group in Collector(NumbersEnv, _Right(), progress=False).play([[s] for s in source.take(4)]):
            source.update(group)
        state = json.loads(json.dumps(source.state_dict()))
        other = SeedSource(NumbersEnv, seed=3, curriculum=self.curriculum())
        other.load_state_dict(state)
        assert list(other.take(50)) == list(source.take(50))
        with pytest.raises(InvalidConfigError, match="curricula"):
            SeedSource(NumbersEnv, seed=3).load_state_dict(state)

    def test_all_that_may_be_played_can_be_checked_beforehand(self) -> None:
        source = SeedSource({"a/A-v0": 1.0, "b/B-v0": 1.0}, curriculum={"b/B-v0": self.curriculum()})
        assert [(spec.env_id, dict(spec.env_kwargs)) for spec in source.variants()] == [
            ("a/A-v0", {}), ("b/B-v0", {"n_turns": 1}), ("b/B-v0", {"n_turns": 2}),
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("envs", "kwargs", "by_name", "says"),
        [
            ({"a": 1.0, "b": 1.0}, {}, False, "give the curriculum as"),
            ("a", {"n_turns": 3}, False, r"\['n_turns'\] are given"),
            ("a", {}, True, "'x', which is not played"),
            ([EnvChoice("a", problems=DIGITS)], {}, False, "nothing to choose"),
        ],
    )
    def test_contradictions_are_refused(self, envs, kwargs, by_name, says) -> None:
        curriculum = {"x": self.curriculum()} if by_name else self.curriculum()
        with pytest.raises(InvalidConfigError, match=says):
            SeedSource(envs, env_kwargs=kwargs, curriculum=curriculum)


class _Right:
    def act(self, env, observation: str) -> str:
        return env.unwrapped.oracle()


def test_a_ready_made_source_is_taken_as_it_is() -> None:
    source = SeedSource("a/A-v0", seed=4)
    assert as_source(source, seed=9) is source
    assert as_source("a/A-v0", seed=4, env_kwargs={"split": "test"}).spec(0).env_kwargs == {"split": "test"}
    with pytest.raises(InvalidConfigError, match="its own keyword arguments"):
        as_source(source, env_kwargs={"split": "test"})
