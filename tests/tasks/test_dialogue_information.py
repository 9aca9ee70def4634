"""InformationSeeking."""

from collections import Counter

import gymnasium as gym
import pytest
from task_play import finish

import llm_envs
from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import format_answer, format_tool_call
from llm_envs.tasks.dialogue.information_seeking import THEMES, price_of, topics_in

assert llm_envs  # registers
ID = "llm/InformationSeeking-v0"
TARIFF = [
    "destination",
    {
        "domestic": ["price", 20, [["weight", 3], ["insurance", 15]]],
        "overseas": ["speed", {"express": ["price", 90, [["pieces", 10]]], "standard": ["price", 40, [["length", 2]]]}],
    },
]
FACTS = {"destination": "domestic", "weight": [4, 3], "insurance": True, "speed": "express", "pieces": 5, "length": 9}
LINKED = FACTS | {"weight": {"count": 4, "more": 3, "after": "insurance"}, "length": {"as": "weight", "more": 2}}
PROBLEM = {"theme": "parcel", "facts": FACTS, "tariff": TARIFF}


def make(**changes):
    env = gym.make(ID, difficulty="hard")
    observation, _ = env.reset(options={"problem": {**PROBLEM, **changes}})
    return env, observation


def test_the_first_message():
    assert make()[1] == (
        "Tariff (in euros):\n"
        "- If the destination is domestic:\n"
        "  - 20, plus 3 times the number of kilograms (weight), plus 15 with insurance\n"
        "- If the destination is overseas:\n"
        "  - If the speed is express:\n"
        "    - 90, plus 10 times the number of pieces\n"
        "  - If the speed is standard:\n"
        "    - 40, plus 2 times the number of decimetres (length)\n"
        "You have 7 messages, the price included. The first one that does not ask about one thing does not count.\n\n"
        "Customer: Hello, I want to send something. What do I have to pay?"
    )


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Where does it go?", "That would be domestic."),
        ("What is the destination?", "That would be domestic."),
        ("<think>first the weight</think>Which destination?", "That would be domestic."),
        ("How heavy is it?", "I counted 4 kilograms, and then 3 more."),
        ("How many pieces?", "5 pieces."),
        ("Do you want insurance?", "Yes, please."),
        ("What is the speed, and is insurance wanted?", "One thing at a time, please."),
        ("Tell me everything.", "I do not know what you mean."),
        ("How many stairs?", "I do not know what you mean."),  # not in this tariff
        ("Which country should it be sent to? The destination matters.", "That would be domestic."),
    ],
)
def test_the_customer_answers_one_question(text, answer):
    observation, reward, terminated, truncated, _ = make()[0].step(text)
    assert observation.removesuffix("\n(This message does not count.)") == f"Customer: {answer}"
    assert (reward, terminated, truncated) == (0.0, False, False)


@pytest.mark.parametrize(
    ("facts", "price"),
    [
        ({}, 20 + 3 * 7 + 15),
        ({"insurance": False}, 41),
        ({"destination": "overseas"}, 140),
        ({"destination": "overseas", "speed": "standard"}, 58),
    ],
)
def test_prices_worked_by_hand(facts, price):
    assert price_of(TARIFF, FACTS | facts) == price
    env, _ = make(facts=FACTS | facts)
    assert env.step(format_answer(f"{price}"))[:4] == ("Correct.", 1.0, True, False)
    env, _ = make(facts=FACTS | facts)
    assert env.step(format_answer(price + 1))[:3] == ("Incorrect.", 0.0, True)


@pytest.mark.parametrize(
    "answer",
    [
        "56.",
        "**56**",
        "56 euros",
        "€56",
        "56 EUR",
        "The price is 56 euros.",
        "20 + 3*7 + 15 = 56",
        "\\boxed{56}",
        "`56`",
    ],
)
def test_prices_in_natural_forms(answer):
    assert make()[0].step(format_answer(answer))[:3] == ("Correct.", 1.0, True)
    wrong = answer.replace("56", "57")
    assert make()[0].step(format_answer(wrong))[:3] == ("Incorrect.", 0.0, True)


def test_a_question_may_name_what_was_told_before():
    env, _ = make()
    assert env.step("How heavy is it?")[0] == "Customer: I counted 4 kilograms, and then 3 more."
    for words, answer in (
        ("Thanks for the weight. Do you want insurance?", "Yes, please."),
        ("So the weight is 7 kilograms and the insurance is yes. What is the destination?", "That would be domestic."),
        ("The speed and the number of pieces?", "One thing at a time, please."),
        ("The speed may matter. How many pieces?", "5 pieces."),
        ("The weight again?", "I counted 4 kilograms, and then 3 more."),
    ):
        assert env.step(words)[0].removesuffix("\n(This message does not count.)") == f"Customer: {answer}"


@pytest.mark.parametrize(
    ("action", "complaint"),
    [
        (format_answer("fifty-six"), "is not a whole number"),
        (format_answer("56 or 41"), "is not a whole number"),
        (format_answer("56, 41"), "is not a whole number"),
        (format_answer("56.5"), "is not a whole number"),
        (format_answer("The price is 56 or 41."), "is not a whole number"),
        ("<answer>56", "<answer>"),
        ("", "the reply is empty"),
        ("<think>hm</think>", "the reply is empty"),
        (format_tool_call("ask", topic="weight"), "this task has no tools"),
        ("x" * 1_100_000, "over 1048576 characters"),
    ],
)
def test_what_is_malformed_costs_and_goes_on(action, complaint):
    observation, reward, terminated, *_ = make()[0].step(action)
    assert observation.startswith("Error: ")
    assert complaint in observation
    assert reward == pytest.approx(-0.1)
    assert not terminated


