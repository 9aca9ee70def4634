"""Negotiation."""

import random
from itertools import product

import gymnasium as gym
import pytest
from task_play import finish

import llm_envs
from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import format_answer
from llm_envs.tasks.dialogue.packages import THEMES, best_package, cost_of, points_of

assert llm_envs  # registers
ID = "llm/Negotiation-v0"
LEVELS = ["easy", "medium", "hard", "expert"]
# What costs nothing is worth 2 + 1 = 3. Within the limit of 8 the best is "at once" and "oak": 9 + 4 = 13, for 7 + 1.
KITCHEN = {
    "theme": "kitchen",
    "things": [2, 3],
    "own": [[9, 5, 2, 0], [0, 1, 4, 6]],
    "costs": [[7, 3, 0, 1], [0, 0, 1, 9]],
    "limit": 8,
    "patience": 1,
    "likened": [[1, 2, 0, 3]],
}
DEAREST, BEST = "payment: at once; wood: walnut", "payment: at once; wood: oak"


def play(problem, *actions, **kwargs):
    """Play the actions; return what was said, and the last step's reward, terminated, truncated and success."""
    env = gym.make(ID, **kwargs)
    env.reset(options={"problem": problem})
    said = []
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(action)
        said.append(observation)
    return said, reward, terminated, truncated, info.get("is_success")


def test_the_first_message():
    env = gym.make(ID)
    assert env.reset(options={"problem": KITCHEN})[0].splitlines() == [
        "Agree with the joiner on a new kitchen. You have to settle these things. The number after each option is its "
        "worth to you in points:",
        "- payment: at once (9), in two parts (5), in ten parts (2), after a year (0)",
        "- wood: pine (0), beech (1), oak (4), walnut (6)",
        "Each option also costs the joiner something. The costs of all options in an offer must not add up to more "
        "than a limit. You know neither the costs nor the limit. If you ask about one thing, the joiner tells you the "
        "cost of each of its options. The joiner accepts any offer within the limit. If an offer is above the limit, "
        "the joiner refuses it and tells you by how much it is too expensive. The joiner refuses 1 offer in this way. "
        "If another offer is above the limit, the joiner ends the talks and you get no points. You have 6 messages. "
        "The first question that is not about one thing does not count. Try to get as many points as possible.",
    ]


def test_asking_and_a_refusal_tell_what_is_needed():
    said, reward, terminated, _, success = play(
        KITCHEN, "What about the payment?", "And the wood?", format_answer(DEAREST), format_answer(BEST)
    )
    assert said == [
        'As to the payment: "at once" costs me 7, "in two parts" costs me 3, "in ten parts" costs me nothing, '
        '"after a year" costs me 1.',
        'As to the wood: "pine" costs me nothing, "beech" costs me nothing, "oak" costs me as much as "after a year" '
        'for the payment, "walnut" costs me 9.',
        "No. That would cost me 16, which is 8 too much. The most expensive part for me is the wood.",
        "Deal: you get 100% of the possible points.",
    ]
    assert (reward, terminated, success) == (1.0, True, True)


@pytest.mark.parametrize(
    ("answers", "reward", "success"),
    [
        ([BEST], 1.0, True),
        (["wood: OAK.\n payment: At once"], 1.0, True),
        (["payment: in two parts; wood: oak"], 0.6, False),  # (5 + 4 - 3) / (13 - 3)
        ([DEAREST, "payment: at once; wood: beech"], 0.7, False),
        (["payment: in ten parts; wood: beech"], 0.0, False),  # what costs nothing
        (["payment: after a year; wood: pine"], 0.0, False),  # and less than that
        ([DEAREST, DEAREST], 0.0, False),  # the second refusal is the last
        (["leave"], 0.0, False),
    ],
)
def test_shares_worked_by_hand(answers, reward, success):
    _, paid, terminated, _, won = play(KITCHEN, *map(format_answer, answers))
    assert paid == pytest.approx(reward)
    assert (terminated, won) == (True, success)


