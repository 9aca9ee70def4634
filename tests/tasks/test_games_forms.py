"""Answers to games in the forms in which models write them: accepted as one move, or refused as several or none."""

import gymnasium as gym
import pytest
from task_play import finish

import llm_envs
from llm_envs.parsers import format_answer

HANOI = {"start": "AAA", "goal": "CCC", "moves": 10}
MAZE = {"rows": ["#####", "#S..#", "#..G#", "#####"], "moves": 9}
FIELD = {"rows": ["....", "..*.", "*..."], "first": "A1"}
BOARD = {"board": "X...O....", "agent": "X", "seed": 1}
DISCS = {"opening": "12", "seed": 1}
LAKE = {"map": ["SFF", "FHF", "FFG"], "seed": 0}
TAXI = {"row": 2, "column": 2, "passenger": "R", "destination": "B", "seed": 1}
AT_STAND = TAXI | {"row": 0, "column": 0}
CLIFF = {"start": 24, "view": "plain", "seed": 1}
HANDS = {"seed": 1}
TABLE = {
    "theme": "creature",
    "columns": ["name", "color", "legs"],
    "rows": [["Bako", "red", "4"], ["Zuni", "red", "2"], ["Tivo", "blue", "2"], ["Lume", "green", "6"]],
    "secret": "Zuni",
}
WORD, HIDDEN, CODE = {"word": "crane", "candidates": []}, {"word": "elephant"}, {"letters": 4, "code": "ABC"}
NUMBER = {"low": 1, "high": 10, "secret": 7}

