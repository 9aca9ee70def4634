"""`llm/PagedRecall-v0`: read prices page by page, then say what some of them are."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from llm_envs.env import Difficulty, Outcome, TextEnv
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.draws import Random, between, pick, sample, shuffled
from llm_envs.tasks.language.haystack import ADJECTIVES, NOUNS, haystack
from llm_envs.tasks.replies import list_items
from llm_envs.tasks.wording import in_words

__all__ = ["PagedRecallEnv"]

_SPARE_TURNS = 2
"""Malformed replies that a reader can afford."""
_MOST_CHARACTERS = 200_000
"""Of a page."""
_KEPT = 48
"""Prices that the reader of `shortcuts` keeps: one for each thing of the expert level."""
_PRICE = re.compile(r"(?:(?:the )?([a-z ]+?)(?::| costs) )?\$?(\d{1,12})")
_NEXT = re.compile(r"(?:the )?next(?: page)?", re.IGNORECASE)


class PagedRecallEnv(TextEnv):
    """Read the prices of a shop page by page, then say what some things cost.

    ## Description
    The pages come one after another, each once. The question comes only after the last one, so
    everything must be kept: in the context, or, where the pages are longer than it, in notes. Later prices replace
    earlier ones. Teaches to keep what matters of a long history, and to bring it up to date; made for agents that
    summarise their history (`llm_envs.chat.Summarize`), whose notes are then all that is left of the pages.

    ## Observation
    First the things that the shop sells and the number of pages. After "next" a page, or the question behind the last
    one. After the answer "Correct." or "Incorrect.". After a malformed reply a readable error; it costs a reply.

    ## Action
    `<answer>next</answer>` for a page, and at the end the prices in the order of the question, with commas between
    them: `<answer>41, 17</answer>`. Thinking in `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 for exactly the prices that were asked for. `malformed` (weight -0.1): 1 for each reply
    without an answer, with broken tags, for a page other than "next", or at the end without prices.

    ## Episode End
    Terminates after the answer to the question. Truncated after `max_turns` replies.

    ## Arguments
    - `split`: "train" or "test". No set of things is in both.
    - `difficulty`: "starter": 4 pages of one price, below 10; "easy" (default): 4 pages of 2 prices; "medium": 8 pages
      of 250 tokens, on which half of the prices replace earlier ones, and 2 are asked for; "hard": 16 pages of 1,000
      tokens, 4 asked for; "expert": 32 pages of 3,000 tokens, 8 asked for, where a third of the prices are so much more
      than that of another thing, and change with it.
    - `max_turns`: the number of pages of the level and 4 by default.
    - `reset(options={"problem": {"things": ["bell", "kettle"], "pages": [[["bell", 41]], [["kettle", 17]]], "asked":
      ["kettle"], "seed": 1, "n_characters": 0}})`: the things, the prices of each page, which are asked for, and the
      seed and length of the text around the prices of a page. Instead of a price, `["bell", 3]` is always 3 more than
      that of the bell, which must come before the thing in `things`.

    ## Version History
    - v0: first version.
    """

    # Who remembers one price and names it for the only thing that is asked for is right in one of 4 or of 8 episodes.
    # Of several things, some had another price before, and all must be right.
    difficulties = {
        "starter": Difficulty(
            "4 pages of one price below 10, 1 asked for",
            chance_rate=0.35,
            settings={"things": 4, "pages": 4, "prices": 1, "asked": 1, "characters": 0, "range": (1, 9)},
        ),
        "easy": Difficulty(
            "4 pages of 2 prices, 1 asked for",
            chance_rate=0.15,
            settings={"things": 8, "pages": 4, "prices": 2, "asked": 1, "characters": 0, "range": (10, 99)},
        ),
        "medium": Difficulty(
            "8 pages of 4 prices in about 250 tokens, 2 asked for",
            chance_rate=0.02,
            settings={"things": 16, "pages": 8, "prices": 4, "asked": 2, "characters": 1_000, "range": (10, 99)},
        ),
        "hard": Difficulty(
            "16 pages of 8 prices in about 1,000 tokens, 4 asked for",
            chance_rate=0.01,
            settings={"things": 32, "pages": 16, "prices": 8, "asked": 4, "characters": 4_000, "range": (10, 99)},
        ),
        "expert": Difficulty(
            "32 pages of 12 prices in about 3,000 tokens, 8 asked for, a third follow from others",
            chance_rate=0.01,
            settings={
                **{"things": 48, "pages": 32, "prices": 12, "asked": 8, "characters": 12_000, "range": (10, 99)},
                "linked": 0.35,
            },
        ),
    }
    default_difficulty = "easy"
    slow_reset_reason = "a problem of the expert level has 384 prices, drawn one after another"
    problem_fields = {"things": list, "pages": list, "asked": list, "seed": int, "n_characters": int}
    instructions = (
        "Read the pages one by one; you see each page once, in this order. For the next page write "
        "<answer>next</answer>. After the last page comes a question: answer it with nothing but the "
        "prices, with commas between them."
    )
    answer_example = "41, 17"

    def __init__(
        self,
        split: str = "train",
        difficulty: str | None = None,
        max_turns: int | None = None,
        render_mode: str | None = None,
        answer_form: str | None = None,
    ) -> None:
        super().__init__(split, difficulty, max_turns, render_mode, answer_form)
        if max_turns is None:
            self.max_turns = self.settings["pages"] + 2 + _SPARE_TURNS  # "next" for the question, too, and the answer

    def generate(self) -> dict[str, Any]:
        """Draw things, their prices on pages, and what is asked for."""
        random, settings = self.np_random.random, self.settings
        things = _draw_things(random, settings["things"])
        n_prices = settings["pages"] * settings["prices"]
        order = shuffled(random, [*things, *(pick(random, things) for _ in range(n_prices - len(things)))])
        prices = _draw_prices(random, order, settings["range"])
        if share := settings.get("linked", 0):
            prices = _link(random, prices, things, share)
        width = settings["prices"]
        # At least one of several has changed, so that its first price is wrong.
        n_prices_of = Counter(order)
        changed = [thing for thing in things if n_prices_of[thing] > 1]
        asked = [pick(random, changed)] if changed else []
        asked = [*asked, *sample(random, [t for t in things if t not in asked], settings["asked"] - len(asked))]
        return {
            "things": things,
            "pages": [prices[start : start + width] for start in range(0, n_prices, width)],
            "asked": shuffled(random, asked),
            "seed": between(random, 0, 10**9),
            "n_characters": settings["characters"],
        }

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse things without a price, prices of nothing, and more pages than there are replies."""
        things, pages, asked = problem["things"], problem["pages"], problem["asked"]
        if not things or len(set(map(str, things))) < len(things) or not all(_is_name(thing) for thing in things):
            raise InvalidActionError("its things must be one or two words of small letters each, none twice")
        if not 1 <= len(pages) <= self.max_turns - 2:
            raise InvalidActionError(f"it must have 1 to {self.max_turns - 2} pages, two fewer than replies")
        if not all(isinstance(page, list) and all(_is_price(price, things) for price in page) for page in pages):
            form = "[one of the things, a price of at most 9 digits or [a thing before it, how much more]]"
            raise InvalidActionError(f"its pages must be lists of {form}")
        priced = {thing for page in pages for thing, _ in page}
        if not {price[0] for page in pages for _, price in page if isinstance(price, list)} <= priced:
            raise InvalidActionError("a thing whose price another follows must have a price")
        if not asked or len(set(map(str, asked))) < len(asked) or not all(t in priced for t in map(str, asked)):
            raise InvalidActionError("it must ask for things with a price, none twice")
        if not 0 <= problem["n_characters"] <= _MOST_CHARACTERS or problem["seed"] < 0:
            raise InvalidActionError(f"its n_characters must be from 0 to {_MOST_CHARACTERS}, its seed at least 0")

    def split_key(self, problem: Mapping[str, Any]) -> Any:
        """Return the things, which are told at once, in any order."""
        return sorted(problem["things"])

    def begin(self) -> None:
        """Open the book before its first page."""
        self._n_read = 0

    def prompt(self) -> str:
        """Return the things, and how many pages and replies there are."""
        things, n_pages = ", ".join(self.problem["things"]), len(self.problem["pages"])
        has_links = any(isinstance(price, list) for page in self.problem["pages"] for _, price in page)
        rule = (
            "What always costs so much more than another thing changes with its price, until it has another price. "
            if has_links
            else ""
        )
        return (
            f"A shop sells: {things}. Its prices are on {in_words(n_pages, 'page')}; a later price replaces an "
            f"earlier one. {rule}You have {in_words(self.max_turns, 'reply')}."
        )

    def play(self, action: str) -> Outcome:
        """Turn the page, or compare the answer with the last prices."""
        is_asked = self._n_read > len(self.problem["pages"])
        try:
            read = partial(_read_prices, self.problem["asked"]) if is_asked else _read_next
            named = self.judge(self.read(action), read)
        except InvalidActionError as refusal:
            left = self.max_turns - self.n_turns
            return Outcome(f"Error: {refusal}. {in_words(left, 'reply')} left.", {"correct": 0.0, "malformed": 1.0})
        if is_asked:
            won = named == self._right()
            return Outcome("Correct." if won else "Incorrect.", {"correct": float(won), "malformed": 0.0}, True, won)
        self._n_read += 1
        return Outcome(self._page(self._n_read), {"correct": 0.0, "malformed": 0.0})

    def next_action(self) -> str:
        """Return "next", or the prices that are asked for."""
        if self._n_read <= len(self.problem["pages"]):
            return self.write_answer("next")
        return self.write_answer(", ".join(map(str, self._right())))

    def shortcuts(self) -> Mapping[str, str]:
        """Return the first price of each thing, where some have changed, and the answer of a reader.

        The reader keeps the last 48 prices that it has read. It works out one that follows from another where it reads
        it; it does not change with the other later.
        """
        told = [told for page in self.problem["pages"] for told in page]
        kept: dict[str, int] = {}
        for thing, price in told:
            number = kept.get(price[0], 0) + price[1] if isinstance(price, list) else price
            kept.pop(thing, None)
            kept[thing] = number
            if len(kept) > _KEPT:
                del kept[next(iter(kept))]
        found = {f"reader({_KEPT})": [kept.get(thing, 0) for thing in self.problem["asked"]]}
        first = self._prices(dict(reversed(told)))
        if first != self._right() or self.settings["things"] < self.settings["pages"] * self.settings["prices"]:
            found["the first prices"] = first
        return {name: self.write_answer(", ".join(map(str, prices))) for name, prices in found.items()}

    def _right(self) -> list[int]:
        return self._prices({thing: price for page in self.problem["pages"] for thing, price in page})

    def _prices(self, told: Mapping[str, Any]) -> list[int]:
        """Return the prices that are asked for."""
        prices: dict[str, int] = {}
        for thing in filter(told.__contains__, self.problem["things"]):  # after those that its price may follow
            price = told[thing]
            prices[thing] = prices[price[0]] + price[1] if isinstance(price, list) else price
        return [prices[thing] for thing in self.problem["asked"]]

    def _page(self, number: int) -> str:
        pages = self.problem["pages"]
        if number > len(pages):
            return f"What is the price of: {', '.join(self.problem['asked'])}?"
        sentences = [_say(thing, price) for thing, price in pages[number - 1]]
        if n_characters := self.problem["n_characters"]:
            depths = [(place + 1) / (len(sentences) + 1) for place in range(len(sentences))]
            text = haystack(self.problem["seed"] + number, n_characters, sentences, depths)
        else:
            text = " ".join(sentences)
        return f"Page {number} of {len(pages)}. {text}"


def _draw_things(random: Random, n: int) -> list[str]:
    """Draw single words if there are enough of them to choose from, else words of two."""
    if n <= len(NOUNS) // 3:
        return sample(random, NOUNS, n)
    names: dict[str, None] = {}
    while len(names) < n:
        names[f"{pick(random, ADJECTIVES)} {pick(random, NOUNS)}"] = None
    return list(names)


def _draw_prices(random: Random, things: Sequence[str], limits: tuple[int, int]) -> list[list[Any]]:
    """Draw a price for each of these, another one than the thing had before."""
    had: dict[str, set[int]] = {}
    out: list[list[Any]] = []
    for thing in things:
        before = had.setdefault(thing, set())
        while (price := between(random, *limits)) in before:
            pass
        before.add(price)
        out.append([thing, price])
    return out


def _link(random: Random, prices: Sequence[list[Any]], things: Sequence[str], share: float) -> list[list[Any]]:
    """Let a share of the prices follow from that of a thing that has one already and stands before it in `things`."""
    rank, known = {thing: place for place, thing in enumerate(things)}, set()
    linked: list[list[Any]] = []
    for thing, price in prices:
        others = [other for other in things[: rank[thing]] if other in known]
        follows = others and random() < share
        linked.append([thing, [pick(random, others), between(random, 1, 20)] if follows else price])
        known.add(thing)
    return linked


def _say(thing: str, price: Any) -> str:
    if isinstance(price, list):
        return f"The {thing} always costs {price[1]} more than the {price[0]}."
    return f"The {thing} costs {price}."


def _is_name(thing: Any) -> bool:
    return isinstance(thing, str) and re.fullmatch("[a-z]{1,20}(?: [a-z]{1,20})?", thing) is not None


def _is_price(price: Any, things: Sequence[str]) -> bool:
    if not isinstance(price, list) or len(price) != 2 or price[0] not in things:
        return False
    thing, number = price
    if isinstance(number, list):
        if len(number) != 2 or number[0] not in things[: things.index(thing)]:
            return False
        number = number[1]
    return type(number) is int and 0 <= number < 10**9


def _read_next(answer: str) -> None:
    if _NEXT.fullmatch(answer.strip(" \n\t.!'\"*`")) is None:
        raise InvalidActionError(f"{answer[:20]!r} is not next; before the question, write next for the next page")


def _read_prices(asked: Sequence[str], answer: str) -> list[int]:
    items = list_items(answer)
    found = [_PRICE.fullmatch(" ".join(item.casefold().split())) for item in items]
    if not found or None in found:
        raise InvalidActionError("the answer must be prices, with commas between them")
    prices = [price for price in found if price is not None]
    if any(price[1] and asked[place : place + 1] != [price[1]] for place, price in enumerate(prices)):
        raise InvalidActionError("the prices must be in the order of the question")
    return [int(price[2]) for price in prices]
