"""Games in which chance decides: Gymnasium's toy texts and Blackjack. Their rules are held against Gymnasium's own."""

import random

import gymnasium as gym
import pytest
from gymnasium.envs.toy_text.blackjack import BlackjackEnv as GymnasiumBlackjack
from gymnasium.envs.toy_text.cliffwalking import CliffWalkingEnv as GymnasiumCliffWalking
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv as GymnasiumFrozenLake
from gymnasium.envs.toy_text.taxi import TaxiEnv as GymnasiumTaxi

from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import format_answer
from llm_envs.tasks.games import blackjack, cliff_walking, frozen_lake, taxi
from llm_envs.tasks.games.toy_text import made, plan

LEVELS = ["easy", "medium", "hard"]


def play(id, problem, *answers, **kwargs):
    """Play a problem; return (observation, reward, terminated, truncated) of each step."""
    env = gym.make(id, **kwargs)
    env.reset(seed=0, options={"problem": problem})
    return [env.step(format_answer(answer))[:4] for answer in answers]


def make(id, level=None, **kwargs):
    return gym.make(id, difficulty=level, **kwargs).unwrapped


def results(env, choose, n):
    """Return the mean of what the player `choose(env, rng)` earns, and of its successes."""
    rng, earned, wins = random.Random(0), 0.0, 0
    for seed in range(n):
        env.reset(seed=seed)
        over = False
        while not over:
            _, reward, terminated, truncated, info = env.step(choose(env, rng))
            over = terminated or truncated
            earned += reward
        wins += info["is_success"]
    return earned / n, wins / n


def oracle(env, rng):
    return env.oracle()


def is_at_most(rate, declared, n):
    return rate <= declared + 3 * (declared * (1 - declared) / n) ** 0.5


# FrozenLake.

LAKE = {"map": ["SFF", "HFH", "FFG"], "seed": 1}


def test_frozen_lake():
    outcomes = play("llm/FrozenLake-v0", LAKE, "up", "Right", "jump", "down", "down", "right")
    assert [outcome[0] for outcome in outcomes] == [
        "  A B C\n1 @ F F\n2 H F H\n3 F F G\nYou are at A1.\n19 replies left.",  # the edge of the map
        "  A B C\n1 S @ F\n2 H F H\n3 F F G\nYou are at B1.\n18 replies left.",
        "Error: 'jump' is no action; actions are left, down, right, up. 17 replies left.",
        "  A B C\n1 S F F\n2 H @ H\n3 F F G\nYou are at B2.\n16 replies left.",
        "  A B C\n1 S F F\n2 H F H\n3 F @ G\nYou are at B3.\n15 replies left.",
        "You have reached the goal, C3.",
    ]
    assert [outcome[1] for outcome in outcomes] == [0.0, 0.0, pytest.approx(-0.1), 0.0, 0.0, 1.0]
    assert [outcome[2] for outcome in outcomes] == [False] * 5 + [True]


def test_a_hole_loses():
    assert play("llm/FrozenLake-v0", LAKE, "down") == [("You are in a hole, A2. You lose.", 0.0, True, False)]


def test_going_to_and_fro_on_the_lake_earns_nothing():
    outcomes = play("llm/FrozenLake-v0", LAKE, *["right", "left"] * 10)
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


@pytest.mark.parametrize("level", LEVELS)
def test_going_down_and_right_at_random_crosses_the_lake_at_most_at_the_chance_rate(level):
    env = make("llm/FrozenLake-v0", level)
    _, rate = results(env, lambda env, rng: format_answer(rng.choice(("down", "right"))), 50)
    assert is_at_most(rate, env.chance_rate, 50)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"map": ["SF", "HHH"]}, "a square of 2 to 12 rows"),
        ({"map": ["FS", "FG"]}, "with S first, G last"),
        ({"map": ["SH", "HG"]}, "a way to the goal"),
        ({"seed": -1}, "its seed must be"),
    ],
)
def test_frozen_lake_refuses_what_cannot_be_played(change, complaint):
    with pytest.raises(InvalidConfigError, match=complaint):
        make("llm/FrozenLake-v0").reset(options={"problem": LAKE | change})


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


