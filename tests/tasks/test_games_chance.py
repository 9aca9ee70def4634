"""Games in which chance decides: Gymnasium's toy texts and Blackjack. Their rules are held against Gymnasium's own."""

import random
from itertools import product

import gymnasium as gym
import pytest
from gymnasium.envs.toy_text.blackjack import BlackjackEnv as GymnasiumBlackjack
from gymnasium.envs.toy_text.cliffwalking import CliffWalkingEnv as GymnasiumCliffWalking
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv as GymnasiumFrozenLake
from gymnasium.envs.toy_text.taxi import TaxiEnv as GymnasiumTaxi
from open_loop import FixedPlay, best_plan
from task_play import LEVELS, finish, is_at_most, make, oracle, play, require_refused, results

from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import format_answer
from llm_envs.tasks.games import blackjack, cliff_walking, frozen_lake, taxi
from llm_envs.tasks.games.game import DIRECTIONS
from llm_envs.tasks.games.toy_text import made, plan

COUNTED = [1.0] * 4 + [0.5**n for n in range(1, 100)]
"""What the first, second, ... mistake of an episode counts."""


def stick(env, rng):
    return format_answer("stick")


@pytest.mark.parametrize(
    ("env_id", "moves"),
    [
        ("llm/FrozenLake-v0", ("right", "left")),
        ("llm/CliffWalking-v0", ("up", "down")),
        ("llm/Taxi-v0", ("dropoff", "dropoff")),
    ],
)
def test_the_start_has_the_key_of_later_visits(env_id, moves):
    env = make(env_id)
    problems = {"llm/FrozenLake-v0": LAKE, "llm/CliffWalking-v0": {"start": 36, "view": "plain", "seed": 0}}
    env.reset(seed=0, options={"problem": problems[env_id]} if env_id in problems else {})
    keys = [env.state_key()]
    for move in (*moves, *moves):
        env.step(format_answer(move))
        keys.append(env.state_key())
    assert keys[0] == keys[2] == keys[4]
    assert (keys[1] == keys[0]) == (moves[0] == moves[1])


# FrozenLake.

LAKE = {"map": ["SFF", "HFH", "FFG"], "seed": 1}


def test_frozen_lake():
    outcomes = play("llm/FrozenLake-v0", LAKE, "up", "Right", "jump", "down", "down", "right")
    assert [outcome[0] for outcome in outcomes] == [
        "  A B C\n1 @ F F\n2 H F H\n3 F F G\nYou are at A1.\n23 replies left.",  # the edge of the map
        "  A B C\n1 S @ F\n2 H F H\n3 F F G\nYou are at B1.\n22 replies left.",
        "Error: 'jump' is not an action; actions are left, down, right, up. 21 replies left.",
        "  A B C\n1 S F F\n2 H @ H\n3 F F G\nYou are at B2.\n20 replies left.",
        "  A B C\n1 S F F\n2 H F H\n3 F @ G\nYou are at B3.\n19 replies left.",
        "You have reached the goal, C3.",
    ]
    assert [outcome[1] for outcome in outcomes] == [0.0, 0.0, pytest.approx(-0.1), 0.0, 0.0, 1.0]
    assert [outcome[2] for outcome in outcomes] == [False] * 5 + [True]


def test_a_hole_loses():
    assert play("llm/FrozenLake-v0", LAKE, "down") == [("You are in a hole, A2. You lose.", 0.0, True, False)]


def test_going_to_and_fro_on_the_lake_earns_nothing():
    outcomes = play("llm/FrozenLake-v0", LAKE, *["right", "left"] * 12)
    assert sum(outcome[1] for outcome in outcomes) == 0.0
    assert outcomes[-1][2:] == (False, True)


def test_the_plan_on_slippery_ice_by_hand():
    # "SG" over "FF"; every move goes left, ahead or right of where it should by a third each. With one turn left
    # "right" reaches the goal with 1/3 (ahead), and so do "up" and "down" (to the side).
    plan_ = frozen_lake._plan(("SF", "FG"), 1 / 3, 2)
    values = plan_.values
    assert values[0].tolist() == pytest.approx([0.0, 1 / 3, 1 / 3, 0.0])
    # With two turns left, from S every move leads to each of two of (S, right cell, lower cell) or stays.
    # "right": ahead to the right cell, aside to the lower cell, aside into the wall: 2/3 of 1/3.
    assert values[1, 0] == pytest.approx(0.9999 * 2 / 9)
    # From the right cell: "down" reaches the goal with 1/3; aside stays there or goes to S, from where nothing is left.
    assert values[1, 1] == pytest.approx(1 / 3 + 0.9999 * max(1 / 3 * 1 / 3, 1 / 3 * 2 / 3))


