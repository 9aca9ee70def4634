"""Reward functions for the agent's answer: text scores (`answers`), lifted (`base.lift`).

All look only at the agent's last message, and score 0 for an answer in a broken message. They pickle if their
arguments do.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Literal

from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import Parser, create_fenced_parser, format_reward, parse_reply
from llm_envs.rewards.answers import (
    MAX_WORDS,
    contains_all,
    exact_match,
    keyword_share,
    math_match,
    numeric_match,
    regex_match,
    schema_match,
)
from llm_envs.rewards.base import Part, RewardFn, lift
from llm_envs.rewards.words import final_reply
from llm_envs.types import Trajectory

if TYPE_CHECKING:
    from llm_envs.sandbox import Sandbox, SandboxLimits

__all__ = [
    "Tests",
    "create_code_tests",
    "create_contains",
    "create_exact_match",
    "create_format",
    "create_keywords",
    "create_math_match",
    "create_numeric_match",
    "create_regex_format",
    "create_schema_match",
    "passed_share",
]

FLOOD_WORDS = 1_000
"""Limit on the words of an answer when only its form is scored: longer ones list everything."""
Target = str | Callable[[Trajectory], Any]
"""The right answer, or a function of the trajectory that returns it (`problem_field("answer")`)."""
Tests = Sequence[tuple[str, Any]]
"""(expression, expected value): `[("add(1, 2)", 3)]`."""


def create_exact_match(target: Target, *, parser: Parser = parse_reply) -> RewardFn:
    """Score 1 for the right answer, ignoring differences in white space."""
    return lift(exact_match, target, parser=parser, name="exact_match")


def create_numeric_match(
    target: float | Target, *, rel_tol: float = 0.0, abs_tol: float = 0.0, parser: Parser = parse_reply
) -> RewardFn:
    """Score 1 for an answer that is a single number close enough to the target; see `numeric_match`."""
    match = functools.partial(numeric_match, rel_tol=rel_tol, abs_tol=abs_tol)
    return lift(match, target, parser=parser, name="numeric_match")


def create_math_match(
    target: Target, *, final_form: bool = True, timeout_s: float = 2.0, parser: Parser = parse_reply
) -> RewardFn:
    """Score 1 for an answer that is mathematically equal to the target; see `math_match`."""
    match = functools.partial(math_match, final_form=final_form, timeout_s=timeout_s)
    return lift(match, target, parser=parser, name="math_match")


def create_regex_format(
    pattern: str | re.Pattern[str],
    *,
    of: Part = "text",
    max_words: int | None = FLOOD_WORDS,
    parser: Parser = parse_reply,
) -> RewardFn:
    r"""Score 1 for an unbroken message that matches a pattern completely and does not repeat the prompt.

    Combine it with a reward for the content (`create_gated`): any well-formed text earns it.

    Args:
        pattern: Such as `r"(?s)<think>.+?</think>\s*<answer>.+?</answer>"`.
        of: The text that must match: the message as it was written, its content, or the answer.
        max_words: An answer (or else content) with more words does not count; None means no limit.
        parser: Finds broken messages.
    """
    compiled = re.compile(pattern)
    return lift(regex_match, compiled, of=of, parser=parser, copies="refuse", max_words=max_words, name="regex_format")


def create_format(
    require: Sequence[str] = ("answer",), *, max_words: int | None = FLOOD_WORDS, parser: Parser = parse_reply
) -> RewardFn:
    """Score 1 for an unbroken message that has all these parts; see `llm_envs.parsers.format_reward`.

    An answer that only repeats the prompt does not count.

    Args:
        require: Some of "thinking", "content", "tool_calls", "answer".
        max_words: As for `create_regex_format`.
        parser: Parses the message.
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
    """Score 1 for an answer that is one JSON document valid under the schema, and not a copy of the prompt."""
    schema_match("", schema)  # raises now if the schema is invalid
    return lift(schema_match, schema, of=of, parser=parser, copies="refuse", name="schema_match")