@pytest.mark.parametrize(
    ("level", "n_topics", "n_needed"), [("easy", 4, 2), ("medium", 7, 3), ("hard", 11, 4), ("expert", 14, 8)]
)
def test_asking_for_everything_takes_too_many_messages(level, n_topics, n_needed):
    env = gym.make(ID, difficulty=level).unwrapped
    for seed in range(60):
        env.reset(seed=seed)
        topics = env._known
        assert n_topics - 2 * (level == "expert") <= len(topics) <= n_topics
        assert len(topics) > env.turns_allowed() - 1 >= n_needed
        answers = set()
        for topic in topics:
            observation, _, terminated, truncated, info = env.step(f"And the {topic}?")
            answers.add(observation)
            if terminated or truncated:
                break
        assert truncated
        assert not info["is_success"]
        assert "Customer: One thing at a time, please." not in answers
        assert "Customer: I do not know what you mean." not in answers


@pytest.mark.parametrize("level", ["easy", "medium", "hard", "expert"])
def test_the_oracle_asks_for_what_is_needed_only(level):
    env = gym.make(ID, difficulty=level).unwrapped
    for seed in range(60):
        env.reset(seed=seed)
        assert finish(env, env.oracle)[-1][1:4] == (1.0, True, False)
        assert env.n_turns == {"easy": 3, "medium": 4, "hard": 5, "expert": 9}[level]


def test_the_words_of_a_theme_mean_one_thing_each():
    for theme in THEMES.values():
        words = Counter(word for name, topic in theme.topics.items() for word in (name, *topic.words))
        assert max(words.values()) == 1
        assert all(topics_in(f"the {name}?", theme, list(theme.topics)) == [name] for name in theme.topics)
        for name, topic in theme.topics.items():  # the tariff says "number of kilograms (weight)"
            assert not topic.unit or topics_in(f"How many {topic.unit}?", theme, list(theme.topics)) == [name]
        counts = {kind: len(theme.of_kind(kind)) for kind in ("choice", "number", "wish")}
        assert counts == {"choice": 4, "number": 5, "wish": 5}


@pytest.mark.parametrize("level", ["easy", "medium", "hard", "expert"])
def test_the_best_constant_price_wins_no_more_than_the_chance_rate(level):
    env = gym.make(ID, difficulty=level).unwrapped
    env.reset(seed=0)
    drawn = [env.generate() for _ in range(2_000)]
    prices = Counter(price_of(problem["tariff"], problem["facts"]) for problem in drawn)
    assert prices.most_common(1)[0][1] / 2_000 <= env.chance_rate


@pytest.mark.parametrize(
    "change",
    [
        {"theme": "zoo"},
        {"facts": {**FACTS, "destination": "Mars"}},
        {"facts": {**FACTS, "pieces": "many"}},
        {"facts": {**FACTS, "pieces": {"as": "destination", "more": 1}}},
        {"facts": {**LINKED, "pieces": {"as": "length", "more": 1}}},
        {"facts": {**FACTS, "insurance": {"as": "pieces", "more": 1}}},
        {"facts": {**FACTS, "pieces": {"count": 2, "more": 1, "after": "tip"}}},
        {"facts": {name: value for name, value in FACTS.items() if name != "length"}},
        {"tariff": ["price", 10, [["mass", 1]]]},
        {"tariff": ["price", "ten", []]},
        {"tariff": ["destination", {}]},
        {"tariff": []},
    ],
)
def test_what_cannot_be_played_is_refused(change):
    with pytest.raises(InvalidConfigError, match="cannot be played"):
        make(**change)


def test_a_number_that_follows_from_another_changes_with_it():
    tariff = ["price", 20, [["weight", 3], ["length", 5], ["insurance", 15]]]
    env, _ = make(tariff=tariff, facts=LINKED)
    corrected = "Yes, please. And I told you a wrong number of kilograms: it is 3 more."
    for words, answer in (
        ("How heavy is it?", "4 kilograms."),
        ("How long is it?", "As many decimetres as kilograms, and 2 more."),
        ("Insurance?", corrected),
        ("Insurance, really?", "Yes, please."),
        ("How heavy, then?", "7 kilograms."),
    ):
        assert env.step(words)[0] == f"Customer: {answer}"
    assert env.unwrapped.shortcuts() == {"reader(3)": format_answer(20 + 3 * 7 + 5 * 6 + 15)}  # not 9 decimetres
    assert env.step(format_answer(20 + 3 * 7 + 5 * 9 + 15))[1] == 1.0
    env, _ = make(tariff=tariff, facts=LINKED)
    assert env.step("Insurance?")[0] == "Customer: Yes, please."  # nothing was told that is wrong
    assert env.step("How heavy is it?")[0] == "Customer: 7 kilograms."


def test_a_reader_that_keeps_every_number_as_it_was_told_loses_at_expert():
    env = gym.make(ID, difficulty="expert").unwrapped
    wins = 0
    for seed in range(40):
        env.reset(seed=seed)
        (answer,) = env.shortcuts().values()
        wins += env.step(answer)[1] == 1.0
    assert wins == 0


def test_the_oracle_answers_when_all_was_told_and_not_before():
    env = gym.make(ID, difficulty="hard", max_turns=3).unwrapped
    for facts in (FACTS, FACTS | {"weight": 9, "insurance": False}):
        env.reset(options={"problem": {**PROBLEM, "facts": facts}})
        env.step("Which destination?")
        env.step("Hello?")
        assert env.oracle() == "Could you tell me about the weight?"  # with its last message, too
