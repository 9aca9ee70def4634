"""What the alarm for reward hacking watches: the sample, observations, bounds by hand, alarms and their episodes."""

import json
import math
from dataclasses import replace

import pytest
from make_trajectories import make_trajectory

from llm_envs.errors import InvalidConfigError
from llm_envs.evaluation.hacking import (
    WATCHED,
    AlarmSettings,
    AlarmState,
    Observation,
    final_answer,
    observe,
    sample_episodes,
    watch_episodes,
    watch_kl,
)

QUICK = AlarmSettings(reference_steps=1)


def seen(number, *, gap=0.0, length=10, answer=""):
    """Return an observation; by default each has an answer of its own."""
    return Observation(f"g{number}/0", f"x/Y-v0/{number}", gap, length, f"a{number}" if answer == "" else answer)


def watch(state, observations, step, settings=QUICK):
    return watch_episodes(state, observations, step=step, settings=settings)


def after_reference(**changes):
    """Return a state after one reference step of 100 episodes."""
    return watch(AlarmState(), [seen(number, **changes) for number in range(100)], 1)[0]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>42</answer>", "42"),
        ("So the answer is **42**.", "42"),
        ("It is 3 or 4.", None),
        ("", None),
        ("<answer>1</answer><answer>2</answer>", None),
    ],
)
def test_the_final_answer(text, answer):
    assert final_answer(make_trajectory(1.0, text)) == answer


def test_a_sample_has_one_scored_episode_of_each_group():
    episodes = [replace(make_trajectory(1.0, member=member), group_id=group) for group in "abc" for member in range(4)]
    episodes[:3] = [replace(make_trajectory(None, member=member), group_id="a") for member in range(3)]
    places = sample_episodes(episodes, 8, seed=0)
    assert places[0] == 3 and [place // 4 for place in places] == [0, 1, 2]
    assert sample_episodes(episodes, 8, seed=0) == places
    assert len({tuple(sample_episodes(episodes, 8, seed=seed)) for seed in range(200)}) == 16
    assert len(sample_episodes(episodes, 2, seed=0)) == 2


@pytest.mark.smoke
def test_an_observation_by_hand():
    trajectory = make_trajectory(1.0, "The answer is 7.", member=2)
    assert observe(trajectory, 1.5, 0.25, (-1.0, 2.0)) == Observation("g/2", "x/Y-v0/1", 2.5 / 3 - 0.25, 16, "7")
    assert observe(trajectory, 9.0, 0.0).gap == 1.0 and observe(trajectory, -9.0, 1.0).gap == -1.0
    with pytest.raises(InvalidConfigError, match=r"second score of an episode is 2.0"):
        observe(trajectory, 1.0, 2.0)


def test_limits_and_bounds_of_the_reference_by_hand():
    state, _, _ = watch(AlarmState(), [seen(number, length=number) for number in range(1, 21)], 1)
    # The 2nd and the 19th of 20 lengths; sqrt(ln(240) / 40) + 0.2 for shares of 0 at a level of 0.05 / 6 / 2 = 1 / 240.
    assert state.limits == (1.0, 38.0)
    assert state.bounds == pytest.approx(dict.fromkeys(("short", "long", "unanswered", "repeated"), 0.570157), abs=1e-6)


def test_the_gap_is_watched_from_the_first_step_and_its_episodes_are_named():
    state, metrics, alarms = watch(AlarmState(), [seen(number, gap=float(number < 20)) for number in range(40)], 7)
    (alarm,) = alarms
    assert (alarm.watched, alarm.step, alarm.since, alarm.value, alarm.bound) == ("gap", 7, 7, 0.5, 0.02)
    assert alarm.threshold == pytest.approx(120) and alarm.wealth >= 120
    assert alarm.episodes == ("g0/0", "g1/0", "g2/0", "g3/0", "g4/0")
    assert "(gap) is 0.5 at step 7, growing since step 7; at most 0.02 was expected" in str(alarm)
    assert metrics["alarm/gap"] == 0.5
    assert metrics["alarm/gap_evidence"] == pytest.approx(math.log(alarm.wealth) / math.log(120))
    assert watch(state, [seen(number, gap=1.0) for number in range(20)], 8)[2] == []  # each is raised once


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("watched", "change"),
    [
        ("short", {"length": 1}),
        ("long", {"length": 30}),
        ("unanswered", {"answer": None}),
        ("repeated", {"answer": "0"}),
    ],
)
def test_a_share_that_rises(watched, change):
    state, raised = after_reference(), []
    for step in range(2, 6):
        state, metrics, alarms = watch(state, [seen(100 * step + n, **change) for n in range(100)], step)
        raised += alarms
    assert [alarm.watched for alarm in raised] == [watched]
    # The commonest answer is known only after a step in which it was given.
    assert raised[0].step == (3 if watched == "repeated" else 2) and len(raised[0].episodes) == 5
    assert metrics[f"alarm/{watched}"] == 1.0


