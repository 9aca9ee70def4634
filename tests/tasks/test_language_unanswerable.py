"""`llm/Unanswerable-v0`: notes worked out by hand, blind policies, and that nothing on the surface tells."""

import re
from collections import Counter
from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest

from llm_envs.env import split_of
from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import format_answer

ID = "llm/Unanswerable-v0"
LEVELS = {"easy": 3, "medium": 4, "hard": 4, "expert": 5}

# Links: 0 team, 1 house, 2 caretaker, 3 home town, 4 mayor, 5 hobby. A name may have several houses.
PROBLEM = {
    "theme": 0,
    "table": False,
    "several": [1],
    "facts": [
        *([0, "Ada", "Red"], [0, "Ben", "Blue"], [0, "Cleo", "Red"], [0, "Cleo", "Blue"], [0, "Dan", ""]),
        *([1, "Red", "Elm"], [1, "Red", "Oak"], [1, "Blue", "Ash"], [1, "Lone", "Fir"], [2, "Elm", "Kim"]),
        *([2, "Oak", "Kim"], [2, "Ash", "Lou"], [5, "Eva", "chess"], [3, "Kim", "Rome"]),
    ],
    "questions": [
        [0, 1, "Ada"],  # 1: Red
        [0, 2, "Ada"],  # 2: Elm or Oak, of which there may be several: ambiguous
        [0, 3, "Ada"],  # 3: Kim, whichever house is meant
        [0, 4, "Ada"],  # 4: Rome
        [0, 1, "Cleo"],  # 5: Red or Blue: a contradiction
        [0, 3, "Cleo"],  # 6: Kim or Lou: a contradiction, and red's two houses do not matter, but are a reason, too
        [0, 2, "Dan"],  # 7: there is no team
        [0, 1, "Eva"],  # 8: not told
        [0, 4, "Ben"],  # 9: Lou, whose home town is not told
        [1, 2, "Lone"],  # 10: Fir, whose caretaker is not told
    ],
    "reasons": True,
}
SAID = {
    **{1: "Red", 2: "unanswerable, ambiguous", 3: "Kim", 4: "Rome", 5: "unanswerable, contradiction"},
    **{6: "unanswerable, contradiction", 7: "unanswerable, none", 8: "unanswerable, missing"},
    **{9: "unanswerable, missing", 10: "unanswerable: missing"},
}


def reward(problem, said):
    env = gym.make(ID)
    env.reset(seed=0, options={"problem": problem})
    return env.step(format_answer("\n".join(f"{i}: {text}" for i, text in said.items())))[1]


@pytest.mark.parametrize(
    ("change", "paid"),
    [
        ({}, 1),
        ({1: "red", 2: "Unanswerable (ambiguous)."}, 1),
        ({1: "Blue"}, 0),
        ({1: "unanswerable, missing"}, 0),
        ({2: "Elm"}, 0),
        ({2: "unanswerable, contradiction"}, 0),
        ({3: "unanswerable, ambiguous"}, 0),
        ({7: "unanswerable, missing"}, 0),
        ({8: "unanswerable, none"}, 0),
        ({9: "Rome"}, 0),
        ({2: "unanswerable"}, -0.1),
        ({2: "unanswerable, who knows"}, -0.1),
    ],
)
def test_each_question_must_be_treated_rightly(change, paid):
    assert reward(PROBLEM, SAID | change) == pytest.approx(paid)


def test_without_reasons_none_is_asked_for():
    said = {i: text.split(",")[0].split(":")[0] for i, text in SAID.items()}
    assert reward(PROBLEM | {"reasons": False}, said) == 1
    assert reward(PROBLEM | {"reasons": False}, SAID) == 1
    assert reward(PROBLEM | {"reasons": False}, said | {5: "Red"}) == 0


def test_an_answer_speaks_of_every_question_once():
    env = gym.make(ID)
    for answer in ("1: Red", "\n".join(f"{i}: Red" for i in (1, 1)), "Red", "11: Red"):
        env.reset(options={"problem": PROBLEM})
        assert env.step(format_answer(answer))[1] == pytest.approx(-0.1)


