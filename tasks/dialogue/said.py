"""Reads an agent's turn in a conversation: words to the other side and what they ask about, or an answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple, TypeVar

from llm_envs.env import TextEnv
from llm_envs.errors import InvalidActionError
from llm_envs.parsers import natural_answers, plain_answer
from llm_envs.spaces import MAX_TEXT_LENGTH

__all__ = ["ConversationEnv", "Said", "Subject", "asked_about", "read_answer", "said_by", "words_of"]

T = TypeVar("T")
_SPELLINGS = {
    "center": "centre",
    "harbor": "harbour",
    "color": "colour",
    "aluminum": "aluminium",
    "tire": "tyre",
    "decimeter": "decimetre",
    "kilometer": "kilometre",
}
_NUMBERS = dict(enumerate(("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"))) | {
    20: "twenty",
    40: "forty",
    50: "fifty",
    80: "eighty",
    100: "hundred",
    200: "two hundred",
}
_ARTICLES = {"a", "an", "the"}
_COMMON_OPTIONS = {
    *((word,) for word in _NUMBERS.values()),
    *((word,) for word in ("all", "full", "none", "everything", "once", "may", "local", "wide")),
    ("by", "you"),
    ("at", "once"),
}
"""Words that messages also use for something else: as an option they count only together with another one."""
_ASKS = re.compile(r"\?|\b(?:what|which|how|who|where|when|whether|tell me|let me know)\b", re.IGNORECASE)


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


class Subject(NamedTuple):
    """Something that a message may ask about."""

    names: tuple[str, ...]
    """The words of the task for it."""
    options: tuple[str, ...] = ()
    """What it may be: "Express or standard?" asks about the speed."""
    other_words: tuple[str, ...] = ()
    """Words that count only if a message has no names and options."""


class ConversationEnv(TextEnv):
    """A task whose agent asks somebody. One message that asks nothing they understand does not count.

    So an episode takes one message less than `max_turns`, unless there was such a message.
    """

    def begin(self) -> None:
        """Start the conversation."""
        self._has_been_unclear = False

    def turns_allowed(self) -> int:
        """Return `max_turns`, or one less as long as every message was understood."""
        return self.max_turns if self._has_been_unclear else max(1, self.max_turns - 1)

    def not_understood(self) -> str:
        """Return what to add to the reply to a message that was not understood; the first one does not count."""
        is_first, self._has_been_unclear = not self._has_been_unclear, True
        return "\n(This message does not count.)" if is_first and self.max_turns > 1 else ""


def asked_about(text: str, subjects: Mapping[str, Subject], told: Collection[str] = ()) -> list[str]:
    """Return which subjects a message asks about: one if it is understood.

    The last question counts, or all of the message if that names nothing. A topic is asked about by one of its names,
    or in a question by its options. A topic that was told before counts only if the message names nothing new.
    """
    new = {name: subject for name, subject in subjects.items() if name not in told}
    for left in (new, subjects):
        for part in (_last_question(text), text):
            if named := _named(part, left):
                return named
    return []


def _named(text: str, subjects: Mapping[str, Subject]) -> list[str]:
    """Return the subjects that a part of a message names, by name or option, or else by another word."""
    phrases: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for name, subject in subjects.items():
        for kind, texts in zip(Subject._fields, subject, strict=True):
            for phrase in texts:
                words = tuple(words_of(phrase))
                phrases.setdefault(words, []).append((name, kind))
                if kind == "options" and words[0] in ("at", "in", "for"):
                    phrases.setdefault(words[1:], []).append((name, kind))
    found: dict[str, dict[str, set[tuple[str, ...]]]] = {kind: {} for kind in Subject._fields}
    for phrase_found in _longest(tuple(words_of(text)), phrases):
        for name, kind in phrases[phrase_found]:
            found[kind].setdefault(name, set()).add(phrase_found)
    by_option = {
        name
        for name, options in found["options"].items()
        if _ASKS.search(text) and (len(options) > 1 or not options <= _COMMON_OPTIONS)
    }
    named = found["names"].keys() | by_option or found["other_words"].keys()
    return [name for name in subjects if name in named]


def _longest(words: tuple[str, ...], phrases: Collection[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Yield the phrases in a text; where one is part of another, the longer one."""
    lengths = sorted({len(phrase) for phrase in phrases}, reverse=True)
    place = 0
    while place < len(words):
        length = next((n for n in lengths if words[place : place + n] in phrases), 0)
        if length:
            yield words[place : place + length]
        place += max(1, length)


def words_of(text: str) -> Iterator[str]:
    """Yield the words of a text in the singular, in British spelling and without articles, numbers as words."""
    for word in re.findall(r"[a-z]+|[0-9]+", re.sub(r"['\u2019]s\b", "", text.casefold())):
        if word.isdecimal():
            yield from _NUMBERS.get(int(word[:9]), word).split()
        elif word not in _ARTICLES:
            plain = re.sub(r"(?<=..)ies$", "y", word) if len(word) > 4 else word
            plain = plain[:-1] if len(plain) > 3 and plain.endswith("s") and not plain.endswith("ss") else plain
            yield _SPELLINGS.get(plain, plain)


def _last_question(text: str) -> str:
    """Return the last sentence that ends with a question mark, or all of the text if none does."""
    end = text.rfind("?")
    if end < 0:
        return text
    start = max(text.rfind(mark, 0, end) for mark in (". ", "! ", "? ", "\n", ": "))
    return text[start + 1 : end + 1]
