"""LongRecall: texts in which things are hidden, and players that read little of them."""

import re
from collections import Counter

import gymnasium as gym
import numpy as np
import pytest

import llm_envs
from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import format_answer
from llm_envs.spaces import MAX_TEXT_LENGTH, TextSpace
from llm_envs.tasks.language.haystack import common_words, haystack, word_list

assert llm_envs  # registers
ID = "llm/LongRecall-v0"
LEVELS = {"easy": 4_000, "medium": 16_000, "hard": 64_000, "expert": 128_000}
ADA, BEN = ["Ada", "amber", "kettle"], ["Ben", "amber", "kettle"]


def problem(kind, facts, asked, depths=None, **more):
    depths = ([] if kind == "words" else [0.5] * len(facts)) if depths is None else depths
    fields = {"kind": kind, "facts": facts, "asked": asked, "depths": depths, "seed": 1, "n_characters": 4_000}
    return {"problem": fields | more}


CODES = [[*ADA, 11111], [*BEN, 22222], [*ADA[:2], "bell", 33333]]
SINGLE = problem("single", CODES, [ADA])
VALUES = problem("values", [*CODES, [*ADA, 44444]], [ADA])
QUERIES = problem("queries", CODES, [BEN, ADA])
CHAIN = problem(
    "chain",
    [["rusty bell", 777], ["oaken chest", "rusty bell"], ["silver bell", 888], ["heavy crate", "oaken chest"],
     ["amber flask", "silver bell"]],
    [777],
)  # fmt: skip
WORDS = problem("words", [["apple", 20], ["pears", 18], ["plums", 12]], [2])


def score_episodes(options, answer):
    env = gym.make(ID)
    env.reset(options=options)
    return env.step(format_answer(answer))[1]


@pytest.mark.parametrize(
    ("options", "answer", "paid"),
    [
        (SINGLE, "11111", 1),
        (SINGLE, " 11111. ", 1),
        (SINGLE, "22222", 0),  # somebody else's
        (SINGLE, "33333", 0),
        (SINGLE, "11111, 22222", 0),
        (SINGLE, "the code is 11111", 1),
        (SINGLE, "the code is 11111 or 22222", -0.1),
        (SINGLE, "11111 22222", -0.1),
        (SINGLE, "11,111", 1),
        (SINGLE, "The code of Ada's amber kettle is **11111**.", 1),
        (VALUES, "- 11111\n- 44444", 1),
        (VALUES, "11,111 and 44,444", 1),
        (VALUES, "11111, 44444 or 22222", -0.1),
        (QUERIES, "Ben's amber kettle: 22222, Ada's amber kettle: 11111", 1),
        (QUERIES, "1. 22222\n2. 11111", 1),
        (CHAIN, "The rusty bell, the oaken chest, and the heavy crate.", 1),
        (CHAIN, "rusty bell, oaken chest, heavy crate or amber flask", -0.1),
        (WORDS, "1. apple 2. pears", 0),
        (WORDS, "apple and pears", 1),
        (SINGLE, "", -0.1),
        (VALUES, "44444, 11111", 1),
        (VALUES, "11111", 0),
        (VALUES, "11111, 44444, 22222", 0),
        (VALUES, "11111, 44444, 44444", -0.1),
        (QUERIES, "22222, 11111", 1),
        (QUERIES, "11111, 22222", 0),  # not the order that is asked for
        (CHAIN, "rusty bell, Oaken chest,heavy  crate", 1),
        (CHAIN, "rusty bell, oaken chest", 0),
        (CHAIN, "rusty bell, oaken chest, heavy crate, amber flask", 0),
        (CHAIN, "rusty bell, rusty bell", -0.1),
        (WORDS, "pears, apple", 1),
        (WORDS, "apple, plums", 0),
        (WORDS, "apple, pears, plums", 0),
        (WORDS, "apple: 20, pears: 18", -0.1),
    ],
)
def test_answers(options, answer, paid):
    assert score_episodes(options, answer) == pytest.approx(paid)


