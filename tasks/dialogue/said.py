"""Reads an agent's turn in a conversation: words to the other side, or an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from llm_envs.env import TextEnv
from llm_envs.errors import InvalidActionError
from llm_envs.parsers import natural_answers, plain_answer
from llm_envs.spaces import MAX_TEXT_LENGTH

__all__ = ["Said", "last_question", "read_answer", "said_by"]

T = TypeVar("T")


class Said(NamedTuple):
    """One turn of the agent."""

    words: str
    """The words that the other side hears: the reply without thinking. Empty if there is an answer or a problem."""
    answer: str | None
    """The text in the answer tags."""
    problem: str
    """The reason why the reply cannot be read; empty if it can."""


def said_by(env: TextEnv, action: str) -> Said:
    """Return the agent's words or answer. With an answer, the other words are ignored. Tool calls are a problem."""
    if len(action) > MAX_TEXT_LENGTH:
        return Said("", None, f"the reply has over {MAX_TEXT_LENGTH} characters")
    reply = env.parse_reply(action)
    if reply.problems:
        return Said("", None, f"the reply cannot be read: {'; '.join(reply.problems)}")
    if reply.tool_calls:
        return Said("", None, "this task has no tools")
    if reply.answer is not None:
        return Said("", reply.answer, "")
    if not reply.content:
        return Said("", None, "the reply is empty")
    return Said(reply.content, None, "")


def read_answer(answer: str, decide: Callable[[str], T]) -> T:
    """Return the result of `decide` for an answer without its decoration, or for the first reading it does not refuse.

    Raises:
        InvalidActionError: If `decide` refuses every reading.
    """
    plain = plain_answer(answer)
    refusal = None
    for reading in (plain, *natural_answers(plain)):
        try:
            return decide(reading)
        except InvalidActionError as error:
            refusal = refusal or error
    raise refusal or InvalidActionError("the answer is empty")


def last_question(text: str) -> str:
    """Return the last sentence that ends with a question mark, or all of the text if none does."""
    end = text.rfind("?")
    if end < 0:
        return text
    start = max(text.rfind(mark, 0, end) for mark in (". ", "! ", "? ", "\n", ": "))
    return text[start + 1 : end + 1]
