"""Rewards for an agent's conduct: lengths, tools, turns, checks. Functions of a trajectory and their factories.

Conduct earns nothing by itself: good conduct either avoids a cost (0 at best), or earns a reward only if the task
succeeds. So writing little, much, or nothing is never worth more than solving the task.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from typing import Literal

from llm_envs.errors import InvalidConfigError
from llm_envs.rewards.answers import has_any, repeated_share
from llm_envs.rewards.base import RewardFn, Score, with_name
from llm_envs.rewards.words import final_words, own_messages, own_words, split_words
from llm_envs.tools.base import BUDGET_EXCEEDED, INVALID_ARGUMENTS, UNKNOWN_TOOL
from llm_envs.types import StopReason, Trajectory

__all__ = [
    "cost_of_checks",
    "create_length_penalty",
    "create_overlong_penalty",
    "create_repetition_penalty",
    "create_safety_penalty",
    "create_self_verification",
    "create_tool_count_penalty",
    "create_tool_success",
    "create_turn_efficiency",
    "length_of",
]

Unit = Literal["tokens", "completion_tokens", "words", "characters"]
_UNITS = ("tokens", "completion_tokens", "words", "characters")


def length_of(trajectory: Trajectory, unit: Unit = "tokens") -> int:
    """Return how much the agent wrote, in all its turns.

    Args:
        trajectory: The episode.
        unit: "tokens" (sampled), "words" or "characters" of the agent; or "completion_tokens": all tokens after the
            prompt, including observations, as a trainer's `max_completion_length` counts them.

    Raises:
        InvalidConfigError: If the unit is tokens and the trajectory has none (a text-only policy).
    """
    if unit in ("tokens", "completion_tokens"):
        if not trajectory.rows and trajectory.turns:
            raise InvalidConfigError("the trajectory has no tokens (a text-only policy): use words or characters.")
        if unit == "completion_tokens":
            return trajectory.n_completion_tokens
        repeated: int = trajectory.metadata.get("fork", {}).get("sampled_tokens", 0)  # the turns before a branch
        return repeated + trajectory.n_sampled_tokens
    if unit not in _UNITS:
        raise InvalidConfigError(f"unit is {unit!r}; known are {', '.join(_UNITS)}.")
    text = own_words(trajectory)
    return len(split_words(text)) if unit == "words" else len(text)


def create_length_penalty(*, low: int = 0, high: int | None = None, unit: Unit = "tokens") -> RewardFn:
    """Return 0 for a length n within [low, high], −(low − n)/low below, −min(1, (n − high)/high) above.

    Args:
        low: Lower bound; 0 means none.
        high: Upper bound; None means none.
        unit: As for `length_of`.
    """
    if low < 0 or (high is not None and not max(low, 1) <= high):
        raise InvalidConfigError(
            f"create_length_penalty: {low=}, {high=}; expected 0 <= low <= high, and high above 0."
        )
    return with_name("length", functools.partial(_range_penalty, functools.partial(length_of, unit=unit), low, high))


def _range_penalty(
    count: Callable[[Trajectory], int], low: int, high: int | None, trajectory: Trajectory
) -> float:  # fmt: skip
    n = count(trajectory)
    if n < low:
        return (n - low) / low
    if high is not None and n > high:
        return -min(1.0, (n - high) / max(high, 1))
    return 0.0


def create_overlong_penalty(max_length: int, buffer: int, *, unit: Unit = "completion_tokens") -> RewardFn:
    """Return DAPO's soft overlong punishment of a length n.

    0 for n ≤ L − C; ((L − C) − n)/C for L − C < n ≤ L; −1 for n > L, and for an episode that a token limit ended after
    L − C, because its next turn had no room. Yu et al., "DAPO: An Open-Source LLM Reinforcement Learning System at
    Scale" (arXiv 2503.14476), equation 13.

    Args:
        max_length: L, the maximum length: in training, `max_completion_length`.
        buffer: C, the range over which the penalty grows.
        unit: As for `length_of`. The default counts the tokens that `max_completion_length` limits.
    """
    if not 0 < buffer <= max_length:
        raise InvalidConfigError(
            f"create_overlong_penalty: {max_length=}, {buffer=}; expected 0 < buffer <= max_length."
        )
    return with_name("overlong", functools.partial(_overlong_penalty, max_length, buffer, unit))


def _overlong_penalty(max_length: int, buffer: int, unit: Unit, trajectory: Trajectory) -> float:
    free = max_length - buffer
    if unit == "completion_tokens" and trajectory.stop_reason is StopReason.MAX_TOKENS:
        return -float(length_of(trajectory, unit) > free)
    return -min(1.0, max(0.0, (length_of(trajectory, unit) - free) / buffer))


def create_repetition_penalty(n: int = 3, *, of: Literal["all", "last"] = "all") -> RewardFn:
    """Return −(share of word n-grams that repeat earlier ones), from −1 to 0.

    The measure of Yeo et al., "Demystifying Long Chain-of-Thought Reasoning in LLMs" (arXiv 2502.03373), with a weight
    of 1.

    Args:
        n: Words in a gram.
        of: All turns together, or only the last message.
    """
    if n < 1:
        raise InvalidConfigError(f"create_repetition_penalty: n is {n!r}; it must be at least 1.")
    return with_name("repetition", functools.partial(_repetition_penalty, n, own_words if of == "all" else final_words))


def _repetition_penalty(n: int, words: Callable[[Trajectory], str], trajectory: Trajectory) -> float:
    return -repeated_share(words(trajectory), n)


def create_safety_penalty(words: Collection[str], *, of: Literal["all", "last"] = "all") -> RewardFn:
    """Return −1 if the agent wrote any of the words or phrases, including thinking and calls; else 0.

    Whole words, ignoring case, invisible characters and full-width letters. Other spellings ("b.a.d") are not found: a
    word list is not a judge.

    Args:
        words: The words or phrases.
        of: All turns, or only the last message.
    """
    listed = [words] if isinstance(words, str) else list(words)
    has_any("", listed)  # raises now if a phrase contains no word
    if not listed:
        raise InvalidConfigError("create_safety_penalty: words is empty; give at least one.")
    return with_name("safety", functools.partial(_safety_penalty, tuple(listed), of == "last"))


def _safety_penalty(words: tuple[str, ...], only_last: bool, trajectory: Trajectory) -> float:
    said = []
    for message in [trajectory.messages[place] for place in own_messages(trajectory)][-1 if only_last else 0 :]:
        said += [message.content, *(f"{call.name} {dict(call.arguments)}" for call in message.tool_calls)]
    return -has_any("\n".join(said), words)


def create_tool_count_penalty(
    *, low: int = 0, high: int | None = None, tools: Collection[str] | None = None
) -> RewardFn:
    """Return 0 for a number of tool calls within [low, high], −(low − n)/low below, −min(1, (n − high)/high) above.

    Every call counts, whether it ran or got an error. With `high=0` any call gives −1.

    Args:
        low: Fewest calls without a penalty.
        high: Most calls without a penalty; None means no limit.
        tools: Names of the tools that count; None means all.
    """
    if low < 0 or (high is not None and not low <= high):
        raise InvalidConfigError(f"create_tool_count_penalty: {low=}, {high=}; expected 0 <= low <= high.")
    chosen = None if tools is None else frozenset(tools)
    return with_name("tool_count", functools.partial(_range_penalty, functools.partial(_n_calls, chosen), low, high))


def _n_calls(tools: frozenset[str] | None, trajectory: Trajectory) -> int:
    return sum(tools is None or result.name in tools for result in trajectory.tool_results)


def create_tool_success() -> RewardFn:
    """Return the share of tool calls that succeeded if the episode succeeded; otherwise 0, and 0 without calls.

    Successful calls are easy to make, so without the task's success they earn nothing.
    """
    return with_name("tool_success", _tool_success)


def _tool_success(trajectory: Trajectory) -> float:
    results = trajectory.tool_results
    if not results or trajectory.is_success is not True:
        return 0.0
    return sum(result.success for result in results) / len(results)


def create_turn_efficiency(max_turns: int) -> RewardFn:
    """Return 1 − (n − 1)/max_turns for a success in n turns (at least 0), and 0 without success."""
    if max_turns < 1:
        raise InvalidConfigError(f"create_turn_efficiency: max_turns is {max_turns!r}; it must be at least 1.")
    return with_name("turn_efficiency", functools.partial(_turn_efficiency, max_turns))


def _turn_efficiency(max_turns: int, trajectory: Trajectory) -> float:
    if trajectory.is_success is not True:
        return 0.0
    return max(0.0, 1.0 - (trajectory.n_steps - 1) / max_turns)


# ----------------------------------------------------------------------------------------------------------------------
# Self-verification
# ----------------------------------------------------------------------------------------------------------------------


def cost_of_checks(trajectory: Trajectory, costs: Mapping[str, float], total: float) -> float:
    """Return the cost of the agent's checks as `llm_envs.tools.Budget` charges them: in order, up to `total`.

    A call that did not run costs nothing: an unknown tool, wrong arguments, or not covered by the budget.

    Args:
        trajectory: The episode.
        costs: Cost of one call of each checking tool; other tools cost nothing.
        total: The budget.
    """
    not_run = (UNKNOWN_TOOL, INVALID_ARGUMENTS, BUDGET_EXCEEDED)
    return min(sum(costs.get(r.name, 0.0) for r in trajectory.tool_results if r.error not in not_run), total)


def create_self_verification(
    quality_fn: RewardFn, costs: Mapping[str, float], total: float, *, cost_weight: float = 0.5
) -> RewardFn:
    """Weigh the quality of the answer against the cost of checks under a budget: r = q − λ c / B.

    `q` can be earned without checks, so a check is worth making exactly if it raises `q` by more than its cost.

    Args:
        quality_fn: q: the quality of the answer, a number.
        costs: Cost of one call of each checking tool.
        total: B, the budget of an episode (`llm_envs.tools.budget.Budget.total`), above 0.
        cost_weight: λ: the cost of spending all of the budget.

    Returns:
        A reward function with the parts "quality" and "cost".
    """
    if not total > 0 or cost_weight < 0 or any(cost < 0 for cost in costs.values()):
        raise InvalidConfigError(f"create_self_verification: {total=}, {cost_weight=}, {dict(costs)=}; expected "
                                 "a total above 0, and no negative weight or cost.")  # fmt: skip
    return with_name(
        "self_verification", functools.partial(_self_verification, quality_fn, dict(costs), total, cost_weight)
    )


def _self_verification(
    quality_fn: RewardFn, costs: Mapping[str, float], total: float, cost_weight: float, trajectory: Trajectory
) -> Score:
    quality = quality_fn(trajectory)
    if quality is None:
        return None
    if isinstance(quality, Mapping):
        raise InvalidConfigError(
            f"create_self_verification: quality_fn returned parts {sorted(quality)}; give a number."
        )
    return {"quality": quality, "cost": -cost_weight * cost_of_checks(trajectory, costs, total) / total}
