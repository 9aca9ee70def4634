"""`llm/InformationSeeking-v0`: ask a customer for the facts that a price depends on, and work it out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from llm_envs.env import Difficulty, Outcome
from llm_envs.errors import InvalidActionError
from llm_envs.rewards import read_integer
from llm_envs.tasks.dialogue.said import ConversationEnv, Subject, asked_about, read_answer, said_by
from llm_envs.tasks.wording import in_words

__all__ = ["THEMES", "InformationSeekingEnv", "price_of", "topics_in"]

_MAX_DEPTH = 4
_UNITS = ("euros", "euro", "eur")


class InformationSeekingEnv(ConversationEnv):
    """Ask a customer the right questions, one at a time, and work out what they have to pay.

    ## Description
    The agent has a tariff in which one thing decides what matters next: what is asked for a small flat is not asked
    for an office. The customer (scripted) knows everything about their own case and nothing about the tariff, answers
    one question at a time, and has patience for a few. Asking for everything takes too many messages. Teaches to ask
    what is needed next, given what is known, and then to use it.

    ## Observation
    First the tariff and the customer's first words. Then the customer's answers. If a message asks about one thing
    in the tariff, by its name, its unit or its options ("Express or standard?"), the customer tells how it is in their
    case. The last question counts, and things that they told before only if it names no new one. If a message names
    several new things, or none, the customer does not answer it; the first such message does not count. After a
    malformed reply a readable error.

    ## Action
    Plain text goes to the customer. The price as a whole number in `<answer>` tags ends the conversation:
    `<answer>5000</answer>`.

    ## Reward
    `correct` (weight 1): 1 for the right price. `malformed` (weight -0.1): 1 for an empty or broken reply, or an
    answer that is not a whole number.

    ## Episode End
    Terminates with the first price. Truncated after `max_turns` messages.

    ## Arguments
    - `split`: "train" or "test".
    - `difficulty`: "easy" (default): two questions of four are needed; "medium": three of seven; "hard": four of
      eleven, and some numbers are told as sums; "expert": eight of up to fourteen, with eight prices to choose from;
      a number is told by another one, which the customer corrects later.
    - `max_turns`: messages of the agent, the price and one that does not count included: 5, 7, 8 and 11 by
      default.
    - `reset(options={"problem": {"theme": "parcel", "facts": {...}, "tariff": [...]}})`: a tariff is `[topic, {option:
      tariff, ...}]` or `["price", base, [[topic, amount], ...]]`; facts are options, whole numbers, sums as `[3, 4]`,
      and true or false, by topic; `{"as": "pieces", "more": 2}` is 2 more than the pieces; `{"count": 7, "more": 3,
      "after": "weight"}` is told as 7, and when the weight is told later, corrected to 10.

    ## Version History
    - v0: first version.
    """

    # Prices of 5,000 cases a level: the best constant is right in under 1%. A player that knows the tariff and guesses
    # the numbers is right in under 2%.
    difficulties = {
        "easy": Difficulty("two questions of four", chance_rate=0.02, settings={"shape": "easy", "turns": 4}),
        "medium": Difficulty("three questions of seven", chance_rate=0.02, settings={"shape": "medium", "turns": 6}),
        "hard": Difficulty("four questions of eleven; sums", chance_rate=0.02, settings={"shape": "hard", "turns": 7}),
        "expert": Difficulty(
            "eight questions of fourteen; one number follows from another, which is corrected later",
            chance_rate=0.02,
            settings={"shape": "expert", "turns": 10},
        ),
    }
    default_difficulty = "easy"
    default_max_turns = 5
    problem_fields = {"theme": str, "facts": dict, "tariff": list}
    has_natural_form = False
    instructions = (
        "You work out the price that a customer has to pay. To ask the customer, write plain text without tags. Ask "
        "about one thing in each message, and use the words of the tariff. When you know enough, answer with the "
        "price, a whole number."
    )
    answer_example = "5000"

    def __init__(
        self,
        split: str = "train",
        difficulty: str | None = None,
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(split, difficulty, max_turns, render_mode)
        if max_turns is None:
            self.max_turns = self.settings["turns"] + 1

    def generate(self) -> dict[str, Any]:
        """Draw a tariff and a customer."""
        return _draw(self.np_random, self.settings["shape"])

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a tariff that cannot be read, or facts that do not decide it."""
        if problem["theme"] not in THEMES:
            raise InvalidActionError(f"its theme must be one of {', '.join(THEMES)}")
        theme = THEMES[problem["theme"]]
        try:
            named = list(_topics_of(problem["tariff"]))
            for topic in named:
                _check_fact(problem["facts"], topic, theme)
            price_of(problem["tariff"], problem["facts"])
            "\n".join(_lines(theme, problem["tariff"]))
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            if isinstance(error, InvalidActionError):
                raise
            raise InvalidActionError(f"its tariff or facts are wrong: {error!r}") from error

    def begin(self) -> None:
        """Let the customer in."""
        super().begin()
        self._theme = self.problem["theme"]
        self._price = price_of(self.problem["tariff"], self.problem["facts"])
        self._known = sorted(set(_topics_of(self.problem["tariff"])))
        self._told: set[str] = set()

    def prompt(self) -> str:
        """Return the tariff and the customer's first words."""
        theme = THEMES[self._theme]
        lines = ["Tariff (in euros):", *_lines(theme, self.problem["tariff"])]
        return "\n".join(
            [
                *lines,
                f"You have {in_words(self.turns_allowed(), 'message')}, the price included. The first one that does "
                "not ask about one thing does not count.",
                "",
                f"Customer: {theme.opening}",
            ]
        )

    def play(self, action: str) -> Outcome:
        """Let the customer answer, or judge the price."""
        said = said_by(self, action)
        if said.words:
            return Outcome(self._customer(said.words), {"correct": 0.0, "malformed": 0.0})
        try:
            if said.answer is None:
                raise InvalidActionError(said.problem)
            price = read_answer(said.answer, partial(read_integer, units=_UNITS))
        except InvalidActionError as refusal:
            return Outcome(f"Error: {refusal}.", {"correct": 0.0, "malformed": 1.0})
        is_right = price == self._price
        return Outcome(
            "Correct." if is_right else "Incorrect.", {"correct": float(is_right), "malformed": 0.0}, True, is_right
        )

    def _customer(self, text: str) -> str:
        """Return the customer's answer to a message."""
        theme = THEMES[self._theme]
        topics = topics_in(text, theme, self._known, self._told)
        if not topics:
            return f"Customer: I do not know what you mean.{self.not_understood()}"
        if len(topics) > 1:
            return f"Customer: One thing at a time, please.{self.not_understood()}"
        said = self._said(topics[0])
        self._told.add(topics[0])
        return f"Customer: {said}"

    def _said(self, topic: str) -> str:
        """Return the customer's words about a topic, with the correction of a number that they told before."""
        theme, facts = THEMES[self._theme].topics, self.problem["facts"]
        fact = facts[topic]
        if isinstance(fact, dict) and "as" in fact:
            said = f"As many {theme[topic].unit} as {theme[fact['as']].unit}, and {fact['more']} more."
        elif isinstance(fact, dict):
            said = theme[topic].said(fact["count"] + (fact["more"] if fact["after"] in self._told else 0))
        else:
            said = theme[topic].said(fact)
        for other in self._told if topic not in self._told else ():
            if isinstance(facts[other], dict) and facts[other].get("after") == topic:
                said += f" And I told you a wrong number of {theme[other].unit}: it is {facts[other]['more']} more."
        return said

    def shortcuts(self) -> Mapping[str, str]:
        """Return the answer of a reader who keeps every number as it was where it was read.

        The reader takes a correction into account, but not that another number followed from the one that is wrong.
        """
        facts = self.problem["facts"]
        needed = list(_needed(self.problem["tariff"], facts))
        special = [topic for topic in needed if isinstance(facts[topic], dict)]
        if not special:
            return {}
        kept: dict[str, Any] = {topic: facts[topic] for topic in needed}
        for topic in special:
            fact = facts[topic]
            kept[topic] = fact["count"] if "count" in fact else _number({**facts, **kept}, fact["as"]) + fact["more"]
        for topic in special:
            kept[topic] += facts[topic]["more"] if "count" in facts[topic] else 0
        return {f"reader({len(needed)})": self.write_answer(price_of(self.problem["tariff"], kept))}

    def next_action(self) -> str:
        """Ask for the next thing that the price depends on, given the facts so far; answer once all are known."""
        for topic in _needed(self.problem["tariff"], self.problem["facts"]):
            if topic not in self._told:
                return f"Could you tell me about the {topic}?"
        return self.write_answer(self._price)