def test_how_a_problem_looks():
    observation, _ = gym.make(ID).reset(options=problem("single", CODES, [ADA], [0.0, 0.4, 1.0]))
    first, *text, last = observation.split("\n\n")
    assert first.endswith("You will be asked for one of them.")
    assert text[0].startswith("The code of Ada's amber kettle is 11111. ")
    assert text[-1].endswith("The code of Ada's amber bell is 33333.")
    assert last == "What is the code of Ada's amber kettle?"
    assert 3_400 < len(observation) < 4_700
    assert 0.3 < observation.index("22222") / len(observation) < 0.5
    chain, _ = gym.make(ID).reset(options=CHAIN)
    assert "The rusty bell holds the number 777." in chain
    assert "The heavy crate holds the same number as the oaken chest." in chain
    words, _ = gym.make(ID).reset(options=WORDS)
    assert words.endswith("Which 2 words occur most often in the list?")


@pytest.mark.parametrize("n_characters", [0, 5_000, 500_000])
def test_what_is_hidden_stands_where_it_should(n_characters):
    hidden = ["Begin.", "Middle.", "End."]
    text = haystack(3, n_characters, hidden, [0.0, 0.5, 1.0])
    assert abs(len(text) - n_characters) < max(500, n_characters / 100)
    assert text.startswith("Begin.") and text.endswith("End.") and text.count("Middle.") == 1
    assert n_characters == 0 or 0.45 < text.index("Middle.") / len(text) < 0.55
    assert text == haystack(3, n_characters, hidden, [0.0, 0.5, 1.0])
    assert not n_characters or text != haystack(4, n_characters, hidden, [0.0, 0.5, 1.0])


def test_a_list_of_words_has_the_counts_that_are_said():
    counts = {"apple": 20, "pears": 18, "plums": 12}
    text = word_list(5, 40_000, counts, 3)
    found = Counter(text.split())
    assert {word: found.pop(word) for word in counts} == counts
    assert set(found.values()) == {3} and found.keys() <= set(common_words())
    assert abs(len(text) - 40_000) < 500


@pytest.mark.parametrize("level", LEVELS)
def test_a_text_is_as_long_as_the_level_says_and_fits(level):
    env = gym.make(ID, difficulty=level)
    for seed in range(12):
        observation, _ = env.reset(seed=seed)
        assert abs(len(observation) / (4 * LEVELS[level]) - 1) < 0.05
        assert observation in env.observation_space
    assert env.observation_space == TextSpace() and 1.5 * len(observation) < MAX_TEXT_LENGTH


@pytest.mark.parametrize("level", ["easy", "expert"])
@pytest.mark.parametrize("n", [4_000, 200_000])
def test_the_length_of_the_context_is_an_argument(level, n):
    env = gym.make(ID, difficulty=level, context_tokens=n)
    for seed in range(8):
        observation, _ = env.reset(seed=seed)
        assert abs(len(observation) / (4 * n) - 1) < 0.1
        assert env.step(env.unwrapped.oracle())[1] == 1.0
    for wrong in (0, 999, 200_001, "4k", True, 4e3):
        with pytest.raises(InvalidConfigError, match="context_tokens is"):
            gym.make(ID, context_tokens=wrong)


@pytest.mark.parametrize("level", LEVELS)
def test_several_things_differ_from_the_asked_one_in_one_word(level):
    env = gym.make(ID, difficulty=level).unwrapped
    n_least = {"easy": 50, "medium": 90, "hard": 150, "expert": 250}[level]
    kinds = set()
    for seed in range(40):
        env.reset(seed=seed)
        facts, asked = env.problem["facts"], env.problem["asked"]
        kinds.add(env.problem["kind"])
        if env.problem["kind"] in ("single", "values", "queries"):
            for key in asked:
                shared = [sum(map(str.__eq__, key, fact[:3])) for fact in facts]
                assert sum(n == 2 for n in shared) >= 4
            assert len(facts) >= n_least
    assert kinds == set(env.settings["kinds"])


def test_depths_are_spread_evenly():
    env, depths = gym.make(ID).unwrapped, []
    for seed in range(300):
        env.reset(seed=seed)
        depths += env.problem["depths"][:1]  # of what is asked for
    assert len(depths) > 200 and 0.4 < sum(depths) / len(depths) < 0.6
    assert min(depths) < 0.1 and max(depths) > 0.9 and sum(depth < 0.5 for depth in depths) > len(depths) / 3