@pytest.mark.parametrize("level", LEVELS)
def test_the_lake_is_gymnasiums(level):
    rng, env = random.Random(0), make("llm/FrozenLake-v0", level)
    sure = env.settings["sure"]
    for seed in range(10):
        env.reset(seed=seed)
        rows = env.problem["map"]
        other = GymnasiumFrozenLake(desc=rows, is_slippery=sure < 1, success_rate=sure)
        other.reset(seed=env.problem["seed"])
        over = False
        while not over:
            action = rng.randrange(4)
            _, reward, terminated, truncated, _ = env.step(format_answer(("left", "down", "right", "up")[action]))
            state, expected, is_over, _, _ = other.step(action)
            assert (env._state, reward, terminated) == (state, float(expected), is_over)
            over = terminated or truncated


@pytest.mark.parametrize(("level", "n"), [("easy", 40), ("medium", 50), ("hard", 20)])
def test_the_oracle_crosses_the_lake_as_often_as_its_plan_says(level, n):
    env, expected = make("llm/FrozenLake-v0", level), 0.0
    for seed in range(n):
        env.reset(seed=seed)
        expected += env.make_plan().values[-1, 0] / n
    _, rate = results(env, oracle, n)
    assert abs(rate - expected) < 3 * (0.25 / n) ** 0.5
    assert expected > env.chance_rate + 0.3


@pytest.mark.parametrize(
    ("level", "moves"),
    [
        ("easy", "DDRDDDDDDDDDRRRRRRRRRRRR"),
        ("medium", "URRRRRDRDRDRDRDRDRDRDRRDRDRDRDRRDRDRDDDR"),
        ("hard", "L" * 16 + "D" * 83 + "RDDRDRDRDRRRDRRRRRRRR"),
    ],
)
def test_the_best_fixed_ways_that_were_found_cross_at_most_at_the_chance_rate(level, moves):
    env, rates = make("llm/FrozenLake-v0", level), []
    for seed in range(60):
        env.reset(seed=seed)
        table = frozen_lake._lake(tuple(env.problem["map"]), env.settings["sure"]).P
        play = FixedPlay([(table, range(4))], [0], lambda reward, terminated: reward > 0)
        rates.append(play.rate(["LDRU".index(move) for move in moves[: env.max_turns]]))
    assert 0.03 < sum(rates) / len(rates) < env.chance_rate


@pytest.mark.parametrize("level", LEVELS)
def test_going_down_and_right_at_random_crosses_the_lake_at_most_at_the_chance_rate(level):
    env = make("llm/FrozenLake-v0", level)
    _, rate = results(env, lambda env, rng: format_answer(rng.choice(("down", "right"))), 50)
    assert is_at_most(rate, env.chance_rate, 50)


# CliffWalking.


def test_cliff_walking():
    outcomes = play("llm/CliffWalking-v0", {"start": 36, "view": "plain", "seed": 0}, "right", "up", "right", "down")
    assert outcomes[0][0].startswith("You fell from the cliff.\n") and "You are at A4." in outcomes[0][0]
    assert outcomes[1][0] == (
        "  A B C D E F G H I J K L\n1 . . . . . . . . . . . .\n2 . . . . . . . . . . . .\n3 @ . . . . . . . . . . .\n"
        "4 . C C C C C C C C C C G\nYou are at A3.\n14 replies left."
    )
    assert "You are at B3." in outcomes[2][0]
    assert outcomes[3][0].startswith("You fell from the cliff.\n") and "You are at A4." in outcomes[3][0]
    assert [outcome[1] for outcome in outcomes] == [pytest.approx(-0.1), 0.0, 0.0, pytest.approx(-0.1)]


def test_the_goal_of_the_cliff():
    outcomes = play("llm/CliffWalking-v0", {"start": 35, "view": "plain", "seed": 0}, "fly", "down")
    assert outcomes[0][1] == pytest.approx(-0.1)
    assert outcomes[1] == ("You have reached the goal, L4.", 1.0, True, False)


