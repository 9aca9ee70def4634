"""Wordle, Mastermind, Hangman and twenty questions: hand-worked games, and what a player earns who does not think."""

import random
from itertools import product

import pytest
from task_play import LEVELS, is_at_most, make, play, require_refused, share_of_wins

from llm_envs.parsers import format_answer
from llm_envs.tasks.games.mastermind import _all_codes, _answers, feedback
from llm_envs.tasks.games.twenty_questions import _questions, _replies_needed
from llm_envs.tasks.games.wordle import _marks_of_all, marks
from llm_envs.tasks.games.words import FIVE_LETTER_WORDS, WORDS


def turns_of_the_oracle(env):
    """Play on as the oracle; return how many turns it took, and whether it won."""
    over, turns = False, 0
    while not over:
        _, _, terminated, truncated, info = env.step(env.oracle())
        over, turns = terminated or truncated, turns + 1
    return turns, info["is_success"]


# Words.


def test_the_words_are_of_small_letters_and_none_twice():
    assert len(set(WORDS)) == len(WORDS)
    assert all(word.isascii() and word.isalpha() and word.islower() and 4 <= len(word) <= 8 for word in WORDS)
    assert all(len(word) == 5 for word in FIVE_LETTER_WORDS)
    assert list(FIVE_LETTER_WORDS) == sorted(FIVE_LETTER_WORDS)
    assert 1_000 <= len(FIVE_LETTER_WORDS) <= 2_000


# Wordle.


@pytest.mark.parametrize(
    ("guess", "word", "expected"),
    [
        ("crane", "crane", "GGGGG"),
        ("slate", "crane", "--G-G"),
        ("speed", "erase", "Y-YY-"),  # both e of the guess are in the word
        ("eerie", "crane", "--Y-G"),  # the one e of the word stands at the end: none is left for the first two
        ("eerie", "enter", "GYY--"),  # one e in place, one more in the word, and no third
        ("allay", "llama", "YGYY-"),
        ("llama", "allay", "YGY-Y"),
        ("geese", "eagle", "YY--G"),
        ("mummy", "magma", "G--G-"),
    ],
)
def test_marks(guess, word, expected):
    assert marks(guess, word) == expected


def test_the_table_of_marks_agrees_with_marks():
    rng, table = random.Random(0), _marks_of_all()
    for _ in range(500):
        guess, word = rng.randrange(len(FIVE_LETTER_WORDS)), rng.randrange(len(FIVE_LETTER_WORDS))
        shown = marks(FIVE_LETTER_WORDS[guess], FIVE_LETTER_WORDS[word])
        assert table[guess, word] == int(shown.translate(str.maketrans("-YG", "012")), 3)


def test_wordle():
    outcomes = play(
        "llm/Wordle-v0", {"word": "crane", "candidates": []}, "slate", "cranes", "CRANE", difficulty="medium"
    )
    assert outcomes == [
        ("s l a t e\n- - G - G\n7 replies left.", 0.0, False, False),
        ("Error: a guess is five letters from a to z. 6 replies left.", pytest.approx(-0.1), False, False),
        ("Correct.", 1.0, True, False),
    ]


def test_wordle_is_not_won_by_several_words_or_after_the_last_guess():
    problem = {"word": "crane", "candidates": ["crane", "slate"]}
    assert play("llm/Wordle-v0", problem, "crane slate")[0][1] == pytest.approx(-0.1)
    outcomes = play("llm/Wordle-v0", problem, *["zzzzz"] * 5)
    assert outcomes[-1] == ("z z z z z\n- - - - -\n0 replies left.", 0.0, False, True)
    assert sum(outcome[1] for outcome in outcomes) == 0.0


def test_the_oracle_of_wordle_needs_at_most_5_of_its_6_guesses():
    env = make("llm/Wordle-v0", "hard")
    longest = 0
    for word in FIVE_LETTER_WORDS[::70]:  # all of them have been tried: 1 to 5 guesses, 3.4 on average
        env.reset(options={"problem": {"word": word, "candidates": []}})
        turns, won = turns_of_the_oracle(env)
        assert won
        longest = max(longest, turns)
    assert longest <= 5


def test_wordle_with_counted_marks():
    problem = {"word": "crane", "candidates": []}
    outcomes = play("llm/Wordle-v0", problem, "react", "crane", difficulty="expert")
    assert outcomes[0][0] == "r e a c t: 1 G, 3 Y.\n7 replies left."
    assert outcomes[1][1:3] == (1.0, True)