@pytest.mark.parametrize("level", LEVELS)
def test_the_cliff_is_gymnasiums(level):
    rng, env = random.Random(0), make("llm/CliffWalking-v0", level)
    for seed in range(10):
        env.reset(seed=seed)
        other = GymnasiumCliffWalking(is_slippery=level != "easy")
        other.reset(seed=env.problem["seed"])
        other.s = env.problem["start"]
        over = False
        while not over:
            action = rng.randrange(4)
            name = env.turned(("up", "right", "down", "left")[action])
            _, reward, terminated, truncated, _ = env.step(format_answer(name))
            state, theirs, is_over, _, _ = other.step(action)
            assert (env._state, terminated) == (state, is_over)
            assert reward == pytest.approx(1.0 if is_over else -0.1 if theirs == -100 else 0.0)
            over = terminated or truncated


@pytest.mark.parametrize(("level", "expected"), [("easy", 1.0), ("medium", 0.89), ("hard", 0.61)])
def test_the_oracle_of_the_cliff_earns_what_is_declared(level, expected):
    env = make("llm/CliffWalking-v0", level)
    values = env.make_plan().values[-1] if env.reset(seed=0) else None
    assert sum(values[start] for start in cliff_walking._STARTS) / 25 == pytest.approx(expected, abs=0.01)
    earned, _ = results(env, oracle, 80)
    assert abs(earned - expected) < 3 * 0.5 / 80**0.5


def test_a_fixed_way_along_the_cliff_wins_at_most_at_the_chance_rate():
    env = make("llm/CliffWalking-v0")
    problems = [(start, view) for start in cliff_walking._STARTS for view in cliff_walking._VIEWS]
    assert len(problems) == env.n_problems
    ways = ("up 1 right 11 down 3", "right 11 down 3 up 2", "down 1 right 11 up 3", "up 2 right 11 down 3")
    for way in ways:
        words, wins = way.split(), 0
        moves = [name for name, count in zip(words[::2], words[1::2], strict=True) for _ in range(int(count))]
        for start, view in problems:
            env.reset(options={"problem": {"start": start, "view": view, "seed": 0}})
            for move in [*moves, "up"]:
                *_, terminated, truncated, info = env.step(format_answer(move))
                if terminated or truncated:
                    break
            wins += info.get("is_success", False)
        assert 0.2 < wins / len(problems) <= env.chance_rate


@pytest.mark.parametrize("level", ["medium", "hard"])
def test_a_blind_walk_along_the_slippery_cliff_wins_at_most_at_the_chance_rate(level):
    env = make("llm/CliffWalking-v0", level)
    for moves in (["right", "right", "right", "down"], ["up", "right", "down", "left"]):
        _, rate = results(env, lambda env, rng, moves=moves: format_answer(rng.choice(moves)), 40)
        assert is_at_most(rate, env.chance_rate, 40)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [({"start": 40}, "from 0 to 36"), ({"view": "inside out"}, "its view must be one of plain")],
)
def test_cliff_walking_refuses_what_cannot_be_played(change, complaint):
    with pytest.raises(InvalidConfigError, match=complaint):
        make("llm/CliffWalking-v0").reset(options={"problem": {"start": 0, "view": "plain", "seed": 0} | change})


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
        "column 1).\n27 replies left."
    )
    assert "The passenger is in the taxi." in outcomes[3][0]
    assert outcomes[-1] == ("The passenger is at the destination.", 1.0, True, False)
    assert [outcome[1] for outcome in outcomes[:6]] == [pytest.approx(x) for x in (-0.1, 0.0, 0.0, 0.0, 0.0, -0.1)]


def test_a_passenger_who_is_let_out_elsewhere_waits_there():
    outcomes = play("llm/Taxi-v0", FARE | {"destination": "G"}, "west", "pickup", *["south"] * 4, "dropoff")
    assert "The passenger waits at Y (row 5, column 1)." in outcomes[-1][0]
    assert outcomes[-1][1:3] == (0.0, False)