@pytest.mark.parametrize(
    ("view", "move", "at", "goal"),
    [("mirrored", "left", "K3", "A4"), ("upturned", "right", "B2", "L1"), ("turned", "left", "K2", "A1")],
)
def test_views_of_the_cliff(view, move, at, goal):
    env = make("llm/CliffWalking-v0")
    observation, _ = env.reset(options={"problem": {"start": 24, "view": view, "seed": 0}})
    last = [line.split() for line in observation.splitlines() if line[:1] in "14" and " C C " in line]
    assert last == [[goal[1], *("G" if goal[0] == "A" else "."), *"CCCCCCCCCC", "." if goal[0] == "A" else "G"]]
    observation, *_ = env.step(format_answer(move))
    assert f"You are at {at}." in observation
    while not (outcome := env.step(env.oracle()))[2]:
        pass
    assert outcome[:2] == (f"You have reached the goal, {goal}.", 1.0)


@pytest.mark.parametrize("view", [name for name in cliff_walking._VIEWS if name.startswith("upright")])
def test_upright_views_of_the_cliff(view):
    env = make("llm/CliffWalking-v0")
    observation, _ = env.reset(options={"problem": {"start": 24, "view": view, "seed": 0}})
    board = [line.split() for line in observation.splitlines() if line[:2].strip().isdigit()]
    assert [len(row) for row in board] == [5] * 12
    column, row = next((c, r) for r, line in enumerate(board) for c, mark in enumerate(line[1:]) if mark == "G")
    assert (column in (0, 3), row in (0, 11)) == (True, True)
    assert [line[1 + column] for line in board if line[1 + column] == "C"] == ["C"] * 10
    while not (outcome := env.step(env.oracle()))[2]:
        assert "fell" not in outcome[0]
    assert outcome[:2] == (f"You have reached the goal, {'ABCD'[column]}{row + 1}.", 1.0)


@pytest.mark.parametrize("level", LEVELS)
def test_the_cliff_is_gymnasiums(level):
    rng, env = random.Random(0), make("llm/CliffWalking-v0", level)
    for seed in range(10):
        env.reset(seed=seed)
        other = GymnasiumCliffWalking(is_slippery=level != "easy")
        other.reset(seed=env.problem["seed"])
        other.s = env.problem["start"]
        over, counted = False, iter(COUNTED)
        while not over:
            action = rng.randrange(4)
            name = env.shown_name(("up", "right", "down", "left")[action])
            _, reward, terminated, truncated, _ = env.step(format_answer(name))
            state, theirs, is_over, _, _ = other.step(action)
            assert (env._state, terminated) == (state, is_over)
            assert reward == pytest.approx(1.0 if is_over else -0.1 * next(counted) if theirs == -100 else 0.0)
            over = terminated or truncated


@pytest.mark.parametrize(("level", "expected"), [("easy", 1.0), ("medium", 0.89), ("hard", 0.61)])
def test_the_oracle_of_the_cliff_earns_what_is_declared(level, expected):
    env = make("llm/CliffWalking-v0", level)
    values = env.make_plan().values[-1] if env.reset(seed=0) else None
    assert sum(values[start] for start in cliff_walking._STARTS) / 25 == pytest.approx(expected, abs=0.01)
    earned, _ = results(env, oracle, 80)
    assert abs(earned - expected) < 3 * 0.5 / 80**0.5


def cliff_without_looking(is_slippery):
    names = list(DIRECTIONS)
    order = ("up", "right", "down", "left")
    table = cliff_walking._cliff(is_slippery).P
    worlds = [
        (table, [order.index(cliff_walking._MOVES[view][name]) for name in names]) for view in cliff_walking._VIEWS
    ]
    return FixedPlay(worlds, cliff_walking._STARTS, lambda reward, terminated: terminated)


@pytest.mark.parametrize(("level", "found"), [("easy", 0.2), ("medium", 0.12), ("hard", 0.07)])
def test_no_fixed_way_along_the_cliff_wins_more_than_the_chance_rate(level, found):
    env = make("llm/CliffWalking-v0", level)
    play = cliff_without_looking(env.settings["is_slippery"])
    against_an_edge = play.improve([0] * env.max_turns)
    best = max(play.rate(against_an_edge), best_plan(play, env.max_turns, 12 if level == "easy" else 2)[0])
    assert found <= best < env.chance_rate