# The customers' facts.


class Topic(NamedTuple):
    """Something that a price may depend on."""

    words: tuple[str, ...]
    """Words that name it, besides its own."""
    options: tuple[str, ...] = ()
    """The possible values; empty for a number or yes and no."""
    unit: str = ""
    """The unit of a number; empty for yes and no."""
    numbers: tuple[int, int] = (0, 0)

    def said(self, value: Any) -> str:
        """Return the customer's words about a value."""
        if self.options:
            if value not in self.options:
                raise InvalidActionError(f"{value!r} is not one of {', '.join(self.options)}")
            return f"That would be {value}."
        if self.unit:
            parts = value if isinstance(value, list) else [value]
            if not all(type(part) is int and 0 <= part <= 10_000 for part in parts) or not 1 <= len(parts) <= 2:
                raise InvalidActionError(f"{value!r} is neither a number nor a sum of two")
            if len(parts) == 2:
                return f"I counted {parts[0]} {self.unit}, and then {parts[1]} more."
            return f"{parts[0]} {self.unit}."
        if type(value) is not bool:
            raise InvalidActionError(f"{value!r} is neither true nor false")
        return "Yes, please." if value else "No, thanks."


class Theme(NamedTuple):
    """A kind of service, with the things that its price may depend on."""

    opening: str
    topics: dict[str, Topic]

    def of_kind(self, kind: str) -> list[str]:
        """Return the topics that are of the kind "choice", "number" or "wish"."""
        return [
            name
            for name, topic in self.topics.items()
            if kind == ("choice" if topic.options else "number" if topic.unit else "wish")
        ]