def test_the_counterpart_leaves_when_its_patience_is_at_an_end():
    said, reward, terminated, _, success = play(KITCHEN, *[format_answer(DEAREST)] * 2)
    assert said[1] == "That is too expensive again. I end the talks without a deal."
    assert (reward, terminated, success) == (0.0, True, False)
    said, _, terminated, *_ = play(KITCHEN | {"patience": 2}, *[format_answer(DEAREST)] * 2)
    assert said[1] == said[0] and not terminated


@pytest.mark.parametrize(
    ("action", "said", "reward"),
    [
        ("Please be kind.", "Ask me about one of payment, wood, or make an offer.", 0.0),
        ("The wood, and the payment?", "One thing at a time, please.", 0.0),
        (format_answer("120"), "Error: '120' is not one of payment, wood", -0.1),
        (format_answer("wood: oak"), "Error: an offer names an option of each thing; payment is missing", -0.1),
        (format_answer("wood: oak; wood: oak"), "Error: the offer names wood twice", -0.1),
        (format_answer("wood: steel"), "Error: 'steel' is not an option for wood: pine, beech, oak, walnut", -0.1),
        ("<answer>wood: oak", "Error: the reply cannot be read", -0.1),
        ("", "Error: the reply is empty", -0.1),
    ],
)
def test_what_is_no_offer_changes_nothing(action, said, reward):
    env = gym.make(ID)
    env.reset(options={"problem": KITCHEN})
    observation, paid, terminated, *_ = env.step(action)
    assert observation.startswith(said)
    assert paid == pytest.approx(reward)
    assert not terminated
    assert env.step(format_answer(BEST))[1] == 1.0


@pytest.mark.parametrize(
    "answer",
    [
        "Payment: At once, Wood: Oak",
        "payment = at once\nwood = oak",
        "- payment: at once\n- wood: oak",
        "1. **payment**: at once (9)\n2. **wood**: oak (4)",
        "The payment is at once and\nthe wood is oak.",
        '{"payment": "at once", "wood": "oak"}',
        "I offer payment: at once; wood: oak.",
        "```\nwood: oak\npayment: at once\n```",
        "at once; oak",
    ],
)
def test_offers_in_natural_forms(answer):
    assert play(KITCHEN, format_answer(answer))[1] == 1.0


@pytest.mark.parametrize(
    "answer",
    [
        "payment: at once; wood: oak or walnut",
        "payment: at once; wood: oak; wood: walnut",
        "payment: at once; wood: pine/oak",
        "payment: at once; wood: not oak",
        "payment: at once; wood: oak; or leave",
        "at once; steel",
    ],
)
def test_offers_that_are_not_one_package(answer):
    _, reward, terminated, *_ = play(KITCHEN, format_answer(answer))
    assert (reward, terminated) == (pytest.approx(-0.1), False)


@pytest.mark.parametrize(
    "answer", ["leave", "Leave.", "**leave**", "I leave", "no deal", "I will leave without a deal."]
)
def test_leaving(answer):
    said, reward, terminated, *_ = play(KITCHEN, format_answer(answer))
    assert (said, reward, terminated) == (["You left without a deal."], 0.0, True)


def test_a_question_may_name_what_was_told_before():
    said = play(KITCHEN, "The payment?", "Thanks for the payment. And the wood?", "Wood or payment?")[0]
    assert said[1].startswith("As to the wood: ")
    assert said[2] == "One thing at a time, please.\n(This message does not count.)"
    assert play(KITCHEN, "I need wood. What about the payment?")[0][0].startswith("As to the payment: ")


def test_the_example_of_an_offer_is_of_this_problem():
    env = gym.make(ID)
    env.reset(options={"problem": KITCHEN})
    example = "<answer>payment: after a year; wood: walnut</answer>"
    assert env.unwrapped.system_prompt.endswith(f"Make an offer in this form: {example}")
    assert env.step(example)[0].startswith(("Deal", "No. That would"))


def test_without_a_deal_there_is_nothing():
    _, reward, terminated, truncated, success = play(KITCHEN, "The wood?", "The wood?", max_turns=3)
    assert (reward, terminated, truncated, success) == (0.0, False, True, False)