def answers_in_a_hurry(observation, kind, asked):
    """Return what a player says who looks at the text without telling what is nearly the same."""
    text, question = observation.rsplit("\n\n", 1)
    codes = re.findall(r"code of [^.]* is (\d+)\.", text)
    holders = re.findall(r"The (\w+ \w+) holds the number (\d+)\.", text)
    if kind == "words":
        words = text.split("\n\n", 1)[1].split()
        return [words[: asked[0]], [word for word, _ in Counter(words[: len(words) // 10]).most_common(asked[0])]]
    if kind == "chain":
        number = question.split("number ")[1].split("?")[0]
        direct = [name for name, held in holders if held == number]
        name = direct[0]
        return [direct, [*direct, *re.findall(rf"The (\w+ \w+) holds the same number as the {name}\.", text)]]
    n = len(asked)
    last_word = re.findall(r"(\w+ \w+)[,?]", question)
    near = [re.findall(rf"{word} is (\d+)\.", text) for word in last_word]
    return [codes[:n], codes[-n:], [found[0] for found in near if found], near[0] if near else codes]


@pytest.mark.parametrize("level", LEVELS)
def test_players_in_a_hurry_win_no_more_than_chance(level):
    """First or last codes, those of the same adjective and noun, one step of a chain, a tenth of the words."""
    env = gym.make(ID, difficulty=level, split="test")
    n, wins = 60 if level in ("easy", "medium") else 25, Counter()
    for seed in range(n):
        observation, _ = env.reset(seed=seed)
        given = env.unwrapped.problem
        for number, items in enumerate(answers_in_a_hurry(observation, given["kind"], given["asked"])):
            env.reset(seed=seed)
            wins[given["kind"], number] += env.step(format_answer(", ".join(items)))[1] == 1.0
    assert max(wins.values()) <= 2 + n * env.unwrapped.chance_rate, wins


@pytest.mark.parametrize(
    "options",
    [
        problem("none", CODES, [ADA]),
        problem("single", CODES, []),
        problem("single", [], [ADA]),
        problem("single", CODES, [["Ada", "rusty", "bell"]]),
        problem("single", [*CODES, [*ADA, 44444]], [ADA]),
        problem("single", [*CODES, [*BEN, 11111]], [ADA]),
        problem("single", [["A. Code 7", "amber", "kettle", 1]], [["A. Code 7", "amber", "kettle"]]),
        problem("values", CODES, [ADA, BEN]),
        problem("single", CODES, [ADA], [0.5]),
        problem("single", CODES, [ADA], [0.5, 0.5, 2]),
        problem("single", CODES, [ADA], n_characters=10**7),
        problem("single", CODES, [ADA], seed=-1),
        problem("chain", [["rusty bell", "oaken chest"], ["oaken chest", 1]], [1]),
        problem("chain", [["rusty bell", 1], ["rusty bell", 2]], [1]),
        problem("chain", [["rusty bell", 1]], [2]),
        problem("words", [["apple", 20], ["pears", 20]], [1]),
        problem("words", [["apple", 20], ["apple", 10]], [1]),
        problem("words", [["apple", 1]], [1]),
        problem("words", [["apple", 20]], [2]),
    ],
)
def test_a_problem_that_cannot_be_played_is_refused(options):
    with pytest.raises(InvalidConfigError):
        gym.make(ID).reset(options=options)


def test_the_key_of_a_problem_is_its_question():
    key = gym.make(ID).unwrapped.split_key
    other = problem("single", [[*ADA, 99999], [*BEN, 1]], [ADA], [0.1, 0.9], seed=7)
    assert key(SINGLE["problem"]) == key(other["problem"]) == key(VALUES["problem"])
    assert key(SINGLE["problem"]) != key(QUERIES["problem"])
    assert key(WORDS["problem"]) == ["apple", "pears"]


@pytest.mark.parametrize("level", LEVELS)
def test_no_thing_stands_out_without_the_question(level):
    """The commonest words name no thing more often than chance does, and neither does the beginning of the text."""
    env = gym.make(ID, difficulty=level).unwrapped
    n, won = 500, Counter()
    for seed in range(n):
        env.np_random = np.random.default_rng(seed)
        env.problem = env.generate()  # without the text, which takes long
        for name, answer in env.shortcuts().items():
            won[name] += env.is_correct(answer.removeprefix("<answer>").removesuffix("</answer>"))
    assert max(won.values()) <= 4 + n * env.chance_rate, won