def create_keywords(
    keywords: Sequence[str], *, of: Part = "content", max_words: int = MAX_WORDS, parser: Parser = parse_reply
) -> RewardFn:
    """Score the share of the keywords that the agent wrote, as whole words; 0 above `max_words`.

    Passages copied from the prompt do not count (five consecutive words, or a full message).
    """
    share = functools.partial(keyword_share, max_words=max_words)
    share("", keywords)  # raises now if a keyword contains no word
    return lift(share, tuple(keywords), of=of, parser=parser, copies="drop", name="keywords")


def create_contains(
    parts: str | Sequence[str] | Callable[[Trajectory], Any],
    *,
    of: Part = "answer",
    max_words: int = MAX_WORDS,
    parser: Parser = parse_reply,
) -> RewardFn:
    """Score 1 for an answer of at most `max_words` that contains every part; copies of the prompt do not count."""
    match = functools.partial(contains_all, max_words=max_words)
    return lift(match, parts, of=of, parser=parser, copies="drop", name="contains")


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
    """Score code by tests that run in a sandbox.

    The expected values never enter the sandbox: the `repr` of each expression is compared here. So code that redefines
    equality, raises `SystemExit` or prints "passed" gains nothing.

    Args:
        tests: Expressions and their values; or a function of the trajectory that returns them.
        sandbox: The sandbox; None takes `shared_sandbox()`.
        limits: Replace the sandbox's limits.
        partial_credit: Score the share of passed tests; otherwise 1 for all of them and 0 for fewer.
        parser: Finds the code as the answer; None takes the only fenced block of Python.

    Raises:
        InvalidConfigError: If no test is given.
    """
    if not callable(tests) and not tests:
        raise InvalidConfigError("create_code_tests: tests is empty; give at least one.")
    run = functools.partial(passed_share, sandbox=sandbox, limits=limits)
    score = functools.partial(_score_code, run, partial_credit)
    # `lift` calls a callable target; a constant sequence of tests is passed on unchanged.
    return lift(score, tests, parser=parser or create_fenced_parser("python"), copies="refuse", name="code_tests")


def _score_code(run: Callable[[str, Tests], float], partial_credit: bool, code: str, tests: Tests) -> float:
    share = run(code, tests)
    return share if partial_credit else float(share == 1.0)


def passed_share(
    code: str, tests: Tests, *, sandbox: Sandbox | None = None, limits: SandboxLimits | None = None
) -> float:
    """Return the share of tests that code passes in a sandbox.

    Args:
        code: The model's code. If it raises an error by itself, no test passes.
        tests: (expression, value): passed if the expression's `repr` equals the value's, or, for a float, a number
            within a relative 1e-9 of it.
        sandbox: The sandbox; None takes `shared_sandbox()`.
        limits: Replace the sandbox's limits.

    Raises:
        InvalidConfigError: If no test is given.
        SandboxError: If the sandbox cannot run anything.
        MissingExtraError: If no sandbox is installed.
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
    if value == repr(expected) or (isinstance(expected, set | frozenset) and _is_set(value, expected)):
        return True
    if not isinstance(expected, float) or len(value) > 40:
        return False
    try:
        return math.isclose(float(value), expected, rel_tol=1e-9, abs_tol=1e-12)
    except ValueError:
        return False


def _is_set(value: str, expected: Set[Any]) -> bool:
    """Return whether a text is the `repr` of a set in any order."""
    before, after = ("frozenset({", "})") if isinstance(expected, frozenset) else ("{", "}")
    left = {f"{item!r}, " for item in expected}
    rest = value.removeprefix(before).removesuffix(after) + ", "
    while (item := next((item for item in left if rest.startswith(item)), None)) is not None:
        left.remove(item)
        rest = rest[len(item) :]
    return not left and not rest and value.startswith(before) and value.endswith(after)
