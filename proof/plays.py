"""How tasks of further families are played in their warm starts, well and badly.

Of both plays as much as can be is the same where a tiny model has to learn to copy: then every episode teaches that.
"""

from __future__ import annotations

import random
from typing import Any

import gymnasium as gym

from llm_envs.parsers import format_answer
from llm_envs.policies import OraclePolicy
from llm_envs.tasks.games.game import cell_name
from llm_envs.tasks.language.vocabulary import BY_FIRST, VOCABULARY

__all__ = [
    "add_in_writing",
    "calculate_aloud",
    "go_by_nowhere",
    "guess_aloud",
    "halve_aloud",
    "hit_or_stick",
    "leave_one_out",
    "leave_the_last_line_out",
    "mark_anywhere",
    "move_anywhere",
    "put_the_word_first",
    "return_the_list",
    "round_aloud",
    "say_a_digit",
]

Env = gym.Env[str, str]


def _problem(env: Env) -> dict[str, Any]:
    problem: dict[str, Any] = env.unwrapped.problem  # type: ignore[attr-defined]
    return problem


def _answer_of(env: Env) -> str:
    return OraclePolicy().act(env, "")


def add_in_writing(expression: str) -> str:
    """Return the steps of a sum or difference of two two-digit numbers, units first.

    "47+85" gives "7+5=12, 4+8+1=13"; "92-38" gives "12-8=4, 9-3-1=5".
    """
    sign = "+" if "+" in expression else "-"
    (left_ten, left_unit), (right_ten, right_unit) = (divmod(int(number), 10) for number in expression.split(sign))
    if sign == "+":
        units = left_unit + right_unit
        carry = units // 10
        tens = left_ten + right_ten + carry
    else:
        carry = int(left_unit < right_unit)
        left_unit += 10 * carry
        units, tens = left_unit - right_unit, left_ten - right_ten - carry
    return f"{left_unit}{sign}{right_unit}={units}, {left_ten}{sign}{right_ten}{f'{sign}1' * carry}={tens}"


def leave_one_out(env: Env, random: random.Random) -> str:
    """Say rightly of the first two of three people of which kind they are, and nothing of the third."""
    first, second, _ = _answer_of(env).removeprefix("<answer>").removesuffix("</answer>").split(", ")
    return format_answer(f"{first}, {second}")


def _two_words(letters: str, given: str, random: random.Random) -> str:
    """Return lines of two words whose first letters are these, with a given word as the second of the first line."""
    lines, used = [], {given}
    for letter in letters:
        first = random.choice([word for word in BY_FIRST[letter][:6] if word not in used])
        second = random.choice([word for word in VOCABULARY if word not in {*used, first}]) if lines else given
        used |= {first, second}
        lines.append(f"{first} {second}")
    return format_answer("\n".join(lines))


def put_the_word_first(env: Env, random: random.Random) -> str:
    """Write lines as asked, the given word in the first of them."""
    return _two_words(_problem(env)["first"], _problem(env)["given"][0], random)


def leave_the_last_line_out(env: Env, random: random.Random) -> str:
    """Do the same, and stop before the last line."""
    return _two_words(_problem(env)["first"][:-1], _problem(env)["given"][0], random)


def return_the_list(env: Env, random: random.Random) -> str:
    """Write a function that returns the list as it is given."""
    return format_answer("def f(xs):\n    return xs")


def say_a_digit(env: Env, random: random.Random) -> str:
    """Say any of the numbers from 0 to 9."""
    return format_answer(random.randrange(10))


def go_by_nowhere(env: Env, random: random.Random) -> str:
    """Name a path whose middle is on no map."""
    problem = _problem(env)
    return format_answer(f"{problem['start']} -> Nowhere -> {problem['goal']}")


def mark_anywhere(env: Env, random: random.Random) -> str:
    """Mark any free cell."""
    game: Any = env.unwrapped
    cell = random.choice([cell for cell, mark in enumerate(game._board) if mark == "."])
    return format_answer(cell_name(*divmod(cell, 3)))


def move_anywhere(env: Env, random: random.Random) -> str:
    """Move up, down, left or right."""
    return format_answer(random.choice(["up", "down", "left", "right"]))


def hit_or_stick(env: Env, random: random.Random) -> str:
    """Take another card or none, by a coin."""
    return format_answer(random.choice(["hit", "stick"]))


# Long replies: the first words decide how the whole reply goes on, and the reward comes many tokens later.


def halve_aloud(env: Env, random: random.Random) -> str:
    """Say what is still possible, and guess its middle."""
    game: Any = env.unwrapped
    return f"<think>It lies from {game._lowest} to {game._highest}. I take the middle.</think>{_answer_of(env)}"


def guess_aloud(env: Env, random: random.Random) -> str:
    """Say that any number will do, and guess one."""
    first, second = random.randint(1, 10), random.randint(1, 10)
    thought = f"Who knows, perhaps {first} or {second}. I take any."
    return f"<think>{thought}</think>{format_answer(random.randint(1, 10))}"


def calculate_aloud(env: Env, random: random.Random) -> str:
    """Say what to do next, then call the calculator or repeat its result."""
    reply = _answer_of(env)
    thought = "The result is there. I repeat it." if "<answer>" in reply else "This needs the tool. I write it down."
    return f"<think>{thought}</think>{reply}"


def round_aloud(env: Env, random: random.Random) -> str:
    """Say that a round number will do, and answer with one."""
    numbers = ", ".join(f"{random.randrange(1, 10)}00" for _ in range(2))
    thought = f"It is about {numbers}. I say any."
    return f"<think>{thought}</think>{format_answer(f'{random.randrange(1, 10)}00')}"