THEMES: dict[str, Theme] = {
    "parcel": Theme(
        "Hello, I want to send something. What do I have to pay?",
        {
            "destination": Topic(("country", "where", "abroad"), ("domestic", "Europe", "overseas")),
            "speed": Topic(("fast", "quickly"), ("standard", "express", "overnight")),
            "shape": Topic(("form",), ("flat", "tube", "crate")),
            "handover": Topic(("drop-off",), ("counter", "courier", "locker")),
            "weight": Topic(("heavy", "weigh", "kg"), (), "kilograms", (3, 40)),
            "length": Topic(("long",), (), "decimetres", (3, 30)),
            "pieces": Topic(("items",), (), "pieces", (2, 25)),
            "storage": Topic(("store", "stored"), (), "days", (2, 30)),
            "stairs": Topic(("floors",), (), "floors", (2, 12)),
            "insurance": Topic(("insured", "insure")),
            "signature": Topic(("signed", "sign")),
            "padding": Topic(("padded",)),
            "tracking": Topic(("tracked", "track")),
            "cooling": Topic(("cooled", "cool", "cold")),
        },
    ),
    "moving": Theme(
        "Good morning, we are going to move. How much is it?",
        {
            "building": Topic(("home",), ("flat", "house", "office")),
            "season": Topic(("when", "month"), ("summer", "autumn", "winter")),
            "vehicle": Topic(("car",), ("van", "truck", "trailer")),
            "contract": Topic(("payment",), ("hourly", "fixed", "shared")),
            "boxes": Topic(("cartons",), (), "boxes", (5, 60)),
            "distance": Topic(("far", "km"), (), "kilometres", (4, 90)),
            "rooms": Topic(("room",), (), "rooms", (2, 12)),
            "helpers": Topic(("people",), (), "helpers", (2, 9)),
            "shelves": Topic(("shelf",), (), "shelves", (2, 25)),
            "piano": Topic(()),
            "lift": Topic(("elevator",)),
            "parking": Topic(("permit", "park")),
            "cleaning": Topic(("cleaned", "clean")),
            "packing": Topic(("packed", "pack")),
        },
    ),
    "party": Theme(
        "Hi, we are planning a party at your place. What would that cost?",
        {
            "menu": Topic(("food",), ("buffet", "dinner", "barbecue")),
            "venue": Topic(("place",), ("garden", "hall", "boat")),
            "music": Topic(("songs",), ("band", "pianist", "silence")),
            "weekday": Topic(("day",), ("Friday", "Saturday", "Sunday")),
            "guests": Topic(("people",), (), "guests", (8, 90)),
            "hours": Topic(("long",), (), "hours", (2, 12)),
            "tables": Topic(("table",), (), "tables", (2, 15)),
            "bottles": Topic(("wine",), (), "bottles", (4, 50)),
            "bedrooms": Topic(("beds",), (), "bedrooms", (2, 20)),
            "cake": Topic(()),
            "fireworks": Topic(()),
            "photographer": Topic(("photos",)),
            "tent": Topic(()),
            "shuttle": Topic(("bus",)),
        },
    ),
}


