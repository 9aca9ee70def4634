"""`llm/Blocksworld-v0`: plans worked out by hand, the exact planner, and players in a hurry."""

import random
from collections import deque

import gymnasium as gym
import pytest

from llm_envs.env import split_of
from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import format_answer
from llm_envs.tasks.logic.blocks_planner import (
    TABLE,
    as_actions,
    canonical_places,
    execute,
    shortest_moves,
    tower_after_tower,
    with_one_way_out,
)

ID = "llm/Blocksworld-v0"
LEVELS = ("easy", "medium", "hard", "expert")

# Sussman's anomaly: red is on blue; blue and green are on the table. Blue onto green and green onto red are wanted.
SUSSMAN = {
    "initial": [["red", "blue"], ["blue", "table"], ["green", "table"]],
    "goal": [["green", "red"], ["blue", "green"], ["red", "table"]],
    "limit": 6,
}
PLAN = [
    "unstack the red block from the blue block",
    "put down the red block",
    "pick up the green block",
    "stack the green block on the red block",
    "pick up the blue block",
    "stack the blue block on the green block",
]


def reward(problem, lines):
    env = gym.make(ID)
    env.reset(seed=0, options={"problem": problem})
    return env.step(format_answer("\n".join(lines)))[1]


def changed(place, line):
    return [*PLAN[:place], line, *PLAN[place + 1 :]]


@pytest.mark.parametrize(
    ("lines", "paid"),
    [
        (PLAN, 1),
        ([f"{i}. {line.upper()}." for i, line in enumerate(PLAN, 1)], 1),
        (["; ".join(PLAN)], 1),
        (changed(0, "unstack red from on top of blue"), 1),
        (changed(1, "put down red onto the table"), 1),
        (PLAN[:-1], 0),
        (PLAN[:-2], 0),
        (PLAN[2:], 0),
        (changed(0, "pick up the red block"), 0),
        (changed(0, "pick up the blue block"), 0),
        (changed(0, "unstack the red block from the green block"), 0),
        (changed(2, "pick up the blue block"), 0),
        (changed(3, "stack the green block on the green block"), 0),
        (changed(3, "stack the green block on the blue block"), 0),
        (["pick up the green block", "put down the green block", *PLAN], 0),
        (changed(2, "lift the green block"), -0.1),
        (changed(2, "pick up the white block"), -0.1),
        (changed(3, "stack the green block"), -0.1),
        ([""], -0.1),
    ],
)
def test_a_plan_is_carried_out_action_by_action(lines, paid):
    assert reward(SUSSMAN, lines) == pytest.approx(paid)


def test_a_longer_plan_is_right_where_the_limit_allows_it():
    longer = ["pick up the green block", "put down the green block", *PLAN]
    assert reward(SUSSMAN | {"limit": 8}, longer) == 1
    assert reward(SUSSMAN | {"limit": 8}, PLAN) == 1


def test_the_goal_is_a_conjunction_and_the_rest_may_stand_anywhere():
    problem = SUSSMAN | {"goal": [["blue", "green"]], "limit": 12}
    plan = ["unstack red from blue", "put down red", "pick up blue", "stack blue on green"]
    assert reward(problem, plan) == 1
    assert reward(problem, [*plan, "pick up red", "stack red on blue"]) == 1
    assert reward(problem, [*plan, "pick up red"]) == 0, "the hand must be empty"


def test_the_prompt_says_what_counts():
    text, _ = gym.make(ID).reset(options={"problem": SUSSMAN})
    assert "- the red block is on the blue block\n- the blue block is on the table" in text
    assert text.endswith("The plan may have 6 actions at most; no plan has fewer.")
    text, _ = gym.make(ID).reset(options={"problem": SUSSMAN | {"limit": 8}})
    assert text.endswith("The plan may have 8 actions at most.")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"limit": 5}, "the limit must be from 6"),
        ({"initial": [["red", "blue"], ["green", "blue"], ["blue", "table"]]}, "two blocks on one"),
        ({"initial": [["red", "blue"], ["blue", "red"], ["green", "table"]]}, "in a circle"),
        ({"goal": [["white", "red"]]}, "must have its place"),
        ({"goal": [["red", "blue"]]}, "hold already"),
        ({"goal": [["table", "red"]]}, "names of blocks"),
        ({"goal": [["red"]]}, "pairs of a block"),
    ],
)
def test_what_cannot_be_played_is_refused(change, complaint):
    with pytest.raises(InvalidConfigError, match=complaint):
        gym.make(ID).reset(options={"problem": SUSSMAN | change})


def towers(rng, blocks):
    places, below = {}, TABLE
    for block in rng.sample(blocks, len(blocks)):
        places[block] = TABLE if rng.random() < 0.3 else below
        below = block
    return places