def test_the_oracle_of_wordle_needs_at_most_6_of_its_8_guesses_from_counts():
    env = make("llm/Wordle-v0", "expert")
    lengths = []
    for word in FIVE_LETTER_WORDS[::100]:  # all of them have been tried: 1 to 6 guesses, 4.5 on average
        env.reset(options={"problem": {"word": word, "candidates": []}})
        turns, won = turns_of_the_oracle(env)
        assert won
        lengths.append(turns)
    assert max(lengths) <= 6 and sum(lengths) / len(lengths) > 4


def test_the_oracle_of_wordle_goes_on_from_any_guesses():
    env = make("llm/Wordle-v0", "hard")
    env.reset(options={"problem": {"word": "crane", "candidates": []}})
    env.step(format_answer("zzzzz"))
    env.step(format_answer("qqqqq"))
    assert turns_of_the_oracle(env) == (4, True)


@pytest.mark.parametrize("level", LEVELS)
def test_blind_guesses_win_wordle_at_the_chance_rate(level):
    def choose(env, rng):
        return (env.problem["candidates"] or FIVE_LETTER_WORDS)[env.n_turns]

    env = make("llm/Wordle-v0", level)
    assert is_at_most(share_of_wins(env, choose, 120), env.chance_rate, 120)


# Mastermind.


@pytest.mark.parametrize(
    ("guess", "code", "expected"),
    [
        ("AABB", "AABB", (4, 0)),
        ("AABB", "BBAA", (0, 4)),
        ("AABB", "ABCD", (1, 1)),
        ("AAAA", "ABCD", (1, 0)),
        ("ABCD", "AAAA", (1, 0)),
        ("BAAC", "ABBA", (0, 3)),
        ("CDEF", "AABB", (0, 0)),
    ],
)
def test_feedback(guess, code, expected):
    assert feedback(guess, code) == expected


def test_the_counts_of_many_codes_at_once_agree_with_feedback():
    codes = _all_codes(3, 4)
    for guess in codes[::5]:
        counts = _answers(guess, codes, 4)
        for code, count in zip(codes, counts, strict=True):
            placed, misplaced = feedback("".join("ABCD"[i] for i in guess), "".join("ABCD"[i] for i in code))
            assert count == placed * 4 + misplaced


def test_mastermind():
    outcomes = play(
        "llm/Mastermind-v0", {"letters": 6, "code": "ABCD"}, "AABB", "A,A,B", "ABCG", "a b c d", difficulty="medium"
    )
    assert outcomes == [
        ("A A B B: 1 in the right place, 1 in another place.\n7 replies left.", 0.0, False, False),
        ("Error: a guess is 4 letters from A to F. 6 replies left.", pytest.approx(-0.1), False, False),
        ("Error: a guess is 4 letters from A to F. 5 replies left.", pytest.approx(-0.1), False, False),
        ("Correct.", 1.0, True, False),
    ]


def test_repeating_a_guess_of_mastermind_earns_nothing():
    outcomes = play("llm/Mastermind-v0", {"letters": 4, "code": "ABC"}, *["ABD"] * 6)
    assert [outcome[1] for outcome in outcomes] == [0.0] * 6
    assert outcomes[-1][3]


@pytest.mark.parametrize(
    ("level", "step", "longest"), [("easy", 1, 5), ("medium", 17, 6), ("hard", 3000, 8), ("expert", 9000, 8)]
)
def test_the_oracle_of_mastermind_breaks_every_code(level, step, longest):
    # All codes of each level have been tried: the longest games are of 5, 6, 8 and 8 guesses.
    env = make("llm/Mastermind-v0", level)
    letters, places = env.settings["letters"], env.settings["places"]
    for code in list(product("ABCDEFG"[:letters], repeat=places))[::step]:
        env.reset(options={"problem": {"letters": letters, "code": "".join(code)}})
        turns, won = turns_of_the_oracle(env)
        assert won
        assert turns <= longest < env.max_turns


@pytest.mark.parametrize("level", LEVELS)
def test_blind_guesses_win_mastermind_at_the_chance_rate(level):
    def choose(env, rng):
        return "".join(rng.choice("ABCDEFG"[: env.problem["letters"]]) for _ in env.problem["code"])

    env = make("llm/Mastermind-v0", level)
    assert is_at_most(share_of_wins(env, choose, 120), env.chance_rate, 120)