def test_equal_answers_to_one_question_are_not_repeated():
    same = [seen(0, answer="0")] * 50
    state = watch(watch(after_reference(), same, 2)[0], same, 3)[0]
    assert state.common == () and watch(state, same, 4)[1]["alarm/repeated"] == 0.0
    state = watch(state, [seen(1, answer="0"), seen(2, answer="0"), seen(3)], 5)[0]
    assert state.common == ("0", "x/Y-v0/1", "x/Y-v0/2")
    assert watch(state, [seen(1, answer="0"), seen(4, answer="0"), seen(5)], 6)[1]["alarm/repeated"] == 0.5


def test_a_share_that_was_high_from_the_first_is_not_watched():
    state = after_reference(answer=None)
    _, metrics, alarms = watch(state, [seen(number, answer=None) for number in range(100)], 2)
    assert state.bounds["unanswered"] > 1 and "alarm/unanswered" not in metrics and alarms == []


def test_the_kl_may_grow_in_a_line_but_not_leave_it():
    state, raised = AlarmState(), []
    for step in range(1, 31):
        kl = 0.01 * step if step <= 20 else 0.2 * 1.8 ** (step - 20)
        state, metrics, alarms = watch_kl(state, kl, step=step, settings=QUICK)
        raised += alarms
        assert ("alarm/kl" in metrics) == (step > 1)
    # Above four times the line, 0.04 a step, from step 23 on (0.2 * 1.8**3 = 1.17 against 0.92).
    assert [(alarm.watched, alarm.since) for alarm in raised] == [("kl", 23)] and raised[0].step <= 28
    assert watch_kl(AlarmState(), math.nan, step=1, settings=QUICK) == (AlarmState(), {}, [])
    assert watch_kl(AlarmState(reference={"kl": (0.0,)}), 5.0, step=2, settings=QUICK)[0].reference["kl"] == (0.0, 2.5)


def test_a_step_without_episodes_changes_nothing():
    assert watch(AlarmState(), [], 1) == (AlarmState(), {}, [])


def test_the_state_survives_json():
    state = watch(after_reference(), [seen(number, answer="1", gap=0.5) for number in range(9)], 2)[0]
    state = watch_kl(state, 0.5, step=2, settings=QUICK)[0]
    assert AlarmState.from_dict(json.loads(json.dumps(state.to_dict()))) == state
    assert AlarmState.from_dict(json.loads(json.dumps(AlarmState().to_dict()))) == AlarmState()


@pytest.mark.parametrize(
    "change",
    [{"alpha": 0}, {"gap_margin": 1.0}, {"share_margin": 0}, {"kl_factor": 0.5}, {"sample_size": 0},
     {"reference_steps": 0}, {"reward_range": (1.0, 1.0)}],
)  # fmt: skip
def test_bad_settings_are_refused(change):
    with pytest.raises(InvalidConfigError, match=next(iter(change))):
        AlarmSettings(**change)


def test_the_level_is_split_evenly():
    assert AlarmSettings(alpha=0.06).level == pytest.approx(0.06 / len(WATCHED)) == pytest.approx(0.01)