def test_notes_are_written_as_documented():
    text, _ = gym.make(ID).reset(options={"problem": PROBLEM})
    assert (
        "Nobody and nothing has more than one team, caretaker, home town, mayor; there may be more than one house"
        in text
    )
    assert "The team of Ada is Red. Blue is the team of Ben." in text
    assert "Dan has no team. Elm is a house of Red. A house of Red is Oak." in text
    assert "4. What is the home town of the caretaker of the house of the team of Ada?" in text
    text, _ = gym.make(ID).reset(options={"problem": PROBLEM | {"table": True}})
    assert "[team]\nAda: Red\nBen: Blue\nCleo: Red\nCleo: Blue\nDan: none\n[house]\nRed: Elm" in text


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"theme": 9}, "the theme must be"),
        ({"several": [5]}, "'several' must have"),
        ({"facts": [[0, "Ada", "Red"], [0, "Ada", ""]]}, "another that there is none"),
        ({"facts": [[7, "Ada", "Red"]]}, "must be of the form"),
        ({"questions": [[3, 3, "Ada"]]}, "questions, 1 to 50"),
        ({"questions": []}, "questions, 1 to 50"),
    ],
)
def test_what_cannot_be_played_is_refused(change, complaint):
    with pytest.raises(InvalidConfigError, match=complaint):
        gym.make(ID).reset(options={"problem": PROBLEM | change})


def drawn(level, n, split="train"):
    env = gym.make(ID, difficulty=level, split=split).unwrapped
    env.reset(seed=0)
    for _ in range(n):
        env.reset()
        yield env


def answers(env):
    """Return what the oracle says to each question."""
    return [line.split(": ", 1)[1] for line in env.solution().strip().splitlines()]


@pytest.mark.parametrize("level", LEVELS)
def test_blind_policies_earn_what_is_declared(level):
    n = 200
    wins, n_open, n_questions = Counter(), 0, 0
    for env in drawn(level, n):
        said = answers(env)
        assert len(said) == LEVELS[level]
        is_open = [text.startswith("unanswerable") for text in said]
        assert 0 < sum(is_open) < len(said)
        n_open, n_questions = n_open + sum(is_open), n_questions + len(said)
        for name, answer in env.shortcuts().items():
            wins[name] += env.is_correct(answer[len("<answer>") : -len("</answer>")])
    assert n_open / n_questions == pytest.approx(0.5, abs=0.05)
    for policy in ("abstains always", "never abstains", "takes the first of two notes", "takes the last of two notes"):
        assert wins[f"who {policy}"] == 0
    assert wins["who abstains wherever two notes are"] == 0, "only from the hard level on"
    chance = env.chance_rate
    assert max(wins.values()) <= n * chance + 4 * (n * chance) ** 0.5


@pytest.mark.parametrize("level", LEVELS)
def test_the_reasons_are_mixed(level):
    reasons = Counter(next(iter(why)) for env in drawn(level, 150) for answer, why in env._answers if answer is None)
    assert set(reasons) == {"missing", "none", "contradiction", "ambiguous"}
    assert min(reasons.values()) > 10


@pytest.mark.parametrize("level", ["hard", "expert"])
def test_ways_part_and_meet_again_in_questions_that_can_be_answered(level):
    """And in as many problems two notes make a question unanswerable: to see that there are two is not enough."""
    for env in drawn(level, 50):
        parted = []
        counts = Counter((link, name) for link, name, _ in env.problem["facts"])
        for (first, n_steps, name), (answer, _) in zip(env.problem["questions"], env._answers, strict=True):
            names, is_parted = {name}, False
            for link in range(first, first + n_steps):
                is_parted |= any(counts[link, each] > 1 for each in names)
                names = {other for here, each, other in env.problem["facts"] if here == link and each in names}
            parted += [answer is None] if is_parted else []
        assert True in parted
        assert False in parted