def topics_in(text: str, theme: Theme, known: list[str], told: Collection[str] = ()) -> list[str]:
    """Return which of the topics a message asks about; words that begin like a topic's name count as its name."""
    subjects = {}
    for name in known:
        topic = theme.topics[name]
        forms = [word for word in topic.words if word[:4] == name[:4]]
        subjects[name] = Subject((name, *filter(None, [topic.unit]), *forms), topic.options, topic.words)
    return asked_about(text, subjects, told)


# Tariffs.


def price_of(tariff: list[Any], facts: Mapping[str, Any]) -> int:
    """Return the price of a case."""
    for _ in range(_MAX_DEPTH):
        if tariff[0] == "price":
            _, base, parts = tariff
            return int(base + sum(amount * _number(facts, topic) for topic, amount in parts))
        topic, branches = tariff
        tariff = branches[facts[topic]]
    raise InvalidActionError(f"a tariff may have {_MAX_DEPTH} levels")


def _number(facts: Mapping[str, Any], topic: str) -> int:
    value = facts[topic]
    if isinstance(value, dict):
        return (_number(facts, value["as"]) if "as" in value else value["count"]) + int(value["more"])
    return sum(value) if isinstance(value, list) else int(value)


def _check_fact(facts: Mapping[str, Any], topic: str, theme: Theme) -> None:
    """Raise an error if a fact cannot be told."""
    fact = facts[topic]
    if not isinstance(fact, dict):
        theme.topics[topic].said(fact)
        return
    other = fact["as"] if "as" in fact else fact["after"]
    numbers = theme.of_kind("number")
    is_number = topic in numbers and other in facts and other != topic
    if fact.keys() not in ({"as", "more"}, {"count", "more", "after"}) or not is_number:
        raise InvalidActionError(f"{fact!r} is not the number of another topic, or a number that is corrected")
    if "as" in fact and (other not in numbers or "as" in (facts[other] if isinstance(facts[other], dict) else ())):
        raise InvalidActionError(f"{topic} follows from {other}, which must not follow from another")
    for number in (fact["more"], fact.get("count", 1)):
        theme.topics[topic].said(number)


