"""Shaping: additions a turn, worked out by hand; the task's rewards stay as they are."""

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_trajectories import make_trajectory

from llm_envs.errors import InvalidConfigError
from llm_envs.rewards import (
    create_clipping,
    create_entropy_bonus,
    create_kl_penalty,
    create_length_bonus,
    create_potential_shaping,
    create_step_cost,
    create_success_bonus,
    named_shaping,
    shape,
    turn_lengths,
    turn_sums,
)
from llm_envs.types import Message, Row, StopReason, Trajectory, Turn


def row(*pieces: tuple[bool, list[float]]) -> Row:
    """Return a row of pieces: (written by the policy, log-probability of each token)."""
    mask = np.array([own for own, logps in pieces for _ in logps], dtype=np.bool_)
    logps = np.array([logp for _, listed in pieces for logp in listed], dtype=np.float32)
    spans, start = [], 0
    for own, listed in pieces:
        if own:
            spans.append((start, start + len(listed)))
        start += len(listed)
    return Row(np.arange(len(mask), dtype=np.int32), mask, logps, tuple(spans))


def three_turns(**changes) -> Trajectory:
    """Return an episode of three turns in two rows: of 2, 1 and 3 tokens, rewards 1, 0 and -2."""
    rows = (
        row((False, [0.0] * 3), (True, [-1.0, -2.0]), (False, [0.0]), (True, [-0.5])),
        row((False, [0.0] * 2), (True, [-1.0, -1.0, -4.0])),
    )
    turns = (Turn(1.0, {"r": 1.0}, 0, 0), Turn(0.0, {"r": 0.0}, 0, 1), Turn(-2.0, {"r": -2.0}, 1, 0))
    words = ("user", "u"), ("assistant", "a"), ("user", "v"), ("assistant", "bb"), ("tool", "w"), ("assistant", "ccc")
    messages = tuple(Message(role, text) for role, text in words)
    return replace(make_trajectory(0.0), rows=rows, turns=turns, messages=messages, is_success=True, **changes)


def additions(function, trajectory: Trajectory | None = None) -> list[float]:
    (values,) = shape(trajectory or three_turns(), function).additions.values()
    return values.tolist()


def test_the_tasks_rewards_stay_beside_what_is_added():
    trajectory = three_turns()
    shaped = shape(trajectory, [create_step_cost(0.5), create_success_bonus(3.0)])
    assert shaped.task.tolist() == [1.0, 0.0, -2.0]
    assert {name: values.tolist() for name, values in shaped.additions.items()} == {
        "step_cost": [-0.5, -0.5, -0.5],
        "success_bonus": [0.0, 0.0, 3.0],
    }
    assert shaped.rewards.tolist() == [0.5, -0.5, 0.5]
    assert shaped.totals == {"step_cost": -1.5, "success_bonus": 3.0}
    assert (trajectory, trajectory.reward) == (three_turns(), -1.0)
    assert shape(trajectory, []).rewards.tolist() == [1.0, 0.0, -2.0]


def test_success_bonus_is_for_success():
    failed = replace(three_turns(), is_success=False)
    assert additions(create_success_bonus(3.0), failed) == [0.0, 0.0, 0.0]


def test_clipping():
    assert additions(create_clipping(-1.0, 0.5)) == [-0.5, 0.0, 1.0]
    clipped = create_clipping(-1.0, 0.5, create_step_cost(0.25))
    assert shape(three_turns(), clipped).rewards.tolist() == [0.5, -0.25, -1.0]


def test_sums_over_turns():
    trajectory = three_turns()
    assert turn_lengths(trajectory).tolist() == [2, 1, 3]
    values = [[9, 9, 9, 1, 2, 9, 3], [9, 9, 4, 5, 6]]
    assert turn_sums(trajectory, values).tolist() == [3.0, 3.0, 15.0]
    with pytest.raises(InvalidConfigError, match="shapes"):
        turn_sums(trajectory, values[:1])
    text_only = replace(trajectory, rows=(), turns=tuple(Turn(1.0, {}) for _ in range(3)))
    assert turn_lengths(text_only).tolist() == [0, 0, 0]


def test_length_bonus():
    assert additions(create_length_bonus(0.5, 2)) == [0.5, 0.25, 0.5]
    assert additions(create_length_bonus(-0.5, 4)) == [-0.25, -0.125, -0.375]


def test_entropy_bonus():
    assert additions(create_entropy_bonus(0.1)) == pytest.approx([0.15, 0.05, 0.2])
    given = [[0] * 3 + [1, 3] + [0] + [5], [0] * 2 + [1, 1, 1]]
    assert additions(create_entropy_bonus(0.5, entropies_fn=lambda t: given)) == [1.0, 2.5, 0.5]