def test_the_rate_of_a_fixed_way_is_that_of_playing_it():
    env, wins = make("llm/CliffWalking-v0"), 0
    names = list(DIRECTIONS)
    plan = [names.index(name) for name in ["right"] * 11 + ["down"] * 3]
    for start in cliff_walking._STARTS:
        for view in cliff_walking._VIEWS:
            env.reset(options={"problem": {"start": start, "view": view, "seed": 0}})
            for move in plan:
                *_, terminated, truncated, info = env.step(format_answer(names[move]))
                if terminated or truncated:
                    break
            wins += info.get("is_success", False)
    assert cliff_without_looking(False).rate(plan) == pytest.approx(wins / env.n_problems) and wins


@pytest.mark.parametrize("level", ["medium", "hard"])
def test_a_blind_walk_along_the_slippery_cliff_wins_at_most_at_the_chance_rate(level):
    env = make("llm/CliffWalking-v0", level)
    for moves in (["right", "right", "right", "down"], ["up", "right", "down", "left"]):
        _, rate = results(env, lambda env, rng, moves=moves: format_answer(rng.choice(moves)), 40)
        assert is_at_most(rate, env.chance_rate, 40)


# Taxi.

FARE = {"row": 0, "column": 1, "passenger": "R", "destination": "Y", "seed": 0}


def test_taxi():
    outcomes = play(
        "llm/Taxi-v0", FARE, "pickup", "east", "west", "pickup", "south", "dropoff", *["south"] * 3, "dropoff"
    )
    assert outcomes[0][0].startswith("Error: that is not possible here.\n")
    assert "The taxi is in row 1, column 2." in outcomes[1][0]  # a wall
    assert outcomes[2][0] == (
        "+---------+\n|@: | : :G|\n| : | : : |\n| : : : : |\n| | : | : |\n|Y| : |B: |\n+---------+\n"
        "The taxi is in row 1, column 1. The passenger waits at R (row 1, column 1). The destination is Y (row 5, "
        "column 1).\n17 replies left."
    )
    assert "The passenger is in the taxi." in outcomes[3][0]
    assert outcomes[-1] == ("The passenger is at the destination.", 1.0, True, False)
    assert [outcome[1] for outcome in outcomes[:6]] == [pytest.approx(x) for x in (-0.1, 0.0, 0.0, 0.0, 0.0, -0.1)]


def test_a_passenger_who_is_let_out_elsewhere_waits_there():
    outcomes = play("llm/Taxi-v0", FARE | {"destination": "G"}, "west", "pickup", *["south"] * 4, "dropoff")
    assert "The passenger waits at Y (row 5, column 1)." in outcomes[-1][0]
    assert outcomes[-1][1:3] == (0.0, False)


def test_taking_the_passenger_in_and_out_earns_nothing():
    outcomes = play("llm/Taxi-v0", FARE, "west", *["pickup", "dropoff"] * 9)
    assert sum(outcome[1] for outcome in outcomes) == 0.0


@pytest.mark.parametrize("level", LEVELS)
def test_the_taxi_is_gymnasiums(level):
    rng, env, changed = random.Random(0), make("llm/Taxi-v0", level), 0
    other = GymnasiumTaxi(is_rainy=level != "easy", fickle_passenger=level == "hard")
    for seed in range(12):
        env.reset(seed=seed)
        other.reset(seed=env.problem["seed"])
        other.s, destination, over = env._state, env._state % 4, False
        counted = iter(COUNTED)
        while not over:
            name = rng.choice(env.action_names)
            if rng.random() < 0.6:
                name = env.oracle().removeprefix("<answer>").removesuffix("</answer>")
            _, reward, terminated, truncated, _ = env.step(format_answer(name))
            state, theirs, is_over, _, _ = other.step(env.action_names.index(name))
            assert (env._state, terminated) == (state, is_over)
            assert reward == pytest.approx(-0.1 * next(counted) if theirs == -10 else {20: 1.0, -1: 0.0}[theirs])
            over = terminated or truncated
        changed += env._state % 4 != destination
    assert (changed > 0) == (level == "hard")


@pytest.mark.parametrize("level", LEVELS)
def test_the_oracle_of_the_taxi_arrives(level):
    env = make("llm/Taxi-v0", level)
    earned, rate = results(env, oracle, 60)
    assert rate >= (1.0 if level == "easy" else 0.95)
    assert earned == pytest.approx(rate)
    assert plan(taxi._taxi(level != "easy", False).P, env.max_turns, taxi._pay).values[-1].max() <= 1


