"""How tasks of further families are played in their warm starts, well and badly.

Of both plays as much as can be is the same where a tiny model has to learn to copy: then every episode teaches that.
"""

from __future__ import annotations

import random
from typing import Any

import gymnasium as gym

from llm_envs.parsers import format_answer
from llm_envs.policies.scripted import OraclePolicy
from llm_envs.tasks.language.vocabulary import BY_FIRST, VOCABULARY

__all__ = [
    "leave_one_out",
    "leave_the_last_line_out",
    "put_the_word_first",
    "return_the_list",
    "say_a_digit",
    "take_the_price",
]

Env = gym.Env[str, str]


def _problem(env: Env) -> dict[str, Any]:
    problem: dict[str, Any] = env.unwrapped.problem  # type: ignore[attr-defined]
    return problem


def _answer_of(env: Env) -> str:
    return OraclePolicy().act(env, "")


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


def take_the_price(env: Env, random: random.Random) -> str:
    """Take the first price."""
    return format_answer("accept")
