"""How tasks of further families are played in their warm starts, well and badly.

Well: with the steps written out where a tiny model needs them. Badly: in the right form, and for nothing.
"""

from __future__ import annotations

import random
from typing import Any

import gymnasium as gym

from llm_envs.parsers import format_answer
from llm_envs.policies.scripted import OraclePolicy
from llm_envs.tasks.language.vocabulary import BY_FIRST, VOCABULARY

__all__ = [
    "convert_and_forget",
    "convert_by_bits",
    "leave_one_out",
    "leave_the_last_line_out",
    "put_the_word_first",
    "return_the_list",
    "say_a_digit",
    "take_the_price",
    "write_bits",
]

Env = gym.Env[str, str]

_DIGITS = "0123456789abcdef"
_BITS = {2: 1, 8: 3, 16: 4}
"""Of a digit of each base."""


def _problem(env: Env) -> dict[str, Any]:
    problem: dict[str, Any] = env.unwrapped.problem  # type: ignore[attr-defined]
    return problem


def _answer_of(env: Env) -> str:
    return OraclePolicy().act(env, "")


def write_bits(number: str, source: int, target: int) -> str:
    """Return how a number goes from base 2, 8 or 16 to another of them: twelve bits, in groups of either base's size.

    "1b0" from 16 to 8 gives "0001 1011 0000; 000 110 110 000".
    """
    n_bits = _BITS[source]
    bits = "".join(f"{int(digit, source):0{n_bits}b}" for digit in number).zfill(12)
    return "; ".join(
        " ".join(bits[start : start + size] for start in range(0, 12, size)) for size in (n_bits, _BITS[target])
    )


def convert_by_bits(env: Env, random: random.Random) -> str:
    """Repeat the number, convert it by way of bits where both bases are powers of two, and say the answer."""
    thought, right = _convert(env)
    return f"<think>{thought}</think>{right}"


def convert_and_forget(env: Env, random: random.Random) -> str:
    """Do the same, and say three binary digits: a number in any base, and never the right one, which is at least 16."""
    bits = "".join(random.choice("01") for _ in range(3))
    return f"<think>{_convert(env)[0]}</think>{format_answer(bits)}"


def _convert(env: Env) -> tuple[str, str]:
    problem = _problem(env)
    number, source, target = problem["numbers"][0], problem["source"], problem["target"]
    if 10 in (source, target):
        return number, _answer_of(env)
    written = write_bits(number, source, target)
    groups = written.split("; ")[1].split()
    return f"{number}; {written}", format_answer("".join(_DIGITS[int(group, 2)] for group in groups))


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