def _needed(tariff: list[Any], facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the topics that the price of a case depends on, in the order in which they can be known."""
    while tariff[0] != "price":
        topic, branches = tariff
        yield topic
        tariff = branches[facts[topic]]
    yield from (topic for topic, _ in tariff[2])


def _topics_of(tariff: list[Any]) -> Iterator[str]:
    """Yield all topics that a tariff names."""
    if tariff[0] == "price":
        yield from (topic for topic, _ in tariff[2])
        return
    yield tariff[0]
    for branch in tariff[1].values():
        yield from _topics_of(branch)


def _lines(theme: Theme, tariff: list[Any], depth: int = 0) -> Iterator[str]:
    """Yield the lines of a tariff as text."""
    if depth >= _MAX_DEPTH:
        raise InvalidActionError(f"a tariff may have {_MAX_DEPTH} levels")
    indent = "  " * depth
    if tariff[0] == "price":
        _, base, parts = tariff
        if type(base) is not int or not all(type(amount) is int for _, amount in parts):
            raise InvalidActionError("its amounts must be whole numbers")
        text = f"{indent}- {base}"
        for topic, amount in parts:
            unit = theme.topics[topic].unit
            counted = f"number of {unit}" + ("" if unit == topic else f" ({topic})")
            text += f", plus {amount} times the {counted}" if unit else f", plus {amount} with {topic}"
        yield text
        return
    topic, branches = tariff
    if not set(branches) <= set(theme.topics[topic].options):
        raise InvalidActionError(f"{topic} may be {', '.join(theme.topics[topic].options)}")
    for option, branch in sorted(branches.items()):
        yield f"{indent}- If the {topic} is {option}:"
        yield from _lines(theme, branch, depth + 1)


def _draw(rng: Any, shape: str) -> dict[str, Any]:
    draws: Callable[[], float] = chain(rng.random(100).tolist(), iter(rng.random, None)).__next__

    def below(n: int) -> int:
        return int(draws() * n)

    name = list(THEMES)[below(len(THEMES))]
    theme = THEMES[name]
    left = {kind: theme.of_kind(kind) for kind in ("choice", "number", "wish")}

    def take(kind: str) -> str:
        return left[kind].pop(below(len(left[kind])))

    def price(n_wishes: int, n_numbers: int = 1) -> list[Any]:
        parts: list[list[Any]] = [[take("number"), 2 + below(18)] for _ in range(n_numbers)]
        parts += [[take("wish"), 10 + below(90)] for _ in range(n_wishes)]
        return ["price", 20 + below(180), parts]

    def price_of_any() -> list[Any]:
        """Draw a price that may depend on the same things as another one."""
        left.update({kind: theme.of_kind(kind) for kind in ("number", "wish")})
        return price(2, 3)

    def choice(branch: Callable[[], list[Any]], n_options: int) -> list[Any]:
        topic = take("choice")
        options = list(theme.topics[topic].options)
        return [topic, {options.pop(below(len(options))): branch() for _ in range(n_options)}]

    def expert() -> list[Any]:
        last = take("choice")
        options = list(theme.topics[last].options)[:2]
        return choice(lambda: choice(lambda: [last, {option: price_of_any() for option in options}], 2), 2)

    tariff = {
        "easy": lambda: choice(lambda: price(0), 3),
        "medium": lambda: choice(lambda: price(1), 3),
        "hard": lambda: choice(lambda: choice(lambda: price(1), 2), 2),
        "expert": expert,
    }[shape]()
    facts: dict[str, Any] = {}
    for topic, branches in _choices(tariff):
        facts[topic] = list(branches)[below(len(branches))]
    for topic in dict.fromkeys(_topics_of(tariff)):
        if topic in facts:
            continue
        low, high = theme.topics[topic].numbers
        if not theme.topics[topic].unit:
            facts[topic] = draws() < 0.5
        elif shape in ("hard", "expert") and draws() < 0.5:
            facts[topic] = [low + below(high - low + 1), 1 + below(9)]
        else:
            facts[topic] = low + below(high - low + 1)
    if shape == "expert":  # the first number is corrected with the third, and the second follows from the first
        first, second, third = [topic for topic in _needed(tariff, facts) if theme.topics[topic].unit]
        facts[first] = {"count": sum(facts[first]) if isinstance(facts[first], list) else facts[first],
                        "more": 1 + below(9), "after": third}  # fmt: skip
        facts[second] = {"as": first, "more": 1 + below(9)}
    return {"theme": name, "facts": facts, "tariff": tariff}


def _choices(tariff: list[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    if tariff[0] != "price":
        yield tariff[0], tariff[1]
        for branch in tariff[1].values():
            yield from _choices(branch)
