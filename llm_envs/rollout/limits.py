"""The budgets of an episode, and the one function that turns them into the budget of a turn."""

from __future__ import annotations

from dataclasses import dataclass, fields

from llm_envs.errors import InvalidConfigError

__all__ = ["RolloutLimits", "row_limit", "turn_budget"]


@dataclass(frozen=True, slots=True)
class RolloutLimits:
    """Every wait and every length of a rollout has its budget here. None is no limit. Validated on construction."""

    max_turns: int | None = None
    """Turns an episode may have. The environment's own limit may be lower."""
    max_turn_tokens: int | None = None
    """Tokens that the policy may write in one turn; the lower of this and `SamplingParams.max_new_tokens` holds."""
    max_episode_tokens: int | None = None
    """Tokens of all rows together: prompts, what the policy wrote and what the environment said."""
    max_completion_tokens: int | None = None
    """Tokens of a row behind its prompt: what a trainer calls the completion."""
    max_step_s: float | None = None
    """Seconds that making, resetting or stepping the environment may take, each. Setting it moves the environment to a
    thread of its own; a hung thread is abandoned, a worker process (`Collector(workers=N)`) is killed."""
    max_policy_s: float | None = None
    """Seconds that one call of the policy, or of an asynchronous context function, may take; it is then cancelled, and
    the episode has errored. What does not await cannot be cancelled: a synchronous `act` or context function runs on
    the event loop, holds up every episode, and must be quick."""
    max_episode_s: float | None = None
    """Seconds an episode may last, without what it is held up by over-sampling. Looked at between turns and while the
    policy is waited for: the turn under way is dropped, what was earned until then stays (`StopReason.TIMEOUT`). A step
    of the environment is waited for; `max_step_s` is its limit."""

    def __post_init__(self) -> None:
        """Check every field."""
        for item in fields(self):
            value = getattr(self, item.name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                raise InvalidConfigError(f"RolloutLimits.{item.name} is {value!r}; it must be a number above 0.")


def row_limit(limits: RolloutLimits, prompt_tokens: int, earlier_tokens: int = 0) -> int | None:
    """Return how many tokens a row may have; None is no limit.

    Args:
        limits: The episode's budgets.
        prompt_tokens: Tokens of the row's prompt.
        earlier_tokens: Tokens of the rows before it.
    """
    of_completion = None if limits.max_completion_tokens is None else prompt_tokens + limits.max_completion_tokens
    of_episode = None if limits.max_episode_tokens is None else limits.max_episode_tokens - earlier_tokens
    return min((limit for limit in (of_episode, of_completion) if limit is not None), default=None)


def turn_budget(limits: RolloutLimits, max_new_tokens: int, used_tokens: int, limit: int | None) -> int:
    """Return how many tokens the next turn may have; 0 or less means that there is no room for one.

    Args:
        limits: The episode's budgets.
        max_new_tokens: What the sampling parameters allow.
        used_tokens: Tokens of the row so far.
        limit: The row's `row_limit`.
    """
    budget = max_new_tokens if limits.max_turn_tokens is None else min(limits.max_turn_tokens, max_new_tokens)
    return budget if limit is None else min(budget, limit - used_tokens)