def test_kl_penalty():
    nan = math.nan  # the reference says nothing about what the policy did not write
    reference = [[nan] * 3 + [-1.5, -2.0] + [nan] + [-1.5], [nan] * 2 + [-1.0, -2.0, -3.0]]
    own = [row.logps.copy() for row in three_turns().rows]  # the policy's, whatever the sampler's filters made of them
    filtered = replace(three_turns(), rows=tuple(replace(row, logps=row.logps / 2) for row in three_turns().rows))
    # k1 by turn: (0.5 + 0), 1, (0 + 1 - 1)
    penalty = create_kl_penalty(0.2, lambda t: own, lambda t: reference)
    assert additions(penalty) == additions(penalty, filtered) == pytest.approx([-0.1, -0.2, 0.0])
    squared = create_kl_penalty(
        2.0, lambda t: own, lambda t: reference, kl_fn=lambda logps, ref: 0.5 * (logps - ref) ** 2
    )
    assert additions(squared) == pytest.approx([-0.25, -1.0, -2.0])
    with pytest.raises(InvalidConfigError, match=r"ref_logps_fn .*\[7\] tokens"):
        additions(create_kl_penalty(0.2, lambda t: own, lambda t: reference[:1]))
    with pytest.raises(InvalidConfigError, match="logps_fn returned"):
        additions(create_kl_penalty(0.2, lambda t: own[:1], lambda t: reference))
    with pytest.raises(InvalidConfigError, match="finite"):
        additions(create_kl_penalty(0.2, lambda t: [np.full(len(row), np.nan) for row in own], lambda t: reference))


# Potentials


def n_characters(messages) -> float:
    return float(sum(len(message.content) for message in messages))


def test_potential_shaping():
    # Before the turns the conversation has 1, 3 and 6 characters; the end has the potential 0.
    assert additions(create_potential_shaping(n_characters)) == [2.0, 3.0, -6.0]
    assert additions(create_potential_shaping(n_characters, gamma=0.5, scale=2.0)) == [1.0, 0.0, -12.0]
    cut = replace(three_turns(), terminated=False, truncated=True, stop_reason=StopReason.MAX_TURNS)
    assert additions(create_potential_shaping(n_characters), cut) == [2.0, 3.0, -6.0]
    assert additions(create_potential_shaping(n_characters, bootstraps_truncated=True), cut) == [2.0, 3.0, 3.0]
    assert additions(create_potential_shaping(n_characters, bootstraps_truncated=True)) == [2.0, 3.0, -6.0]


def test_potential_shaping_wants_to_know_the_agents_messages():
    trajectory = three_turns()
    spoken = replace(trajectory.messages[2], role="assistant")
    unclear = replace(trajectory, messages=(*trajectory.messages[:2], spoken, *trajectory.messages[3:-1]))
    with pytest.raises(InvalidConfigError, match="3 turns, but"):
        additions(create_potential_shaping(n_characters), replace(unclear, messages=unclear.messages[:3]))


EPISODES = st.lists(st.tuples(st.floats(-3, 3), st.text("ab", max_size=6)), min_size=1, max_size=6)


def played(turns, *, truncated: bool = False) -> Trajectory:
    """Return an episode from one common start: each turn's reward, and what is said in it."""
    messages = [Message("user", "start")]
    for _, text in turns:
        messages += [Message("assistant", text), Message("user", text[::2])]
    messages = messages if truncated else messages[:-1]
    return replace(
        make_trajectory(0.0), messages=tuple(messages), turns=tuple(Turn(reward, {}) for reward, _ in turns),
        terminated=not truncated, truncated=truncated,
    )  # fmt: skip


def discounted(rewards, gamma: float) -> float:
    return float(sum(gamma**t * reward for t, reward in enumerate(rewards)))


@given(EPISODES, st.floats(0, 1), st.booleans())
def test_potential_shaping_telescopes(turns, gamma, truncated):
    """Σ γ^t f_t = −Φ(s_0), whatever was done and however long."""
    shaping = create_potential_shaping(n_characters, gamma=gamma)
    values = additions(shaping, played(turns, truncated=truncated))
    assert discounted(values, gamma) == pytest.approx(-n_characters([Message("user", "start")]), abs=1e-6)


@given(st.lists(EPISODES, min_size=2, max_size=5), st.floats(0, 1))
def test_potential_shaping_leaves_the_order_of_returns(episodes, gamma):
    shaping = create_potential_shaping(n_characters, gamma=gamma)
    shaped = [shape(played(turns), shaping) for turns in episodes]
    before = np.array([discounted(each.task, gamma) for each in shaped])
    after = np.array([discounted(each.rewards, gamma) for each in shaped])
    np.testing.assert_allclose(after - after.mean(), before - before.mean(), atol=1e-6)


# Bad input


def test_bad_input():
    trajectory = three_turns()
    for returned in ([1.0], [1.0, math.nan, 0.0], 1.0, [[1.0, 1.0, 1.0]]):
        with pytest.raises(InvalidConfigError, match="'own'"):
            shape(trajectory, {"own": lambda t, returned=returned: returned})
    with pytest.raises(InvalidConfigError, match="two shaping functions"):
        named_shaping([create_step_cost(1.0), create_step_cost(2.0)])
    with pytest.raises(InvalidConfigError, match="callable"):
        named_shaping({"cost": 1.0})
    for make in (
        lambda: create_step_cost(math.inf), lambda: create_success_bonus(True), lambda: create_clipping(1.0, 0.0),
        lambda: create_length_bonus(1.0, 0), lambda: create_potential_shaping(n_characters, gamma=1.5),
        lambda: create_kl_penalty(math.nan, lambda t: [], lambda t: []), lambda: create_entropy_bonus("much"),
    ):  # fmt: skip
        with pytest.raises(InvalidConfigError):
            make()


def test_shaping_functions_pickle():
    again = pickle.loads(pickle.dumps([create_step_cost(0.5), create_potential_shaping(n_characters)]))
    assert list(named_shaping(again)) == ["step_cost", "potential"]
    assert additions(again[0]) == [-0.5] * 3
