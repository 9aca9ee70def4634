"""Reward functions of what the agent answered: each a text's score (`answers`), lifted (`base.lift`).

All look at the agent's own last message alone, and pay nothing for an answer with something broken in its message. They
pickle where their arguments do.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import Parser, create_fenced_parser, format_reward, parse_reply
from llm_envs.rewards.answers import (
    MAX_WORDS,
    contains_all,
    exact_match,
    has_any,
    keyword_share,
    math_match,
    numeric_match,
    regex_match,
    schema_match,
)
from llm_envs.rewards.base import Part, RewardFn, lift, with_name
from llm_envs.rewards.words import final_reply
from llm_envs.types import Trajectory

if TYPE_CHECKING:
    from llm_envs.sandbox import Sandbox, SandboxLimits

__all__ = [
    "Tests",
    "create_code_tests",
    "create_contains",
    "create_exact_match",
    "create_forbidden",
    "create_format",
    "create_keywords",
    "create_math_match",
    "create_numeric_match",
    "create_regex_format",
    "create_schema_match",
    "passed_share",
]

FLOOD_WORDS = 1_000
"""Words of an answer that is one, by its form: whoever writes more writes everything."""
Target = str | Callable[[Trajectory], Any]
"""What is right; or a function of the trajectory that says it (`problem_field("answer")`)."""
Tests = Sequence[tuple[str, Any]]
"""(expression, what it must come to): `[("add(1, 2)", 3)]`."""


def create_exact_match(target: Target, *, parser: Parser = parse_reply) -> RewardFn:
    """Pay 1 for the right answer, runs of white space aside."""
    return lift(exact_match, target, parser=parser, name="exact_match")


def create_numeric_match(
    target: float | Target, *, rel_tol: float = 0.0, abs_tol: float = 0.0, parser: Parser = parse_reply
) -> RewardFn:
    """Pay 1 for an answer that is one number, and near enough: see `numeric_match`."""
    match = functools.partial(numeric_match, rel_tol=rel_tol, abs_tol=abs_tol)
    return lift(match, target, parser=parser, name="numeric_match")


def create_math_match(
    target: Target, *, final_form: bool = True, timeout_s: float = 2.0, parser: Parser = parse_reply
) -> RewardFn:
    """Pay 1 for an answer that is mathematically equal to the right one: see `math_match`."""
    match = functools.partial(math_match, final_form=final_form, timeout_s=timeout_s)
    return lift(match, target, parser=parser, name="math_match")


def create_regex_format(
    pattern: str | re.Pattern[str],
    *,
    of: Part = "text",
    max_words: int | None = FLOOD_WORDS,
    parser: Parser = parse_reply,
) -> RewardFn:
    r"""Pay 1 for a message that matches a pattern whole, has nothing broken in it, and does not repeat the prompt.

    Pay for form only together with what it is the form of (`create_gated`): whatever is well formed earns it.

    Args:
        pattern: Such as `r"(?s)<think>.+?</think>\s*<answer>.+?</answer>"`.
        of: What must match: the message as it was written, its content, or the answer.
        max_words: An answer (without one: content) of more words is no answer; None is no limit.
        parser: Says what is broken.
    """
    compiled = re.compile(pattern)
    return lift(regex_match, compiled, of=of, parser=parser, copies="refuse", max_words=max_words, name="regex_format")


def create_format(
    require: Sequence[str] = ("answer",), *, max_words: int | None = FLOOD_WORDS, parser: Parser = parse_reply
) -> RewardFn:
    """Pay 1 for a message with nothing broken in it that has all these parts: see `llm_envs.parsers.format_reward`.

    An answer that only repeats the prompt is none.

    Args:
        require: Of "thinking", "content", "tool_calls", "answer".
        max_words: As for `create_regex_format`.
        parser: Takes the message apart.
    """
    score = functools.partial(_is_formed, tuple(require), parser)
    return lift(score, _whole, of="text", parser=parser, copies="refuse", max_words=max_words, name="format")


def _whole(trajectory: Trajectory) -> Trajectory:
    return trajectory


def _is_formed(require: Sequence[str], parser: Parser, text: str, trajectory: Trajectory) -> float:
    return format_reward(final_reply(trajectory, parser), require=require)


def create_schema_match(
    schema: Mapping[str, Any], *, of: Literal["answer", "content"] = "answer", parser: Parser = parse_reply
) -> RewardFn:
    """Pay 1 for an answer that is one JSON document which the schema allows, and not a copy of the prompt."""
    schema_match("", schema)  # a wrong schema is refused now
    return lift(schema_match, schema, of=of, parser=parser, copies="refuse", name="schema_match")


def create_keywords(
    keywords: Sequence[str], *, of: Part = "content", max_words: int = MAX_WORDS, parser: Parser = parse_reply
) -> RewardFn:
    """Pay the share of the keywords that the agent wrote, as whole words; nothing over `max_words`.

    Passages of the prompt that are written again do not count (five words in a row, or a whole message).
    """
    share = functools.partial(_keyword_share, tuple(keywords), max_words)
    share("", None)
    return lift(share, of=of, parser=parser, copies="drop", name="keywords")


def _keyword_share(keywords: Sequence[str], max_words: int, text: str, target: Any) -> float:
    return keyword_share(text, keywords, max_words=max_words)


def create_contains(
    parts: str | Sequence[str] | Callable[[Trajectory], Any],
    *,
    of: Part = "answer",
    max_words: int = MAX_WORDS,
    parser: Parser = parse_reply,
) -> RewardFn:
    """Pay 1 for an answer of at most `max_words` in which every part stands, not counting copies of the prompt."""
    match = functools.partial(contains_all, max_words=max_words)
    return lift(match, parts, of=of, parser=parser, copies="drop", name="contains")


def create_forbidden(parts: str | Sequence[str], *, of: Literal["content", "text"] = "text") -> RewardFn:
    """Return −1 if any of the parts stands in the agent's last message, else 0. See `create_safety_penalty`, too."""
    listed = (parts,) if isinstance(parts, str) else tuple(parts)
    if not listed:
        raise InvalidConfigError("create_forbidden: parts is empty; give at least one.")
    has_any("", listed)
    return with_name("forbidden", functools.partial(_forbidden, listed, of))


