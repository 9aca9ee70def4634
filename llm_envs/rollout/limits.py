"""The budgets of an episode, and the one function that turns them into the budget of a turn."""

from __future__ import annotations

from dataclasses import dataclass, fields

from llm_envs.errors import InvalidConfigError

__all__ = ["RolloutLimits", "row_limit", "turn_budget"]


@dataclass(frozen=True, slots=True)
class RolloutLimits:
    """The budgets of an episode. None means no limit. Validated on construction."""

    max_turns: int | None = None
    """Turns an episode may have. The environment's own limit may be lower."""
    max_turn_tokens: int | None = None
    """Tokens that the policy may write in one turn. The lower of this and `SamplingParams.max_new_tokens` applies."""
    max_episode_tokens: int | None = None
    """Tokens of all rows together: prompts, replies and observations."""
    max_completion_tokens: int | None = None
    """Tokens of a row after its prompt (the completion, in a trainer's terms)."""
    max_step_s: float | None = None
    """Seconds that making, resetting or stepping the environment may take, each. With a limit, each environment runs in
    its own thread; a hung thread is abandoned. A hung worker process (`Collector(workers=N)`) is killed."""
    max_policy_s: float | None = None
    """Seconds that one call of the policy, or of an asynchronous context function, may take. Then the call is cancelled
    and the episode errors. Code that does not await cannot be cancelled: a synchronous `act` or context function runs
    on the event loop and blocks every episode, so it must be quick."""
    max_episode_s: float | None = None
    """Seconds that an episode may last, excluding pauses by over-sampling. Checked between turns and while waiting for
    the policy: the current turn is dropped, and earlier turns and rewards are kept (`StopReason.TIMEOUT`). A step of
    the environment is never interrupted by this limit; use `max_step_s`."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if value is None:
                continue
            # `not value > 0` also refuses NaN. A bool counts as an int in Python, so it is excluded by hand.
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                raise InvalidConfigError(f"RolloutLimits.{item.name} is {value!r}; it must be a number above 0.")


def row_limit(limits: RolloutLimits, prompt_tokens: int, earlier_tokens: int = 0) -> int | None:
    """Return how many tokens a row may have; None means no limit.

    Args:
        limits: The episode's budgets.
        prompt_tokens: Tokens of the row's prompt.
        earlier_tokens: Tokens of the rows before it.
    """
    of_completion = None if limits.max_completion_tokens is None else prompt_tokens + limits.max_completion_tokens
    of_episode = None if limits.max_episode_tokens is None else limits.max_episode_tokens - earlier_tokens
    return min((limit for limit in (of_episode, of_completion) if limit is not None), default=None)


def turn_budget(limits: RolloutLimits, max_new_tokens: int, used_tokens: int, limit: int | None) -> int:
    """Return how many tokens the next turn may have; 0 or less means that no turn fits.

    Args:
        limits: The episode's budgets.
        max_new_tokens: The limit in the sampling parameters.
        used_tokens: Tokens of the row so far.
        limit: The row's `row_limit`.
    """
    budget = max_new_tokens if limits.max_turn_tokens is None else min(limits.max_turn_tokens, max_new_tokens)
    return budget if limit is None else min(budget, limit - used_tokens)
