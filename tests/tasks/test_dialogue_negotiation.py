"""Negotiation."""

import random

import gymnasium as gym
import pytest

import llm_envs
from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import format_answer

assert llm_envs  # registers
ID = "llm/Negotiation-v0"
# A surplus of 100 between 300 and 400. The seller comes down by half of what the buyer comes up, of at most 40.
BUYER = {
    "role": "buyer",
    "item": "a sofa",
    "worth": 400,
    "reserve": 300,
    "ask": 350,
    "floor": 180,
    "pace": 50,
    "stride": 40,
    "patience": 1,
    "bluff": 0,
}
SELLER = BUYER | {"role": "seller", "worth": 200, "ask": 250, "floor": 420}


def play(problem, *answers, **kwargs):
    """Play the answers; return what was said, and the last step's reward, terminated, truncated and success."""
    env = gym.make(ID, **kwargs)
    env.reset(options={"problem": problem})
    said = []
    for answer in answers:
        observation, reward, terminated, truncated, info = env.step(format_answer(answer))
        said.append(observation)
    return said, reward, terminated, truncated, info.get("is_success")


def test_a_buyer_gets_the_whole_surplus_at_the_sellers_limit():
    said, reward, terminated, _, success = play(BUYER, 180, 220, 260, 280, "accept")
    assert said == [
        "My price is 350.",
        "Let us say 330.",
        "Let us say 310.",
        "Let us say 300.",
        "Deal at 300: 100% of the surplus is yours.",
    ]
    assert (reward, terminated, success) == (1.0, True, True)


def test_a_seller_is_a_buyer_in_a_mirror():
    said, reward, *_ = play(SELLER, 420, 380, 340, 320, "accept")
    assert said[1:4] == ["Let us say 270.", "Let us say 290.", "Let us say 300."]
    assert reward == 1.0
    assert play(SELLER, 250)[1:3] == (0.5, True)  # (250 - 200) / (300 - 200)
    assert play(SELLER, 421)[0] == ["That is no serious offer. My price is 250."]
    assert play(SELLER, 150)[1] == -0.5


@pytest.mark.parametrize(
    ("answers", "reward", "success"),
    [
        (["accept"], 0.5, False),
        ([350], 0.5, False),  # what it asks is taken at once
        ([360], 0.4, False),  # and so is more
        ([500], -1.0, False),  # a loss
        ([100_000], -1.0, False),  # no loss counts more
        ([180, 260, "accept"], 0.7, False),  # of 80 only 40 count: 330
        ([180, 220, 260, "accept"], 0.9, True),
        (["leave"], 0.0, False),
    ],
)
def test_shares_worked_by_hand(answers, reward, success):
    _, paid, terminated, _, won = play(BUYER, *answers)
    assert paid == pytest.approx(reward)
    assert (terminated, won) == (True, success)


def test_patience():
    said, reward, terminated, _, success = play(BUYER, 180, 180, 170)
    assert said == ["My price is 350.", "My price is 350.", "We get nowhere. Goodbye. There is no deal."]
    assert (reward, terminated, success) == (0.0, True, False)
    assert play(BUYER, 179, 1)[0][0] == "That is no serious offer. My price is 350."
    assert play(BUYER, 179, 1)[2]


def test_a_last_word_that_is_none():
    said, reward, *_ = play(BUYER | {"bluff": 330}, 180, 220, 260, 300, "accept", difficulty="hard")
    assert said[1:4] == ["330 is my last word.", "Let us say 310.", "Let us say 300."]
    assert reward == 1.0
    said, *_ = play(BUYER | {"bluff": 335}, 180, 220, 250)
    assert said[1:] == ["335 is my last word.", "Let us say 320."]  # 20 would have been due; 15 are given


def test_without_a_deal_there_is_nothing():
    said, reward, terminated, truncated, success = play(BUYER, 180, 181, 182, max_turns=3)
    assert said[-1] == "My price is 350."  # half of 1 is nothing
    assert (reward, terminated, truncated, success) == (0.0, False, True, False)


@pytest.mark.parametrize(
    ("action", "said", "reward"),
    [
        ("Please be kind.", "Let us talk about the price. Mine is 350.", 0.0),
        (format_answer("200 euros"), "Error: answer with a price", -0.1),
        (format_answer("-5"), "Error: answer with a price", -0.1),
        (format_answer(0), "Error: answer with a price", -0.1),
        (format_answer("accept 200"), "Error: answer with a price", -0.1),
        (format_answer("9" * 300), "Error: answer with a price", -0.1),
        ("<answer>200", "Error: the reply cannot be read", -0.1),
    ],
)
def test_what_is_no_offer_changes_nothing(action, said, reward):
    env = gym.make(ID)
    env.reset(options={"problem": BUYER})
    observation, paid, terminated, *_ = env.step(action)
    assert observation.startswith(said)
    assert paid == pytest.approx(reward)
    assert not terminated
    assert env.step(format_answer("ACCEPT"))[1] == 0.5


@pytest.mark.parametrize("level", ["easy", "medium", "hard"])
def test_the_whole_surplus_can_be_had(level):
    env = gym.make(ID, difficulty=level).unwrapped
    roles = set()
    for seed in range(200):
        env.reset(seed=seed)
        roles.add(env.problem["role"])
        env.check_problem(env.problem)
        over = False
        while not over:
            _, reward, over, truncated, _ = env.step(env.oracle())
            assert not truncated
        assert reward == 1.0
    assert roles == {"buyer", "seller"}


def strategies(level):
    env = gym.make(ID, difficulty=level).unwrapped
    rng = random.Random(0)

    def play_all(offers_of, n=200):
        wins = 0
        for seed in range(n):
            env.reset(seed=seed)
            offers, over = offers_of(env), False
            while not over:
                *_, terminated, truncated, info = env.step(format_answer(offers.pop(0)))
                over = terminated or truncated
            wins += info["is_success"]
        return wins / n

    def drawn(env):
        low, high = sorted((env.problem["floor"], env.problem["worth"]))
        return [rng.randint(low, high) for _ in range(env.max_turns)]

    return env, play_all, drawn


@pytest.mark.parametrize("level", ["easy", "medium", "hard"])
def test_offers_at_random_and_fixed_ones_win_no_more_than_the_chance_rate(level):
    env, play_all, drawn = strategies(level)
    assert play_all(drawn) <= env.chance_rate
    in_order = play_all(lambda env: sorted(drawn(env), reverse=env.problem["role"] == "seller"))
    assert in_order <= env.chance_rate + 3 * (env.chance_rate / 200) ** 0.5
    assert play_all(lambda env: ["accept"]) == 0.0
    assert play_all(lambda env: [env.problem["floor"]] * env.max_turns) == 0.0
    assert play_all(lambda env: [env.problem["floor"], env.problem["worth"], "leave"]) == 0.0


@pytest.mark.parametrize(
    "change",
    [
        {"role": "broker"},
        {"worth": 300},
        {"floor": 300},
        {"floor": 220},  # 80 are not enough to bring 350 down to 300
        {"ask": 290},
        {"pace": 0},
        {"stride": 0},
        {"bluff": 299},
        {"reserve": -5},
    ],
)
def test_what_cannot_be_played_is_refused(change):
    with pytest.raises(InvalidConfigError, match="cannot be played"):
        gym.make(ID).unwrapped.reset(options={"problem": BUYER | change})