# Hangman.


def test_hangman():
    outcomes = play("llm/Hangman-v0", {"word": "daughter"}, "e", "E", "z", "laughter", "12", "at", "daughter")
    assert outcomes == [
        ("_ _ _ _ _ _ e _\nWrong guesses: none. You lose after 8 more.\n29 replies left.", 0.0, False, False),
        ("Error: 'e' was guessed before. 28 replies left.", pytest.approx(-0.1), False, False),
        ("_ _ _ _ _ _ e _\nWrong guesses: z. You lose after 7 more.\n27 replies left.", 0.0, False, False),
        ("_ _ _ _ _ _ e _\nWrong guesses: z, laughter. You lose after 6 more.\n26 replies left.", 0.0, False, False),
        (
            "Error: a guess is one letter from a to z, or a word of 8 letters. 25 replies left.",
            pytest.approx(-0.1),
            False,
            False,
        ),
        (
            "Error: a guess is one letter from a to z, or a word of 8 letters. 24 replies left.",
            pytest.approx(-0.1),
            False,
            False,
        ),
        ("Correct: the word is daughter.", 1.0, True, False),
    ]


def test_hangman_shows_a_letter_everywhere_and_is_won_by_the_last_one():
    outcomes = play("llm/Hangman-v0", {"word": "banana"}, "a", "n", "b", difficulty="hard")
    assert [outcome[0].split("\n")[0] for outcome in outcomes] == [
        "_ a _ a _ a",
        "_ a n a n a",
        "Correct: the word is banana.",
    ]
    assert outcomes[-1][1:3] == (1.0, True)


def test_hangman_is_lost_with_the_last_wrong_guess():
    outcomes = play("llm/Hangman-v0", {"word": "banana"}, *"cdefgh", difficulty="hard")
    assert [outcome[2] for outcome in outcomes] == [False] * 5 + [True]
    assert outcomes[-1][:2] == ("Wrong guesses: c, d, e, f, g, h. You lose. The word was banana.", 0.0)


@pytest.mark.parametrize(("level", "most"), [("easy", 3), ("medium", 4), ("hard", 5)])
def test_the_oracle_of_hangman_finds_every_word(level, most):
    env, wrong = make("llm/Hangman-v0", level), 0
    words = [word for word in WORDS if len(word) == env.settings["length"]]
    assert len(words) == env.n_problems
    for word in words[::4]:  # all of them have been tried
        env.reset(options={"problem": {"word": word}})
        assert turns_of_the_oracle(env)[1]
        wrong = max(wrong, len(env._wrong))
    assert wrong <= most < env.settings["lives"]


@pytest.mark.parametrize("level", LEVELS)
def test_letters_by_their_frequency_win_hangman_at_most_at_the_chance_rate(level):
    env = make("llm/Hangman-v0", level)
    words = [word for word in WORDS if len(word) == env.settings["length"]]
    order = sorted("abcdefghijklmnopqrstuvwxyz", key=lambda letter: -sum(letter in word for word in words))
    wins = 0
    for word in words:
        env.reset(options={"problem": {"word": word}})
        for letter in order:
            *_, terminated, _, info = env.step(format_answer(letter))
            if terminated:
                break
        wins += info["is_success"]
    assert 0.09 < wins / len(words) <= env.chance_rate


# Twenty questions.

TABLE = {
    "theme": "creature",
    "columns": ["name", "color", "legs"],
    "rows": [["Bako", "red", "4"], ["Zuni", "red", "2"], ["Tivo", "blue", "2"], ["Lume", "green", "6"]],
    "secret": "Zuni",
}


def test_twenty_questions():
    outcomes = play(
        "llm/TwentyQuestions-v0", TABLE, "color is red", "Legs > 3?", "legs<4", "legs = 2", "it is zuni", max_turns=9
    )
    assert outcomes == [
        ("Yes.\n8 replies left.", 0.0, False, False),
        ("No.\n7 replies left.", 0.0, False, False),
        ("Yes.\n6 replies left.", 0.0, False, False),
        ("Yes.\n5 replies left.", 0.0, False, False),
        ("Correct.", 1.0, True, False),
    ]


