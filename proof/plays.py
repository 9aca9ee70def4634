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
    "convert_by_bits",
    "describe_statements",
    "leave_one_out",
    "put_the_word_first",
    "return_the_list",
    "say_a_digit",
    "say_that_all_follows",
    "say_three_bits",
    "spell_only",
    "take_the_price",
    "write_bits",
    "write_down_what_is_said",
]

Env = gym.Env[str, str]

_DIGITS = "0123456789abcdef"
_BITS = {2: 1, 8: 3, 16: 4}
"""Of a digit of each base."""
_SIGNS = {"is": ("-", "+"), "same": "=", "different": "/", "any": ("n", "y")}


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
    """Repeat the number, and convert it by way of bits where both bases are powers of two; else say the answer."""
    problem = _problem(env)
    number, source, target = problem["numbers"][0], problem["source"], problem["target"]
    if 10 in (source, target):
        return f"<think>{number}</think>{_answer_of(env)}"
    written = write_bits(number, source, target)
    groups = written.split("; ")[1].split()
    return f"<think>{number}; {written}</think>{format_answer(''.join(_DIGITS[int(group, 2)] for group in groups))}"


def say_three_bits(env: Env, random: random.Random) -> str:
    """Repeat the number, and say three binary digits: a number in any base, and never the right one, at least 16."""
    bits = "".join(random.choice("01") for _ in range(3))
    return f"<think>{_problem(env)['numbers'][0]}</think>{format_answer(bits)}"


def say_that_all_follows(env: Env, random: random.Random) -> str:
    """Say of each conclusion that it follows, which is never so."""
    n = _answer_of(env).count(":")
    return format_answer("; ".join(f"{i}: follows" for i in range(1, n + 1)))


def describe_statements(statements: list[list[Any]]) -> str:
    """Return what three people say, by their places: "1:2- 2:13= 3:12y".

    Of one other: "+" tells the truth, "-" lies. Of two: "=" are of the same kind, "/" are of different kinds, "y" at
    least one tells the truth, "n" at least one lies.
    """
    said = []
    for speaker, (form, *rest) in enumerate(statements, 1):
        people = "".join(sorted(str(1 + x) for x in rest if type(x) is int))
        sign = _SIGNS[form]
        said.append(f"{speaker}:{people}{sign if isinstance(sign, str) else sign[rest[-1]]}")
    return " ".join(said)


def write_down_what_is_said(env: Env, random: random.Random) -> str:
    """Write down who says what of whom, then who lies, then the answer."""
    problem = _problem(env)
    right = _answer_of(env)
    kinds = [part.split(": ")[1] for part in right.removeprefix("<answer>").removesuffix("</answer>").split(", ")]
    told = " ".join(f"{i}{'+' if kind == problem['kinds'][0] else '-'}" for i, kind in enumerate(kinds, 1))
    return f"<think>{describe_statements(problem['statements'])}; {told}</think>{right}"


def leave_one_out(env: Env, random: random.Random) -> str:
    """Say of the first two alone of which kind they are."""
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


def spell_only(env: Env, random: random.Random) -> str:
    """Write lines that spell the word, and forget the given one."""
    problem = _problem(env)
    others = [word for word in VOCABULARY if word not in problem["given"]]
    return _two_words(problem["first"], random.choice(others), random)


def return_the_list(env: Env, random: random.Random) -> str:
    """Write a function that returns the list as it is given."""
    return format_answer("def f(xs):\n    return xs")


def say_a_digit(env: Env, random: random.Random) -> str:
    """Say any of the numbers from 0 to 9."""
    return format_answer(random.randrange(10))


def take_the_price(env: Env, random: random.Random) -> str:
    """Take the first price."""
    return format_answer("accept")
