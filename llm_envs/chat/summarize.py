"""Histories that the model shortens itself: when a history has grown too long, the policy writes a summary of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llm_envs.errors import InvalidConfigError
from llm_envs.types import Message

__all__ = ["Summarize"]

PROMPT = (
    "The conversation is getting too long, and the beginning of it will be removed. Write down everything in it that "
    "you need to continue. Write only these notes."
)
HEADING = "Your notes so far:\n"


@dataclass(frozen=True, slots=True)
class Summarize:
    """A context function that asks the policy: pass it as `context_fn`.

    When a row has grown above `history_tokens`, the policy is asked for a summary, at the end of that row. The summary
    is a turn (`Turn.is_summary`) with the reward 0. Then a new row begins: the messages before the first turn, the
    summary as a user's message, and the newest turns with their observations. It needs a codec, which counts tokens,
    and a policy that reads messages or tokens.
    """

    history_tokens: int
    """Tokens of a row, with the newest observation, above which the policy is asked. Leave room in the model's context
    for one more observation, the request and the summary."""
    summary_tokens: int = 256
    """Most tokens of a summary, in place of the limits on other turns. A cut summary is used as it is."""
    n_turns: int = 1
    """Newest turns that the model still sees after a summary, each with its observation. With no more turns than these
    in the history, nothing is summarised."""
    prompt: str = PROMPT
    """The request, a user's message behind the newest observation."""
    trained: bool = True
    """Whether summaries are trained on. If not, their tokens are context: mask 0, without log-probabilities."""

    def __post_init__(self) -> None:
        for name in ("history_tokens", "summary_tokens", "n_turns"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InvalidConfigError(f"Summarize: {name} is {value!r}; it must be an integer of at least 1.")
        if not isinstance(self.prompt, str) or not self.prompt.strip():
            raise InvalidConfigError(f"Summarize: prompt is {self.prompt!r}; it must ask for a summary.")

    def is_due(self, n_tokens: int, n_turns: int) -> bool:
        """Return whether the policy is asked for a summary.

        Args:
            n_tokens: Tokens of the row.
            n_turns: Turns in the history that the model sees.
        """
        return n_tokens > self.history_tokens and n_turns > self.n_turns

    def shorten(self, first: Sequence[Message], history: Sequence[Message], summary: str) -> tuple[Message, ...]:
        """Return the messages that the model sees after a summary.

        Args:
            first: The messages before the first turn.
            history: The messages after them that the model has seen.
            summary: The model's text.
        """
        turns = [index for index, message in enumerate(history) if message.role == "assistant"]
        return (*first, Message("user", HEADING + summary), *history[turns[-self.n_turns] :])