@pytest.mark.parametrize("level", LEVELS)
def test_driving_at_random_arrives_at_most_at_the_chance_rate(level):
    toy = taxi._taxi(level != "easy", False)
    env = make("llm/Taxi-v0", level)
    blind = plan(toy.P, env.max_turns, lambda reward, terminated: float(terminated), at_random=range(6)).values[-1]
    assert (toy.initial_state_distrib * blind).sum() <= env.chance_rate


@pytest.mark.parametrize(
    ("level", "found", "actions"),  # the best of 150, 25 and 25 tries
    [
        ("easy", 0.137, "NNNPEEPSWSSSDPENNNND"),
        ("medium", 0.116, "EPSWSSWSSSWDPNNWWNWWNNNWNDPSSSWSSSD"),
        ("hard", 0.172, "NNENENEPWPSSSSSSWDPNNWWNWWNWNWNDPSSSWSSD"),
    ],
)
def test_no_fixed_drive_arrives_more_often_than_the_chance_rate(level, found, actions):
    env = make("llm/Taxi-v0", level)
    table = taxi._taxi(env.settings["is_rainy"], False).P
    starts = [
        ((row * 5 + column) * 5 + passenger) * 4 + destination
        for row, column, passenger, destination in product(range(5), range(5), range(4), range(4))
        if passenger != destination
    ]
    play = FixedPlay([(table, range(6))], starts, lambda reward, terminated: terminated)
    known = play.rate(play.improve(["SNEWPD".index(action) for action in actions]))
    assert known == pytest.approx(found, abs=0.001)
    assert max(known, best_plan(play, env.max_turns, 2)[0]) < env.chance_rate


def test_a_gymnasium_that_lacks_an_argument_is_named():
    with pytest.raises(InvalidConfigError, match=r"needs gymnasium 1\.3 or later"):
        made(GymnasiumTaxi, no_such_weather=True)


# Blackjack.


def raw_table(seed):
    table = GymnasiumBlackjack()
    table.reset(seed=seed)
    return table


def test_blackjack():
    table = raw_table(0)
    env = gym.make("llm/Blackjack-v0", difficulty="medium")
    observation, _ = env.reset(options={"problem": {"seed": 0}})
    mine = " ".join("A" if card == 1 else str(card) for card in table.player)
    seen = "A" if table.dealer[0] == 1 else table.dealer[0]
    total = blackjack.sum_hand(table.player)
    assert observation.endswith(
        f"Hand 1 of 10. Your cards: {mine} (sum {total}). The dealer's cards: {seen} and one hidden."
    )
    observation, reward, terminated, _, _ = env.step("<answer>fold</answer>")
    assert (observation, terminated) == ("Error: the answer is neither hit nor stick. 49 replies left.", False)
    assert reward == pytest.approx(-0.1)
    env.unwrapped._table.player = [10, 1]  # to stick on 21 gives nothing away
    observation, reward, terminated, _, _ = env.step("<answer>Stick</answer>")
    assert reward == pytest.approx(1 / 10)
    assert "Hand 2 of 10." in observation and not terminated


@pytest.mark.parametrize("level", LEVELS)
def test_the_cards_and_results_are_gymnasiums(level):
    env, rng = make("llm/Blackjack-v0", level), random.Random(0)
    for seed in range(8):
        env.reset(seed=seed)
        table, results, over = raw_table(env.problem["seed"]), [], False
        while not over:
            action = rng.randrange(2)
            _, _, terminated, truncated, _ = env.step(format_answer(("stick", "hit")[action]))
            _, result, is_over, _, _ = table.step(action)
            if is_over:
                results.append(int(result))
            if is_over and not terminated:
                table.reset()
            over = terminated or truncated
        assert env._results == results and len(results) == env.settings["hands"]