SAME = [
    # Task, problem, plain answer, the same answer as models write it.
    ("Maze", MAZE, "right down", ["RIGHT DOWN", "right, then down", "1. right\n2. down", "- right\n- down"]),
    ("Maze", MAZE, "right down", ["RD", "r d"]),
    ("Maze", MAZE, "right down", ["right -> down", "right \u2192 down", "\u2192 \u2193"]),
    ("Maze", MAZE, "right down", ["**right down**", "right;down."]),
    ("Maze", MAZE, "right down", ["Moves: right, down.", "Move right, then move down", "First go right, then down"]),
    ("Maze", MAZE, "right right down", ["right x2, down", "right 2 times, down", 'The answer is right right down.']),
    ("Sokoban", None, "up", ["UP", "up.", "go up", "u", "Move: up", "\\text{up}", "I will go up."]),
    ("Minesweeper", FIELD, "D1 D3", ["d1, d3", "D1 and D3", "Open D1 and D3.", "1. D1\n2. D3"]),
    ("Minesweeper", FIELD, "D1 D3", ["- D1\n- D3", "[D1, D3]"]),
    ("Minesweeper", FIELD, "D1", ["column D, row 1", "row 1, column D", "(D, 1)", "D-1", "1D"]),
    ("Minesweeper", FIELD, "D1", ["cell D1", "I open D1."]),
    ("TicTacToe", BOARD, "B3", ["b3", "B3.", "B 3", "(B, 3)", "column B, row 3", "I mark B3", "**B3**", "3B"]),
    ("TicTacToe", BOARD, "B3", ["I place an X at B3", "The answer is B3.", "My move is B3", "cell B3"]),
    ("ConnectFour", DISCS, "4", ["column 4", "Column 4.", "col 4", "**4**", "the 4th column"]),
    ("ConnectFour", DISCS, "4", ["Drop in column 4", "4."]),
    ("ConnectFour", DISCS, "4", ["I drop my disc in column 4.", "The answer is 4.", "I choose column 4"]),
    ("FrozenLake", LAKE, "right", ["Right", "right.", "move right", "go right", "r", "I move right.", "right!"]),
    ("CliffWalking", CLIFF, "up", ["UP", "go up.", "u", "upwards", "I will go up one cell"]),
    ("Taxi", TAXI, "north", ["North.", "go north", "N", "I drive north", "Action: north", "move one cell north"]),
    ("Taxi", AT_STAND, "pickup", ["pick up", "Pick up the passenger.", "pick-up", "pick the passenger up"]),
    ("Taxi", TAXI, "dropoff", ["drop off", "drop off the passenger", "Drop-off."]),
    ("Blackjack", HANDS, "hit", ["Hit.", "HIT", "hit me", "I hit!", "I will hit.", "**hit**", "The answer is hit."]),
    ("Blackjack", HANDS, "stick", ["Stick.", "stand", "I stick", "I choose to stick", "stay"]),
    ("TowerOfHanoi", HANOI, "AC AB", ["ac ab", "A->C, A->B", "A to C\nA to B"]),
    ("TowerOfHanoi", HANOI, "AC AB", ["1. A \u2192 C\n2. A \u2192 B", "(A, C), (A, B)"]),
    ("TowerOfHanoi", HANOI, "AC AB", ["Move disk 1 from A to C, then disk 2 from A to B.", "- AC\n- AB"]),
    ("TowerOfHanoi", HANOI, "AC AB", ["A-C A-B", "AC, AB"]),
    ("TowerOfHanoi", HANOI, "AC", ["Move the top disk from peg A to peg C.", "disk 1: A -> C", "[A, C]"]),
    ("Wordle", WORD, "slate", ["SLATE", "s l a t e", "S-L-A-T-E", "My guess is slate.", "I guess slate", "**SLATE**"]),
    ("Wordle", WORD, "slate", ['"slate"', "Try slate", "S, L, A, T, E", "the word slate", "Guess: slate"]),
    ("Mastermind", CODE, "A A B", ["aab", "A, A, B", "A-A-B", "[A, A, B]", "(A, A, B)."]),
    ("Mastermind", CODE, "A A B", ["My guess is A A B.", "**AAB**"]),
    ("Hangman", HIDDEN, "e", ["E", "e.", "the letter e", "'e'", "an e", "Letter: e"]),
    ("Hangman", HIDDEN, "e", ["I guess e", "I guess the letter e."]),
    ("Hangman", HIDDEN, "elephant", ["ELEPHANT", "The word is elephant.", "e-l-e-p-h-a-n-t", "the word elephant"]),
    ("TwentyQuestions", TABLE, "color is red", ["Is the color red?", "color: red", "color = red", "Is its color red"]),
    ("TwentyQuestions", TABLE, "legs > 2", ["legs >= 3", "Is the number of legs greater than 2?", "legs more than 2"]),
    ("TwentyQuestions", TABLE, "legs < 4", ["legs less than 4", "legs is at most 3"]),
    ("TwentyQuestions", TABLE, "legs < 4", ["legs <= 3", "Are the legs below 4?"]),
    ("TwentyQuestions", TABLE, "it is Zuni", ["Zuni", "zuni.", "**Zuni**", "It's Zuni."]),
    ("TwentyQuestions", TABLE, "it is Zuni", ["name: Zuni", "The answer is Zuni."]),
    ("TwentyQuestions", TABLE, "it is Bako", ["Bako", "The name is Bako", "My guess is Bako."]),
    ("GuessNumber", NUMBER, "5", ["5.", "**5**", "The answer is 5.", "My guess is 5"]),
]  # fmt: skip
REFUSED = [
    ("Maze", MAZE, ["right or down", "north", "not right", "right 2 or 3 times", "right, maybe down", "(1)"]),
    ("Sokoban", None, ["restart up", "up or restart", "restart or not"]),
    ("Minesweeper", FIELD, ["D1 or D3", "4,1", "D", "D1E", "not D1", "D1 maybe", "all cells"]),
    ("TicTacToe", BOARD, ["B3 or C1", "B3 C1", "B3, C1", "5", "not B3"]),
    ("ConnectFour", DISCS, ["4 or 5", "4 5", "4, 5", "44", "4.5", "-4", "columns 4 and 5"]),
    ("FrozenLake", LAKE, ["right or down", "right down", "right, right", "not right", "right passenger"]),
    ("CliffWalking", CLIFF, ["up or right", "up up", "maybe up"]),
    ("Taxi", TAXI, ["north south", "pickup dropoff", "pick up and drop off", "north or south", "north passenger"]),
    ("Blackjack", HANDS, ["hit or stick", "hit stick", "hit, then stick", "don't hit", "maybe hit", "not stick"]),
    ("TowerOfHanoi", HANOI, ["AC or AB", "ACB", "A", "AD", "A B C", "disk 1 to C"]),
    ("Wordle", WORD, ["crane slate", "crane or slate", "crane, slate", "cran", "I am ok", "a word"]),
    ("Mastermind", CODE, ["AAB or ABC", "AAB ABC", "AAE", "A A"]),
    ("Hangman", HIDDEN, ["e or a", "e, a", "e a", "ele", "elephant or alphabet"]),
    ("TwentyQuestions", TABLE, ["color is red or blue", "Zuni or Bako", "Zuni, Bako", "not Zuni", "it is not Zuni"]),
    ("TwentyQuestions", TABLE, ["color is not red", "red", "legs", "is it Zuni?", "x" * 100_000]),
    ("GuessNumber", NUMBER, ["5 or 7", "5, 7", "5.5", "five or seven"]),
]  # fmt: skip


