"""BM25, and Search."""

import math

import gymnasium as gym
import pytest

import llm_envs
from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import format_answer, format_tool_call
from llm_envs.tasks.tools.bm25 import Bm25, words_of
from llm_envs.tasks.tools.search import articles_of

assert llm_envs  # registers
ID = "llm/Search-v0"
WORLD = {
    "town": [["Barford", "Kale", 1200], ["Dolham", "Nevis", 1450]],
    "person": [["Ana Toreda", 0, "painter", 1901, 0], ["Leno Silick", 1, "engineer", 1888, 1]],
    "company": [["Kalorn & Sons", 1, 0, 1910], ["Nevex Works", 0, 1, 1930]],
    "book": [["The Red Door", 0, 1, 1940]],
}


def problem(start, path, asked, world=WORLD):
    return {"problem": {"world": world, "start": start, "path": path, "asked": asked}}


def test_bm25_is_what_its_equation_says():
    index = Bm25(["red red door", "door", "a blue window here"])
    assert words_of("Red-red, DOOR 12!") == ["red", "red", "door", "12"]
    mean = 8 / 3
    red = math.log(1 + 2.5 / 1.5) * 2 * 2.5 / (2 + 1.5 * (0.25 + 0.75 * 3 / mean))
    door = math.log(1 + 1.5 / 2.5)
    first, second = index.search("Red red door!", 3)
    assert first == (0, pytest.approx(red + door * 2.5 / (1 + 1.5 * (0.25 + 0.75 * 3 / mean))))
    assert second == (1, pytest.approx(door * 2.5 / (1 + 1.5 * (0.25 + 0.75 / mean))))
    assert index.search("green", 3) == []
    assert Bm25([]).search("red", 3) == []
    assert [place for place, _ in Bm25(["x", "y", "x"]).search("x y", 2)] == [1, 0]  # a tie: the earlier one


@pytest.mark.parametrize(
    ("given", "question", "answer"),
    [
        (problem(["town", 1], [], "river"), "On which river does the town of Dolham lie?", "Nevis"),
        (problem(["book", 0], [], "year"), 'In which year was the book "The Red Door" published?', "1940"),
        (
            problem(["book", 0], ["author"], "birthplace"),
            'What is the name of the town where the author of the book "The Red Door" was born?',
            "Barford",
        ),
        (
            problem(["company", 0], ["founder", "birthplace"], "river"),
            "On which river does the town where the founder of the company Kalorn & Sons was born lie?",
            "Nevis",
        ),
        (
            problem(["person", 0], ["book written", "publisher"], "founder"),
            "Who founded the publisher of the book that Ana Toreda wrote?",
            "Ana Toreda",
        ),
        (
            problem(["person", 1], ["company founded", "seat"], "year"),
            "In which year was the town where the company that Leno Silick founded has its seat founded?",
            "1200",
        ),
    ],
)
def test_questions_and_answers_worked_by_hand(given, question, answer):
    env = gym.make(ID)
    assert env.reset(options=given)[0] == question
    assert env.step(format_answer(answer.upper()))[:4] == ("Correct.", 1.0, True, False)
    env.reset(options=given)
    assert env.step(format_answer("1777" if answer.isdigit() else "Zimwick"))[:3] == ("Incorrect.", 0.0, True)


@pytest.mark.parametrize(
    ("given", "reward", "terminated"),
    [
        ("the river Nevis", 1.0, True),
        ("'nevis'.", 1.0, True),
        ("Nevis, Kale", 0.0, True),
        ("Nevis or Kale", 0.0, True),
        ("1450", 0.0, True),
    ],
)
def test_names_are_compared_as_a_reader_would(given, reward, terminated):
    env = gym.make(ID)
    env.reset(options=problem(["town", 1], [], "river"))
    assert env.step(format_answer(given))[1:3] == (reward, terminated)


def test_a_year_is_asked_for_as_a_year():
    env = gym.make(ID)
    env.reset(options=problem(["town", 1], [], "year"))
    assert env.step(format_answer("long ago"))[:3] == ("Error: the answer is not a year.", pytest.approx(-0.1), False)