def test_what_a_decision_gives_away_by_hand():
    env = make("llm/Blackjack-v0", "easy")
    env.reset(options={"problem": {"seed": 0}})
    # 10 10 against 10 8: to stick on 20 wins for sure. Another card busts unless it is an ace, which makes 21 and wins
    # if nothing more is taken: 1/13 - 12/13.
    env._table.player, env._table.dealer = [10, 10], [10, 8]
    assert blackjack._worth(env._table, True) == {"stick": 1.0, "hit": pytest.approx(-11 / 13)}
    _, reward, *_ = env.step(format_answer("hit"))
    if len(env._results) == 0:  # the ace
        _, reward, *_ = env.step(format_answer("stick"))
    assert reward == pytest.approx(-1 / 5)  # 1 - 4 * (1 + 11 / 13), but at least -1
    # 10 7 against 10 9: to stick loses for sure. Another card wins with a 3 or a 4, which make 20 and 21, and draws
    # with a 2: 2/13, less 10/13 for all others. An ace makes 18, after which one card more wins with a 2 or a 3
    # and draws with an ace: (2 - 10) / 13.
    env._table.player, env._table.dealer = [10, 7], [10, 9]
    worth = blackjack._worth(env._table, True)
    assert worth["stick"] == -1.0
    assert worth["hit"] == pytest.approx((2 - 9) / 13 + (2 - 10) / 13 / 13)


def test_what_is_given_away_is_the_result_without_the_luck():
    # On average the result is that of the best play less what is given away: 0.0339 a hand at the easy level.
    env, rng, results, given_away = make("llm/Blackjack-v0", "easy"), random.Random(0), [], []
    for seed in range(400):
        env.reset(seed=seed)
        finish(env, lambda: format_answer(rng.choice(["hit", "stick", "stick"])))
        results += env._results
        given_away += env._given_away
    n = len(results)
    assert n == len(given_away) == 2_000
    assert abs(sum(results) / n - (0.0339 - sum(given_away) / n)) < 3 * 1 / n**0.5
    assert sum(given_away) / n > 0.2


def test_the_dealers_cards_are_shown_at_the_easy_level_and_sums_not_at_the_hard_one():
    table = raw_table(3)
    shown = {level: make("llm/Blackjack-v0", level).reset(options={"problem": {"seed": 3}})[0] for level in LEVELS}
    both = " ".join("A" if card == 1 else str(card) for card in table.dealer)
    assert f"The dealer's cards: {both} (sum {blackjack.sum_hand(table.dealer)})." in shown["easy"]
    assert "and one hidden" in shown["medium"] and "and one hidden" in shown["hard"]
    assert "(sum " in shown["medium"] and "(sum " not in shown["hard"]


def test_a_game_that_is_not_played_to_the_end_is_no_success():
    env = make("llm/Blackjack-v0", max_turns=2)
    env.reset(options={"problem": {"seed": 0}})
    env.step("<answer>stick</answer>")
    *_, truncated, info = env.step("hm")
    assert truncated
    assert info["is_success"] is False


def test_how_the_dealer_ends():
    # Published for an endless deck and a dealer who stands on every 17: bust with 0.2121 showing a ten, 0.4232 a six.
    assert dict(blackjack._dealer_showing(10))[0] == pytest.approx(0.2121, abs=1e-4)
    assert dict(blackjack._dealer_showing(6))[0] == pytest.approx(0.4232, abs=1e-4)
    for card in range(1, 11):
        assert sum(probability for _, probability in blackjack._dealer_showing(card)) == pytest.approx(1)
    assert blackjack._dealer_from((10, 7)) == ((17, 1.0),)
    assert blackjack._dealer_from((1, 6)) == ((17, 1.0),)


def test_the_best_play_is_that_of_sutton_and_barto():
    # Example 5.3, figure 5.2: the lowest sum on which the player sticks, without and with a usable ace.
    def lowest(has_usable_ace, card):
        dealer = blackjack._dealer_showing(card)
        return min(
            total
            for total in range(12, 22)
            if blackjack._worth_of_stick(total, dealer) >= blackjack._worth_of_hit(total, has_usable_ace, dealer)
        )

    assert [lowest(False, card) for card in range(2, 11)] == [13, 13, 12, 12, 12, 17, 17, 17, 17]
    assert lowest(False, 1) == 17
    assert [lowest(True, card) for card in range(2, 11)] == [18] * 7 + [19] * 2