def first_step(task, problem, answer, **kwargs):
    env = gym.make(f"llm/{task}-v0", **kwargs)
    env.reset(seed=0, options=problem and {"problem": problem})
    observation, reward, terminated, *_ = env.step(answer)
    return observation, reward, terminated


@pytest.mark.parametrize(
    ("task", "problem", "plain", "written"),
    [(task, problem, plain, written) for task, problem, plain, forms in SAME for written in forms],
)
def test_an_answer_counts_as_its_plain_form(task, problem, plain, written):
    outcome = first_step(task, problem, format_answer(plain))
    assert "Error" not in outcome[0] or task in ("Sokoban", "Taxi")
    assert first_step(task, problem, format_answer(written)) == outcome


@pytest.mark.parametrize(
    ("task", "problem", "written"), [(task, problem, written) for task, problem, forms in REFUSED for written in forms]
)
def test_several_answers_or_none_are_refused(task, problem, written):
    observation, reward, terminated = first_step(task, problem, format_answer(written))
    assert observation.startswith("Error: ")
    assert (reward, terminated) == (pytest.approx(-0.1), False)


def test_a_wrong_disk_is_against_the_rules():
    observation, reward, _ = first_step("TowerOfHanoi", HANOI, format_answer("Move disk 2 from A to C"))
    assert observation.startswith("Error: AC is against the rules.")
    assert reward == pytest.approx(-0.1)


GAMES = sorted({task for task, *_ in SAME})


@pytest.mark.parametrize("task", GAMES)
def test_the_example_is_a_readable_answer(task):
    env = gym.make(f"llm/{task}-v0").unwrapped
    for seed in range(3):
        env.reset(seed=seed)
        example = env.system_prompt[env.system_prompt.index("<answer>") :].split(" Give")[0]
        observation = env.step(example)[0]
        assert "Error" not in observation or "wall" in observation or "not possible" in observation or (
            "against the rules" in observation or "is not free" in observation or "is open already" in observation
        )  # fmt: skip


@pytest.mark.parametrize("task", GAMES)
def test_the_natural_form_is_read(task):
    env = gym.make(f"llm/{task}-v0", answer_form="natural").unwrapped
    env.reset(seed=1)
    assert "<answer>" not in env.system_prompt
    over, turns = False, 0
    while not over:
        action = env.oracle()
        assert action.startswith("The answer is ")
        observation, _, terminated, truncated, _ = env.step(f"I have thought about it. {action}")
        assert "Error" not in observation
        over, turns = terminated or truncated, turns + 1
    assert turns <= env.max_turns


@pytest.mark.parametrize("level", ["easy", "medium", "hard", "expert"])
@pytest.mark.parametrize("task", GAMES)
def test_repeating_the_example_wins_no_more_than_chance(task, level):
    if level not in gym.make(f"llm/{task}-v0").unwrapped.difficulties:
        pytest.skip("the task has no such level")
    env, wins, n = gym.make(f"llm/{task}-v0", difficulty=level).unwrapped, 0, 40
    for seed in range(n):
        env.reset(seed=seed)
        example = env.system_prompt[env.system_prompt.rindex("<answer>") :]
        wins += finish(env, lambda reply=example: reply)[-1][4]["is_success"]
    assert wins / n <= env.chance_rate + 3 * (env.chance_rate * (1 - env.chance_rate) / n) ** 0.5


assert llm_envs  # registers