def fewest_moves_by_trying_all(initial, goal):
    seen, queue = {tuple(sorted(initial.items())): 0}, deque([initial])
    while queue:
        places = queue.popleft()
        n = seen[tuple(sorted(places.items()))]
        if places == goal:
            return n
        clear = [block for block in places if block not in places.values()]
        for block in clear:
            for target in {*clear, TABLE} - {block, places[block]}:
                following = places | {block: target}
                if seen.setdefault(tuple(sorted(following.items())), n + 1) == n + 1:
                    queue.append(following)
    raise AssertionError("each goal can be reached")


@pytest.mark.parametrize("n", [3, 4, 5])
def test_the_planner_finds_a_shortest_plan(n):
    rng = random.Random(n)
    for _ in range(40):
        initial, goal = towers(rng, "abcde"[:n]), towers(rng, "abcde"[:n])
        moves = shortest_moves(initial, goal)
        assert execute(initial, as_actions(initial, moves)) == goal
        assert len(moves) == fewest_moves_by_trying_all(initial, goal)
        assert len(moves) == 0 or shortest_moves(initial, goal, len(moves) - 1) is None
        assert execute(initial, as_actions(initial, tower_after_tower(initial, goal))) == goal


def test_other_names_and_another_order_make_no_other_problem():
    rng, keys = random.Random(0), set()
    for _ in range(50):
        initial, goal = towers(rng, "abcdefg"), towers(rng, "abcdefg")
        names = dict(zip("abcdefg", rng.sample("tuvwxyz", 7), strict=True)) | {TABLE: TABLE}
        renamed = [{names[a]: names[b] for a, b in rng.sample(list(p.items()), 7)} for p in (initial, goal)]
        assert canonical_places(*renamed) == canonical_places(initial, goal)
        keys.add(str(canonical_places(initial, goal)))
    assert len(keys) == 50


@pytest.mark.parametrize("level", LEVELS)
def test_splits_are_disjoint_by_canonical_form(level):
    key = gym.make(ID).unwrapped.split_key
    for split in ("train", "test"):
        env = gym.make(ID, difficulty=level, split=split)
        for seed in range(10):
            env.reset(seed=seed)
            assert split_of(key(env.unwrapped.problem)) == split


@pytest.mark.parametrize("level", LEVELS)
def test_hasty_plans_fail(level):
    env = gym.make(ID, difficulty=level)
    for seed in range(10):
        env.reset(seed=seed)
        problem, plans = env.unwrapped.problem, env.unwrapped.shortcuts()
        assert len(plans) == {"easy": 3, "medium": 4}.get(level, 7)
        for name, plan in plans.items():
            env.reset(options={"problem": problem})
            assert env.step(plan)[1] <= 0, name


@pytest.mark.parametrize("level", ["hard", "expert"])
def test_the_shortest_plan_is_asked_for_and_no_easy_rule_finds_it(level):
    env, rng, wins, n = gym.make(ID, difficulty=level).unwrapped, random.Random(0), 0, 40
    for seed in range(n):
        env.reset(seed=seed)
        initial, goal = dict(env.problem["initial"]), dict(env.problem["goal"])
        assert env.problem["limit"] == 2 * len(shortest_moves(initial, goal))
        assert 2 * len(tower_after_tower(initial, goal)) > env.problem["limit"]
        moves = with_one_way_out(initial, goal, lambda blocks, places: rng.choice(blocks))
        wins += 2 * len(moves) <= env.problem["limit"]
    assert wins / n < 0.5, "a block that makes way at random"


def test_everything_on_the_table_first_is_too_long_but_no_search_is_needed():
    """At the medium level, whichever block makes way."""
    env, rng, n, n_direct = gym.make(ID, difficulty="medium").unwrapped, random.Random(0), 200, 0
    for seed in range(n):
        env.reset(seed=seed)
        initial, goal, limit = dict(env.problem["initial"]), dict(env.problem["goal"]), env.problem["limit"]
        plan = as_actions(initial, tower_after_tower(initial, goal))
        assert execute(initial, plan) == goal
        assert len(plan) > limit > 2 * len(shortest_moves(initial, goal))
        direct = with_one_way_out(initial, goal, lambda blocks, places: rng.choice(blocks))
        n_direct += 2 * len(direct) <= limit
    assert n_direct / n > 0.8


def test_what_is_in_place_is_not_put_on_the_table():
    places = {"a": TABLE, "b": "a", "c": "b", "d": TABLE}
    assert tower_after_tower(places, {"b": "a", "d": "b"}) == [("c", TABLE), ("d", "b")]
    assert tower_after_tower(places, {"d": "c"}) == [("d", "c")]
    assert tower_after_tower(places, {"a": "d"}) == [("c", TABLE), ("b", TABLE), ("a", "d")]
    assert tower_after_tower(places, places) == []