def test_the_encyclopedia():
    env = gym.make(ID)
    env.reset(options=problem(["person", 0], ["book written"], "year"))
    assert articles_of(WORLD)["Ana Toreda"] == (
        "Ana Toreda is a painter who works for Kalorn & Sons. Ana Toreda was born in 1901 in Barford."
    )
    observation = env.step(format_tool_call("search", query="a book by Ana Toreda"))[0]
    assert "The Red Door: The Red Door is a book by ..." in observation.splitlines()
    assert len(observation.splitlines()) == 3
    assert env.step(format_tool_call("read", title='"the red door"'))[0] == (
        "The Red Door is a book by Ana Toreda. It was published in 1940 by Nevex Works."
    )
    assert env.step(format_tool_call("read", title="Ana"))[0].startswith("Error: there is no article 'Ana'")
    assert env.step(format_tool_call("search", query="xyz"))[0] == "No article has any of these words."


@pytest.mark.parametrize("level", ["easy", "medium", "hard", "expert"])
def test_the_oracle_reads_every_article_that_the_answer_needs(level):
    env = gym.make(ID, difficulty=level).unwrapped
    backwards = 0
    for seed in range(40):
        env.reset(seed=seed)
        backwards += any("written" in step or "founded" in step for step in env.problem["path"])
        said, over = "", False
        while not over:
            action = env.oracle()
            observation, _, over, truncated, info = env.step(action)
            assert not truncated
            said += observation
            assert "Error" not in observation
        assert info["is_success"]
        assert str(env._answer) in said
        assert env.n_turns == 2 * len(env._steps) + 1
    assert backwards > 3 or level not in ("hard", "expert")


def test_a_search_backwards_finds_the_article():
    env = gym.make(ID, difficulty="hard").unwrapped
    found = 0
    for seed in range(60):
        env.reset(seed=seed)
        world = env.problem["world"]
        for place, relation in enumerate(env.problem["path"]):
            if relation in ("book written", "company founded"):
                (before, i), (kind, j) = env._steps[place : place + 2]
                assert world[kind][j][0] in env.library.search(f"{world[before][i][0]} {kind}")
                found += 1
    assert found > 10


@pytest.mark.parametrize(
    "given",
    [
        problem(["town", 5], [], "river"),
        problem(["town", -1], [], "river"),
        problem(["town", 0], ["author"], "river"),
        problem(["town", 0], [], "birthplace"),
        problem(["person", 1], ["book written"], "year"),  # wrote none
        problem(["person", 0], ["employer", "founder", "company founded"], "year"),  # back again
        problem(["book", 0], [], "year", {**WORLD, "book": [["Barford", 0, 0, 1900]]}),  # two of one title
        problem(["book", 0], [], "year", {"book": []}),
        problem(["book"], [], "year"),
        problem(["book", 0], [], "year", {**WORLD, "book": [[5, 0, 0, 1900]]}),
    ],
)
def test_what_cannot_be_asked_is_refused(given):
    with pytest.raises(InvalidConfigError, match="cannot be played"):
        gym.make(ID).unwrapped.reset(options=given)


@pytest.mark.parametrize("level", ["easy", "medium", "hard"])
def test_one_article_does_not_tell_the_answer(level):
    """Players that answer from the first article, or from the best result, are right no more often than guessing."""
    env = gym.make(ID, difficulty=level).unwrapped
    n, won = 150, {}
    for seed in range(n):
        env.reset(seed=seed)
        for name, reply in env.shortcuts().items():
            env.reset(seed=seed)
            won[name] = won.get(name, 0) + (env.step(reply)[1] == 1)
    assert set(won) == {"the first article", "the best result"}
    assert max(won.values()) / n <= env.chance_rate


def test_players_who_read_one_article_answer_from_it():
    env = gym.make(ID).unwrapped
    env.reset(options=problem(["book", 0], ["author"], "year"))
    assert env.shortcuts()["the first article"] == format_answer("1940")
    env.reset(options=problem(["book", 0], [], "publisher"))
    assert set(env.shortcuts().values()) == {env.write_answer("Nevex Works")} == {env.write_answer(env._answer)}
