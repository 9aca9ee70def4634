"""What an agent said in a conversation: words to the other side, or an answer that ends it, or something broken."""

from __future__ import annotations

from typing import NamedTuple

from llm_envs.env import TextEnv
from llm_envs.spaces import MAX_TEXT_LENGTH

__all__ = ["Said", "said_by"]


class Said(NamedTuple):
    """One turn of the agent."""

    words: str
    """What the other side hears: the reply without thinking. Empty where there is an answer or a problem."""
    answer: str | None
    """What stands in the answer tags."""
    problem: str
    """What is broken; empty if nothing is."""


def said_by(env: TextEnv, action: str) -> Said:
    """Return what a reply says. Words beside an answer are not heard; calls are a problem, since there are no tools."""
    if len(action) > MAX_TEXT_LENGTH:
        return Said("", None, f"the reply has over {MAX_TEXT_LENGTH} characters")
    reply = env.parse_reply(action)
    if reply.problems:
        return Said("", None, f"the reply cannot be read: {'; '.join(reply.problems)}")
    if reply.tool_calls:
        return Said("", None, "there are no tools")
    if reply.answer is not None:
        return Said("", reply.answer, "")
    if not reply.content:
        return Said("", None, "the reply says nothing")
    return Said(reply.content, None, "")