def test_the_expected_result_of_the_best_play():
    closed = opened = 0.0
    for first, p in blackjack._CARDS:
        for second, q in blackjack._CARDS:
            total = int(blackjack.sum_hand([first, second]))
            ace = bool(blackjack.usable_ace([first, second]))
            for card, r in blackjack._CARDS:
                dealer = blackjack._dealer_showing(card)
                best = max(blackjack._worth_of_stick(total, dealer), blackjack._worth_of_hit(total, ace, dealer))
                closed += p * q * r * best
                for hidden, s in blackjack._CARDS:
                    dealer = blackjack._dealer_from((card, hidden))
                    best = max(blackjack._worth_of_stick(total, dealer), blackjack._worth_of_hit(total, ace, dealer))
                    opened += p * q * r * s * best
    assert closed == pytest.approx(-0.0466, abs=1e-4)
    assert opened == pytest.approx(0.0339, abs=1e-4)


@pytest.mark.parametrize("level", LEVELS)
def test_the_oracle_of_blackjack_gives_nothing_away(level):
    earned, rate = results(make("llm/Blackjack-v0", level), oracle, 50)
    assert (earned, rate) == (pytest.approx(1.0), 1.0)


def test_the_reward_of_blackjack_tells_players_apart():
    def to_17(env, rng):
        return format_answer("hit" if blackjack.sum_hand(env._table.player) < 17 else "stick")

    env = make("llm/Blackjack-v0", "medium")
    always, sometimes, best = (results(env, choose, 60) for choose in (stick, to_17, oracle))
    assert always[1] == sometimes[1] == 0 and best[1] == 1
    assert always[0] + 0.3 < sometimes[0] < best[0] - 0.06


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("least", [13, 15, 16])
def test_a_rule_that_does_not_look_at_the_dealer_never_succeeds(level, least):
    def choose(env, rng):
        player = env._table.player
        is_enough = blackjack.sum_hand(player) >= (18 if blackjack.usable_ace(player) else least)
        return format_answer("stick" if is_enough else "hit")

    assert results(make("llm/Blackjack-v0", level), choose, 15)[1] == 0


@pytest.mark.parametrize("level", ["medium", "hard"])
def test_a_table_by_the_dealers_card_succeeds(level):
    """A textbook's table: stick from 12 on against 4 to 6, from 13 on against 2 and 3, else from 17; with an ace 18."""

    def choose(env, rng):
        player, card = env._table.player, env._table.dealer[0]
        least = 12 if card in (4, 5, 6) else 13 if card in (2, 3) else 17
        if blackjack.usable_ace(player):
            least = 19 if card in (9, 10) else 18
        return format_answer("stick" if blackjack.sum_hand(player) >= least else "hit")

    assert results(make("llm/Blackjack-v0", level), choose, 20)[1] >= 0.9


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("answer", ["stick", "hit"])
def test_one_answer_to_every_hand_succeeds_at_most_at_the_chance_rate(level, answer):
    env = make("llm/Blackjack-v0", level)
    _, rate = results(env, lambda env, rng: format_answer(answer), 50)
    assert is_at_most(rate, env.chance_rate, 50)


def test_falls_of_an_episode_count_five_at_most():
    env = make("llm/CliffWalking-v0", "medium")
    env.reset(options={"problem": {"start": 36, "view": "plain", "seed": 0}})
    assert env.return_range == (-1.0, 1.0)
    earned = sum(env.step(format_answer("right"))[1] for _ in range(80))
    assert env.n_turns == 80 and -0.5 <= earned < -0.49


@pytest.mark.parametrize(
    ("task", "problem", "complaint"),
    [
        ("FrozenLake", LAKE | {"map": ["SF", "HHH"]}, "a square of 2 to 12 rows"),
        ("FrozenLake", LAKE | {"map": ["FS", "FG"]}, "with S first, G last"),
        ("FrozenLake", LAKE | {"map": ["SH", "HG"]}, "a way to the goal"),
        ("FrozenLake", LAKE | {"seed": -1}, "its seed must be"),
        ("CliffWalking", {"start": 40, "view": "plain", "seed": 0}, "from 0 to 36"),
        ("CliffWalking", {"start": 0, "view": "inside out", "seed": 0}, "its view must be one of plain"),
        ("Taxi", FARE | {"row": 5}, "from 0 to 4"),
        ("Taxi", FARE | {"destination": "R"}, "two of R, G, Y, B"),
        ("Taxi", FARE | {"passenger": "X"}, "two of R, G, Y, B"),
    ],
)
def test_what_cannot_be_played_is_refused(task, problem, complaint):
    require_refused(f"llm/{task}-v0", problem, complaint)