def surface(env):
    """Yield words and counts for each question, with names masked, and whether it is unanswerable.

    The words of notes and question, pairs of words, lengths, how often and where the question's name is in the notes,
    and the nouns that stand in the same note.
    """
    notes, questions = env.prompt().split("Notes:\n")[1].split("Questions:\n")
    parts = re.split(r"(?<=\.) |\n", notes.strip())
    in_notes = Counter(re.findall(r"\b[a-z]+\b", notes))
    for line, (_, _, name), (answer, _) in zip(
        questions.strip().splitlines(), env.problem["questions"], env._answers, strict=True
    ):
        features = Counter(in_notes)
        number, *words = re.findall(r"\b[a-z]+\b|\d+", line)
        features.update(f"question {number} {a} {b}" for a, b in pairwise(words))
        features.update(f"asked {word}" for word in words)
        places = [i for i, part in enumerate(parts) if name in part]
        features["times named"] = len(places)
        features["first named"], features["last named"] = places[0] / len(parts), places[-1] / len(parts)
        features["notes"], features["characters"], features["asked words"] = len(parts), len(notes) / 100, len(words)
        features["said to be a hobby"] = sum(any(noun in parts[i] for noun in FILLERS) for i in places) > 0
        yield features, answer is None


FILLERS = ("hobby", "cousin", "locker", "favourite dish", "label", "weight class", "collar", "nickname")


@pytest.mark.parametrize("level", LEVELS)
def test_a_bag_of_words_does_not_tell_what_can_be_answered(level):
    """A linear classifier learns from train, and is right about as often as a coin on test."""
    sets = [
        [each for env in drawn(level, 1_000 // LEVELS[level], split) for each in surface(env)]
        for split in ("train", "test")
    ]
    names = sorted({name for features, _ in sets[0] for name in features})
    X, Y = ([np.array([[f.get(name, 0.0) for name in names] for f, _ in data]) for data in sets],
            [np.array([1.0 if is_open else -1.0 for _, is_open in data]) for data in sets])  # fmt: skip
    mean, scale = X[0].mean(0), X[0].std(0) + 1e-9
    train, test = ((x - mean) / scale for x in X)
    weights = np.linalg.solve(train.T @ train + 100 * np.eye(len(names)), train.T @ Y[0])
    right = float(((test @ weights > 0) == (Y[1] > 0)).mean())
    assert abs(right - 0.5) < 0.07


def test_other_names_and_another_order_make_no_other_problem():
    env = gym.make(ID).unwrapped
    names = {name: f"Name{i}" for i, name in enumerate({n for f in PROBLEM["facts"] for n in f[1:] if n})} | {"": ""}
    other = PROBLEM | {
        "facts": [[link, names[a], names[b]] for link, a, b in PROBLEM["facts"][::-1]],
        "questions": [[link, n, names[a]] for link, n, a in PROBLEM["questions"][::-1]],
    }
    assert env.split_key(other) == env.split_key(PROBLEM)
    assert env.split_key(PROBLEM | {"questions": PROBLEM["questions"][1:]}) != env.split_key(PROBLEM)
    for split in ("train", "test"):
        for each in drawn("easy", 10, split):
            assert split_of(each.split_key(each.problem)) == split


TWO = PROBLEM | {"questions": [[0, 1, "Ada"], [0, 1, "Eva"]], "reasons": False}


@pytest.mark.parametrize(
    ("problem", "answer", "paid"),
    [
        (TWO, "1. Red\n2. unanswerable", 1),
        (TWO, "- **1:** Red\n- **2:** Unanswerable", 1),
        (TWO, "Question 1: Red\nQuestion 2: unanswerable.", 1),
        (TWO, "1: Red, 2: unanswerable", 1),
        (TWO, "Red\nunanswerable", 1),
        (TWO, "1: The team of Ada is Red.\n2: It is unanswerable.", 1),
        (TWO, "1: Red\n2: cannot be answered", 1),
        (TWO | {"reasons": True}, "1: Red\n2: unanswerable (missing)", 1),
        (TWO, "1: Red or Blue\n2: unanswerable", 0),
        (TWO, "1: Red\n2: unanswerable or Blue", 0),
        (TWO, "1: The team of Ada is not Red.\n2: unanswerable", 0),
        (TWO, "1: Red\n1: Blue\n2: unanswerable", -0.1),
        (TWO, "Red\nBlue\nunanswerable", -0.1),
        (TWO, "1: Red", -0.1),
    ],
)
def test_natural_forms(problem, answer, paid):
    env = gym.make(ID)
    env.reset(seed=0, options={"problem": problem})
    assert env.step(format_answer(answer))[1] == pytest.approx(paid)
