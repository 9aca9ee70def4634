"""Which text of a trajectory the agent wrote itself, and which parts of it are copied from the prompt."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from llm_envs.parsers import ParsedReply, Parser, parse_reply
from llm_envs.types import Trajectory

__all__ = ["copied_words", "final_reply", "final_words", "own_messages", "own_words", "prompt_texts", "split_words"]

COPY_LENGTH = 5
"""Number of consecutive words that count as a copy. Shorter ones occur in any two texts on one subject."""

_WORD = re.compile(r"\w+")
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")


def own_messages(trajectory: Trajectory) -> tuple[int, ...]:
    """Return the indices in `messages` of the agent's own messages, in order.

    An environment may write assistant messages too. If there are more of them than turns, those before the first turns
    (examples in the prompt) are the environment's. If such an episode did not terminate, the last one could also be an
    observation: then no message counts as the agent's.
    """
    said = [place for place, message in enumerate(trajectory.messages) if message.role == "assistant"]
    n_turns = len(trajectory.turns)
    if len(said) <= n_turns:
        return tuple(said)
    if not trajectory.terminated or not n_turns or said[-1] != len(trajectory.messages) - 1:
        return ()
    return tuple(said[-n_turns:])


def own_words(trajectory: Trajectory) -> str:
    """Return everything that the agent wrote, its turns joined by line breaks."""
    return "\n".join(trajectory.messages[place].content for place in own_messages(trajectory))


def final_words(trajectory: Trajectory) -> str:
    """Return the agent's last message as it wrote it; empty if it wrote none."""
    own = own_messages(trajectory)
    return trajectory.messages[own[-1]].content if own else ""


def final_reply(trajectory: Trajectory, parser: Parser = parse_reply) -> ParsedReply:
    """Return the agent's last message, parsed: never a tool's output, the prompt, or an earlier turn."""
    own = own_messages(trajectory)
    if not own:
        return ParsedReply(None, "", (), None, ("the agent wrote nothing",))
    message = trajectory.messages[own[-1]]
    reply = parser(message.content)
    if message.tool_calls and not reply.problems:
        reply = reply._replace(tool_calls=(*reply.tool_calls, *message.tool_calls))
    return reply


def prompt_texts(trajectory: Trajectory) -> tuple[str, ...]:
    """Return the texts that the agent saw before its first turn, and the user messages after it."""
    own = own_messages(trajectory)
    first = own[0] if own else len(trajectory.messages)
    return tuple(
        message.content
        for place, message in enumerate(trajectory.messages)
        if place not in own and (place < first or message.role in ("system", "user"))
    )


def split_words(text: str) -> list[str]:
    """Return the words of a text in normal form: compatible characters unified, lower case, no invisible ones."""
    return _WORD.findall(normal(text))


def normal(text: str) -> str:
    """Return a text in normal form, so that full-width letters or invisible characters hide nothing."""
    return _INVISIBLE.sub("", unicodedata.normalize("NFKC", text)).casefold()


def copied_words(words: Sequence[str], sources: Sequence[str]) -> list[bool]:
    """Return, for each word, whether it is part of a copy: five consecutive words of a source, or all of a shorter one.

    A source of a single word does not count: answering with that word is not copying.

    Args:
        words: The words of the text, from `split_words`.
        sources: The texts that may have been copied.

    Returns:
        One bool per word. Linear time.
    """
    copied = [False] * len(words)
    for source in sources:
        original = split_words(source)
        n = min(COPY_LENGTH, len(original))
        if n < 2:
            continue
        known = {tuple(original[i : i + n]) for i in range(len(original) - n + 1)}
        for i in range(len(words) - n + 1):
            if tuple(words[i : i + n]) in known:
                copied[i : i + n] = [True] * n
    return copied
