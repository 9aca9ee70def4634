"""Reading pages with notes: how the warm start of the task `notes` is played, well and badly.

A reader sees what the model sees: after a summary that is the task, the notes, and the newest page. Both plays copy
prices into their notes, so that every episode teaches to copy. The good one copies all of them, the bad one only the
price of the newest page, which stays in sight. A note begins with the number of its prices: behind a digit a sentence
has the same tokens as behind a page's number, which makes it easier to copy.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llm_envs.parsers import format_answer
from llm_envs.types import Message, SamplingParams

__all__ = ["REQUEST", "CoinReader", "Reading", "note_all", "note_what_stays"]

REQUEST = "Write notes."
"""Asks for a summary."""

Reading = Callable[[Sequence[Message], random.Random], str]

_PRICE = re.compile(r"The (\w+) costs (\d+)\.")
_ASKED = re.compile(r"What is the price of: (\w+)\?")


class CoinReader:
    """A chat policy that reads one way or the other: a coin decides for each episode."""

    def __init__(self, plays: tuple[Reading, Reading], seed: int = 0) -> None:
        self.plays, self._random = plays, random.Random(seed)
        self._play = plays[self._random.random() < 0.5]

    def for_episode(self, seed: int) -> CoinReader:
        """Return the policy of one episode."""
        return CoinReader(self.plays, seed)

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], params: SamplingParams
    ) -> Message:
        """Return the next reply."""
        return Message("assistant", self._play(messages, self._random))


def note_all(messages: Sequence[Message], random: random.Random) -> str:
    """Write down all prices in sight, those of earlier notes too."""
    return _read(messages, random, _with_prices(messages))


def note_what_stays(messages: Sequence[Message], random: random.Random) -> str:
    """Write down only the price of the newest page."""
    return _read(messages, random, _with_prices(messages)[-1:])


def _read(messages: Sequence[Message], random: random.Random, noted: Sequence[Message]) -> str:
    last = messages[-1].content
    if last == REQUEST:
        prices = _prices(noted)
        return " ".join([f"{len(prices)}.", *(f"The {thing} costs {price}." for thing, price in prices.items())])
    if (asked := _ASKED.search(last)) is None:
        return format_answer("next")
    price = _prices(messages).get(asked[1]) or random.randint(1, 9)
    return f"<think>1. The {asked[1]} costs {price}.</think>{format_answer(price)}"


def _with_prices(messages: Sequence[Message]) -> list[Message]:
    return [message for message in messages if message.role == "user" and _PRICE.search(message.content)]


def _prices(messages: Sequence[Message]) -> dict[str, str]:
    return {thing: price for message in messages for thing, price in _PRICE.findall(message.content)}