def _forbidden(parts: Sequence[str], of: str, trajectory: Trajectory) -> float:
    from llm_envs.rewards.words import final_words

    # What is broken is still said: problems do not make it unsaid.
    text = final_words(trajectory) if of == "text" else final_reply(trajectory).content
    return -has_any(text, parts)


# ----------------------------------------------------------------------------------------------------------------------
# Code
# ----------------------------------------------------------------------------------------------------------------------


def create_code_tests(
    tests: Tests | Callable[[Trajectory], Tests],
    *,
    sandbox: Sandbox | None = None,
    limits: SandboxLimits | None = None,
    partial_credit: bool = False,
    parser: Parser | None = None,
) -> RewardFn:
    """Pay for code that passes tests, run in a sandbox.

    What an expression must come to never enters the sandbox: its `repr` there is compared here. So code that redefines
    equality, raises `SystemExit` or prints "passed" gains nothing.

    Args:
        tests: Expressions and their values; or a function of the trajectory that returns them.
        sandbox: Where it runs; None takes `shared_sandbox()`.
        limits: In place of the sandbox's own.
        partial_credit: Whether the share of passed tests is paid; else 1 for all of them and 0 otherwise.
        parser: Finds the code as the answer; None: the one fenced block of Python.

    Raises:
        InvalidConfigError: If there are no tests.
    """
    if not callable(tests) and not tests:
        raise InvalidConfigError("create_code_tests: tests is empty; give at least one.")
    run = functools.partial(passed_share, sandbox=sandbox, limits=limits)
    score = functools.partial(_score_code, run, partial_credit)
    # A constant sequence of tests stands for itself; `lift` calls what is callable.
    return lift(score, tests, parser=parser or create_fenced_parser("python"), copies="refuse", name="code_tests")


def _score_code(run: Callable[[str, Tests], float], partial_credit: bool, code: str, tests: Tests) -> float:
    share = run(code, tests)
    return share if partial_credit else float(share == 1.0)


def passed_share(
    code: str, tests: Tests, *, sandbox: Sandbox | None = None, limits: SandboxLimits | None = None
) -> float:
    """Return the share of tests that code passes, in a sandbox.

    Args:
        code: What a model wrote. If it fails by itself, no test is passed.
        tests: (expression, value): passed if the expression's `repr` is that of the value, or, for a float, a number
            within a relative 1e-9 of it.
        sandbox: Where it runs; None takes `shared_sandbox()`.
        limits: In place of the sandbox's own.

    Raises:
        InvalidConfigError: If there are no tests.
        SandboxError: If the sandbox cannot run anything.
        MissingExtraError: If there is no sandbox.
    """
    from llm_envs.sandbox import shared_sandbox

    if not tests:
        raise InvalidConfigError("passed_share: tests is empty; give at least one.")
    if not code.strip():
        return 0.0
    session = (shared_sandbox() if sandbox is None else sandbox).session(limits, seed=0)
    passed = 0
    try:
        if not session.run(code).succeeded:
            return 0.0
        for expression, expected in tests:
            result = session.run(expression)
            passed += result.succeeded and _is_value(result.value, expected)
            if result.state_lost:
                break
    finally:
        session.close()
    return passed / len(tests)


def _is_value(value: str | None, expected: Any) -> bool:
    if value is None:
        return expected is None
    if value == repr(expected):
        return True
    if not isinstance(expected, float) or len(value) > 40:
        return False
    try:
        return math.isclose(float(value), expected, rel_tol=1e-9, abs_tol=1e-12)
    except ValueError:
        return False