def test_a_wrong_name_loses_and_only_one_can_be_given():
    assert play("llm/TwentyQuestions-v0", TABLE, "it is Bako") == [("Wrong. You lose.", 0.0, True, False)]
    for answer in ("it is Bako Zuni Tivo Lume", "it is Bako or Zuni", "Bako, Zuni", "is it Zuni?", "it is Nobody"):
        ((observation, reward, terminated, _),) = play("llm/TwentyQuestions-v0", TABLE, answer)
        assert observation.startswith("Error: ")
        assert (reward, terminated) == (pytest.approx(-0.1), False)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ("is it zuni", "'it' is not a property; they are color, legs"),
        ("wings is 2", "'wings' is not a property"),
        ("color > 2", "the values of 'color' are not numbers"),
        ("legs > many", "'many' is not a whole number"),
        ("legs > 9999999999", "is not a whole number of at most 9 digits"),
        ("color is red or blue", "neither a question"),
    ],
)
def test_what_is_no_question_is_refused(answer, complaint):
    ((observation, reward, terminated, _),) = play("llm/TwentyQuestions-v0", TABLE, answer)
    assert complaint in observation
    assert (reward, terminated) == (pytest.approx(-0.1), False)


def test_the_oracle_halves_the_table():
    env = make("llm/TwentyQuestions-v0")
    env.reset(options={"problem": TABLE})
    # "red" and "2" both hold for two of the four rows; the first of them is asked.
    assert env.oracle() == "<answer>color is red</answer>"
    env.step(env.oracle())
    assert env.oracle() == "<answer>legs is 4</answer>"  # Bako or Zuni
    env.step(env.oracle())
    assert env.oracle() == "<answer>it is Zuni</answer>"
    assert _replies_needed(_questions(TABLE["columns"], TABLE["rows"])) == 3


@pytest.mark.parametrize("level", LEVELS)
def test_the_oracle_names_every_row_of_a_table(level):
    env = make("llm/TwentyQuestions-v0", level)
    for seed in range(2):
        env.reset(seed=seed)
        problem, longest = env.problem, 0
        for row in problem["rows"]:
            env.reset(options={"problem": problem | {"secret": row[0]}})
            turns, won = turns_of_the_oracle(env)
            assert won
            longest = max(longest, turns)
        assert longest == _replies_needed(_questions(problem["columns"], problem["rows"]))
        assert longest <= env.settings["needed"] < env.max_turns


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("row", [0, -1])
def test_naming_a_fixed_row_wins_at_the_chance_rate(level, row):
    env = make("llm/TwentyQuestions-v0", level)
    rate = share_of_wins(env, lambda env, rng: f"it is {env.problem['rows'][row][0]}", 120)
    assert is_at_most(rate, env.chance_rate, 120)


@pytest.mark.parametrize(
    ("task", "problem", "complaint"),
    [
        ("TwentyQuestions", TABLE | {"secret": "Nobody"}, "its secret must be one of them"),
        ("TwentyQuestions", TABLE | {"rows": [["Zuni", "red", "2"], ["Zuni", "blue", "2"]]}, "its names must differ"),
        ("TwentyQuestions", TABLE | {"rows": [["Zuni", "red", "2"], ["Tivo", "red", "2"]]}, "two of its rows"),
        ("TwentyQuestions", TABLE | {"rows": [["Zuni", "red"]]}, "as many in each"),
        ("TwentyQuestions", TABLE | {"rows": [["Zuni", "dark red", "2"]]}, "single words"),
        ("Wordle", {"word": "zzzzz", "candidates": []}, "its word must be one of"),
        ("Wordle", {"word": "crane", "candidates": ["slate"]}, "its word must be one of"),
        ("Wordle", {"word": "crane", "candidates": ["crane", "zzzzz"]}, "its candidates must be"),
        ("Mastermind", {"letters": 3, "code": "ABD"}, "first so many letters"),
        ("Mastermind", {"letters": 3, "code": ""}, "first so many letters"),
        ("Mastermind", {"letters": 0, "code": "A"}, "first so many letters"),
        ("Mastermind", {"letters": 26, "code": "ABCDE"}, "at most 50000 codes"),
        ("Hangman", {"word": "zzzzzzzz"}, "its word must be one of"),
    ],
)
def test_what_cannot_be_played_is_refused(task, problem, complaint):
    require_refused(f"llm/{task}-v0", problem, complaint)