@pytest.mark.parametrize("level", LEVELS)
def test_the_oracle_finds_the_best_package(level):
    env = gym.make(ID, difficulty=level).unwrapped
    themes = set()
    for seed in range(100):
        env.reset(seed=seed)
        env.check_problem(env.problem)
        themes.add(env.problem["theme"])
        assert finish(env, env.oracle)[-1][1:4] == (1.0, True, False)
        assert env.n_turns == env.turns_allowed() - 1 == env.max_turns - 2
    assert themes == set(THEMES)


@pytest.mark.parametrize("level", LEVELS[:3])
def test_the_best_package_is_that_of_an_exhaustive_search(level):
    env = gym.make(ID, difficulty=level).unwrapped
    for seed in range(20):
        env.reset(seed=seed)
        problem = env.problem
        packages = list(product(range(4), repeat=len(problem["own"])))
        for limit in (0, problem["limit"]):
            points, package = best_package(problem["own"], problem["costs"], limit)
            assert points == points_of(problem, package) and cost_of(problem, package) <= limit
            assert points == max(points_of(problem, p) for p in packages if cost_of(problem, p) <= limit)


# Players that read no reply. Each makes two offers, which is all that the counterpart's patience allows.


def equal_steps(env, rng):
    """Packages worth 85% and 70% of all points, as the first version was won by: equal steps down from the dearest."""
    own = env.problem["own"]
    most = sum(map(max, own))
    some = [[rng.randrange(4) for _ in own] for _ in range(2_000)]
    return [min(some, key=lambda p: abs(points_of(env.problem, p) - share * most)) for share in (0.85, 0.7)]


def keep_the_dearest(env, rng):
    """All that is worth most but for the cheapest thing, then but for the two cheapest; what is given up is worth 0."""
    own = env.problem["own"]
    order = sorted(range(len(own)), key=lambda number: max(own[number]))
    return [
        [row.index(0) if number in order[:n_given] else row.index(max(row)) for number, row in enumerate(own)]
        for n_given in (1, 2)
    ]


def by_average_costs(env, rng):
    """The best packages, were the costs and the limit what they are on average for an option so dear."""
    own = env.problem["own"]
    ranks = [sorted(row, reverse=True) for row in own]
    costs = [[(10, 7, 4, 1)[ranks[number].index(value)] for value in row] for number, row in enumerate(own)]
    return [best_package(own, costs, int(10 * len(own) * share))[1] for share in (0.5, 0.36)]


def at_random(env, rng):
    return [[rng.randrange(4) for _ in env.problem["own"]] for _ in range(2)]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("offers", [equal_steps, keep_the_dearest, by_average_costs, at_random])
def test_players_that_read_nothing_win_no_more_than_the_chance_rate(level, offers):
    env, rng, wins = gym.make(ID, difficulty=level).unwrapped, random.Random(0), 0
    n = 40 if offers is equal_steps else 400
    for seed in range(n):
        env.reset(seed=seed)
        for package in offers(env, rng):
            named = zip(env._names, package, strict=True)
            text = "; ".join(f"{name}: {env._theme.things[name][place]}" for name, place in named)
            _, _, terminated, _, info = env.step(format_answer(text))
            if terminated:
                wins += info["is_success"]
                break
    rate = env.chance_rate
    assert wins / n <= {"easy": 0.25, "medium": 0.18, "hard": 0.13, "expert": 0.08}[level] + 3 * (rate / n) ** 0.5


@pytest.mark.parametrize(
    "change",
    [
        {"theme": "zoo"},
        {"things": [2, 2]},
        {"things": [2, 7]},
        {"own": [[9, 5, 2, 0]]},
        {"own": [[9, 5, 2, "0"], [0, 1, 4, 6]]},
        {"costs": [[7, 3, 1, 1], [0, 0, 1, 9]]},  # nothing for the payment is free
        {"limit": 16},  # all that is wished for could be had
        {"limit": 0},
        {"patience": 0},
        {"likened": [[0, 0, 0, 1]]},
        {"likened": [[0, 0, 1, 1], [1, 1, 0, 2]]},
        {"likened": [[0, 4, 1, 1]]},
        {"likened": [[0, 0, 1]]},
    ],
)
def test_what_cannot_be_played_is_refused(change):
    with pytest.raises(InvalidConfigError, match="cannot be played"):
        gym.make(ID).unwrapped.reset(options={"problem": KITCHEN | change})