def test_taking_the_passenger_in_and_out_earns_nothing():
    outcomes = play("llm/Taxi-v0", FARE, "west", *["pickup", "dropoff"] * 10)
    assert sum(outcome[1] for outcome in outcomes) == 0.0


@pytest.mark.parametrize("level", LEVELS)
def test_the_taxi_is_gymnasiums(level):
    rng, env, changed = random.Random(0), make("llm/Taxi-v0", level), 0
    other = GymnasiumTaxi(is_rainy=level != "easy", fickle_passenger=level == "hard")
    for seed in range(12):
        env.reset(seed=seed)
        other.reset(seed=env.problem["seed"])
        other.s, destination, over = env._state, env._state % 4, False
        while not over:
            name = rng.choice(env.action_names)
            if rng.random() < 0.6:
                name = env.oracle().removeprefix("<answer>").removesuffix("</answer>")
            _, reward, terminated, truncated, _ = env.step(format_answer(name))
            state, theirs, is_over, _, _ = other.step(env.action_names.index(name))
            assert (env._state, terminated) == (state, is_over)
            assert reward == pytest.approx({20: 1.0, -10: -0.1, -1: 0.0}[theirs])
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
    ("change", "complaint"),
    [
        ({"row": 5}, "from 0 to 4"),
        ({"destination": "R"}, "two of R, G, Y, B"),
        ({"passenger": "X"}, "two of R, G, Y, B"),
    ],
)
def test_taxi_refuses_what_cannot_be_played(change, complaint):
    with pytest.raises(InvalidConfigError, match=complaint):
        make("llm/Taxi-v0").reset(options={"problem": FARE | change})


def test_a_gymnasium_that_lacks_an_argument_is_named():
    with pytest.raises(InvalidConfigError, match=r"needs gymnasium 1\.3 or later"):
        made(GymnasiumTaxi, no_such_weather=True)


# Blackjack.


def raw_table(seed):
    table = GymnasiumBlackjack()
    table.reset(seed=seed)
    return table


def test_blackjack():
    # The cards of seed 0 by Gymnasium: 10 A against 3 10, so that the first hand is won by sticking, whatever comes.
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
    _, result, _, _, _ = table.step(0)
    observation, reward, terminated, _, _ = env.step("<answer>Stick</answer>")
    assert reward == pytest.approx(result / 10)
    assert "Hand 2 of 10." in observation and not terminated


@pytest.mark.parametrize("level", LEVELS)
def test_the_cards_and_results_are_gymnasiums(level):
    env, rng = make("llm/Blackjack-v0", level), random.Random(0)
    for seed in range(8):
        env.reset(seed=seed)
        table, earned, expected, over = raw_table(env.problem["seed"]), 0.0, 0.0, False
        while not over:
            action = rng.randrange(2)
            _, reward, terminated, truncated, info = env.step(format_answer(("stick", "hit")[action]))
            _, result, is_over, _, _ = table.step(action)
            if is_over and not terminated:
                table.reset()
            earned, expected, over = earned + reward, expected + result, terminated or truncated
        assert earned == pytest.approx(expected / env.settings["hands"])
        assert info["is_success"] == (expected >= 0)


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


@pytest.mark.parametrize(
    ("level", "net", "success"), [("easy", 0.034, 0.55), ("medium", -0.047, 0.5), ("hard", -0.047, 0.43)]
)
def test_the_oracle_of_blackjack_earns_what_is_declared(level, net, success):
    n, env = 50, make("llm/Blackjack-v0", level)
    earned, rate = results(env, oracle, n)
    hands = env.settings["hands"]
    assert abs(earned - net) < 3 * 0.95 / (n * hands) ** 0.5
    assert abs(rate - success) < 3 * 0.5 / n**0.5


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("answer", ["stick", "hit"])
def test_one_answer_to_every_hand_succeeds_at_most_at_the_chance_rate(level, answer):
    env = make("llm/Blackjack-v0", level)
    _, rate = results(env, lambda env, rng: format_answer(answer), 50)
    assert is_at_most(rate, env.chance_rate, 50)
