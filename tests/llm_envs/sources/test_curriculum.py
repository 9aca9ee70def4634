"""A curriculum by measured success: shares and openings worked out by hand, and the state that goes with them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest
from make_trajectories import make_trajectory

from llm_envs.errors import InvalidConfigError
from llm_envs.rollout import Curriculum
from llm_envs.sources.curriculum import create_band_weight, level_shares, next_open, variance_weight
from llm_envs.types import Trajectory

BAND = create_band_weight(0.2, 0.8)


def played(level: str, success: bool, status: str = "ok", **kwargs) -> Trajectory:
    kwargs = {"difficulty": level, **kwargs}
    is_success = success if status == "ok" else None
    return replace(make_trajectory(1.0), env_id="a/A-v0", env_kwargs=kwargs, status=status, is_success=is_success)


class TestShares:
    def test_the_band_gets_what_is_above_the_floor(self) -> None:
        # Three open: one mastered, one in the band, one too hard. 1 − 3·0.1 = 0.7 goes to the middle one.
        shares = level_shares([0.9, 0.5, 0.1, None], 3, floor=0.1, weight_fn=BAND)
        assert shares == pytest.approx((0.1, 0.8, 0.1, 0.0))

    def test_a_level_that_is_not_measured_counts_as_one_in_the_band(self) -> None:
        assert level_shares([0.5, None], 2, floor=0.0, weight_fn=BAND) == pytest.approx((0.5, 0.5))

    def test_with_none_in_the_band_all_open_ones_are_equal(self) -> None:
        assert level_shares([0.9, 0.0, None], 2, floor=0.1, weight_fn=BAND) == pytest.approx((0.5, 0.5, 0.0))

    def test_weights_may_be_the_variance_of_success(self) -> None:
        # 4·0.5·0.5 = 1 and 4·0.1·0.9 = 0.36: shares 1/1.36 and 0.36/1.36.
        shares = level_shares([0.1, 0.5], 2, floor=0.0, weight_fn=variance_weight)
        assert shares == pytest.approx((0.36 / 1.36, 1 / 1.36))

    def test_the_ends_of_the_band_belong_to_it(self) -> None:
        assert [BAND(x) for x in (0.19, 0.2, 0.8, 0.81)] == [0.0, 1.0, 1.0, 0.0]


class TestOpening:
    @pytest.mark.parametrize(
        ("success", "n_open", "then"),
        [
            ([0.81, None, None], 1, 2),
            ([0.8, None, None], 1, 1),  # at the band's end it is not mastered yet
            ([None, None, None], 1, 1),
            ([0.9, 0.9, None], 1, 3),  # measured before, in another run, say
            ([0.1, 0.9, None], 2, 3),  # only the last open one decides; what is forgotten is not closed
            ([0.9, 0.9, 0.9], 3, 3),
        ],
    )
    def test_mastering_the_last_open_level_opens_the_next(self, success, n_open, then) -> None:
        assert next_open(success, n_open, mastered=0.8) == then


class TestCurriculum:
    def make(self, **kwargs) -> Curriculum:
        return Curriculum(["easy", "medium", "hard"], window=4, min_episodes=2, floor=0.1, **kwargs)

    def test_a_run_worked_out_by_hand(self) -> None:
        c = self.make()
        assert c.shares == {"easy": 1.0, "medium": 0.0, "hard": 0.0}
        c.update([played("easy", True)])
        assert c.success["easy"] is None and c.n_open == 1  # one episode says nothing yet
        c.update([played("easy", True)])
        assert c.success["easy"] == 1.0 and c.n_open == 2
        # easy is mastered: its floor; medium is not measured: 0.1 + (1 − 0.2).
        assert c.shares == pytest.approx({"easy": 0.1, "medium": 0.9, "hard": 0.0})
        c.update([played("medium", s) for s in (True, False, False, False)])
        assert c.success["medium"] == 0.25
        c.update([played("easy", False)] * 2)  # its window is now 1, 1, 0, 0: forgotten, so it is played more again
        assert c.shares == pytest.approx({"easy": 0.5, "medium": 0.5, "hard": 0.0})
        c.update([played("medium", True)] * 4)  # the window has only these
        assert c.success["medium"] == 1.0 and c.n_open == 3
        assert c.shares == pytest.approx({"easy": 0.1 + 0.7 / 2, "medium": 0.1, "hard": 0.1 + 0.7 / 2})
        assert c.metrics() == pytest.approx(
            {
                "curriculum/share/easy": 0.45,
                "curriculum/share/medium": 0.1,
                "curriculum/share/hard": 0.45,
                "curriculum/success/easy": 0.5,
                "curriculum/success/medium": 1.0,
                "curriculum/open": 3.0,
            }
        )

    def test_what_has_no_score_or_no_level_says_nothing(self) -> None:
        c = self.make()
        c.update([played("easy", True, "errored"), played("easy", True, "unscored"), played("other", True)] * 3)
        assert c.success["easy"] is None and c.n_open == 1

    def test_choices_follow_the_shares_and_the_seed(self) -> None:
        c = self.make(seed=1)
        c.update([played("easy", True)] * 2)
        choose = c.chooser()
        counts = Counter(choose(index) for index in range(4000))
        assert set(counts) == {"easy", "medium"}
        assert abs(counts["easy"] - 400) < 80  # 4.2 standard deviations
        other = self.make(seed=2)
        other.update([played("easy", True)] * 2)
        again, differs = c.chooser(), other.chooser()
        assert [choose(i) for i in range(50)] == [again(i) for i in range(50)]
        assert [choose(i) for i in range(50)] != [differs(i) for i in range(50)]

    def test_a_chooser_keeps_to_what_was_known(self) -> None:
        c = self.make()
        chooser = c.chooser()
        c.update([played("easy", True)] * 2)
        assert {chooser(index) for index in range(50)} == {"easy"}
        assert set(map(c.chooser(), range(50))) == {"easy", "medium"}

    def test_levels_may_be_sets_of_arguments(self) -> None:
        c = Curriculum({"one": {"n": 1}, "two": {"n": 2, "deep": True}})
        assert c.level_of({"n": 2, "deep": True, "split": "train"}) == "two"
        assert c.level_of({"n": 2}) is None
        assert c.level_of({"n": 1, "split": "train"}) == "one"

    def test_the_state_resumes_and_other_settings_are_refused(self) -> None:
        c = self.make()
        c.update([played("easy", True)] * 3 + [played("easy", False)])
        state = json.loads(json.dumps(c.state_dict()))
        other = self.make()
        other.load_state_dict(state)
        assert other.success == c.success == {"easy": 0.75, "medium": None, "hard": None}
        other.update([played("easy", True)])  # the oldest of the window leaves it, the failure stays
        assert other.success["easy"] == 0.75
        with pytest.raises(InvalidConfigError, match="settings"):
            Curriculum(["easy", "hard"]).load_state_dict(state)

    @pytest.mark.parametrize(
        ("levels", "kwargs", "says"),
        [
            ([], {}, "at least one"),
            ("easy", {}, "give different names"),
            (["a", "a"], {}, "give different names"),
            ({"a": {}}, {}, "no keyword arguments"),
            (["a", "b"], {"floor": 0.5}, "below 1"),
            (["a"], {"window": 4, "min_episodes": 5}, "min_episodes <= window"),
            (["a"], {"band": (0.8, 0.2)}, "low < high"),
        ],
    )
    def test_wrong_settings_are_refused(self, levels, kwargs, says) -> None:
        with pytest.raises(InvalidConfigError, match=says):
            Curriculum(levels, **kwargs)
