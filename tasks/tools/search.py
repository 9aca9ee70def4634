"""`llm/Search-v0`: questions whose answer must be put together from several articles of an invented encyclopedia."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from llm_envs.env import Difficulty, ToolEnv
from llm_envs.errors import InvalidActionError
from llm_envs.parsers import format_tool_call
from llm_envs.rewards import parse_integer
from llm_envs.tasks.tools.bm25 import Bm25
from llm_envs.tools.toolset import Toolset, tool

__all__ = ["SearchEnv", "articles_of"]

_N_RESULTS = 3
_SNIPPET_WORDS = 7


class Library(Toolset):
    """Articles that can be searched and read. The index is made with the first search."""

    def reset(self, problem: Mapping[str, Any], rng: np.random.Generator) -> None:
        """Put the problem's articles on the shelves."""
        self.world = problem["world"]
        self.log: set[tuple[str, str]] = set()
        """The searches and the titles that were read, in this episode."""
        self._articles: dict[str, str] | None = None
        self._index: Bm25 | None = None
        self._titles: dict[str, str] = {}

    def articles(self) -> dict[str, str]:
        """Return the articles by title."""
        if self._articles is None:
            self._articles = articles_of(self.world)
        return self._articles

    @tool
    def search(self, query: str) -> str:
        """Search the encyclopedia by words. Returns the titles and first words of the three best articles.

        Args:
            query: Words to look for.
        """
        self.log.add(("search", query))
        lines = [f"{title}: {' '.join(text.split()[:_SNIPPET_WORDS])} ..." for title, text in self.best(query)]
        return "\n".join(lines) or "No article has any of these words."

    def best(self, query: str) -> list[tuple[str, str]]:
        """Return the titles and texts of the articles that fit a query best."""
        articles = list(self.articles().items())
        if self._index is None:
            self._index = Bm25([f"{title} {text}" for title, text in articles])
        return [articles[i] for i, _ in self._index.search(query, _N_RESULTS)]

    @tool
    def read(self, title: str) -> str:
        """Read an article.

        Args:
            title: Its title, as `search` gives it.
        """
        if not self._titles:
            self._titles = {_normal(name): name for name in self.articles()}
        name = self._titles.get(_normal(title))
        if name is not None:
            self.log.add(("read", name))
            return self.articles()[name]
        raise InvalidActionError(f"there is no article {title[:60]!r}; search for its title")


class SearchEnv(ToolEnv):
    """Answer a question that needs several articles of an encyclopedia nobody has seen.

    ## Description
    Each episode has its own encyclopedia about towns, people, companies and books, all invented, so that nothing
    can be known beforehand. The question goes from one to the next: "On which river does the town lie where the founder
    of Kalorn & Sons was born?" The tool `search(query)` finds articles by their words (BM25) and shows how they begin;
    `read(title)` shows a whole one. Some links lead backwards: the article on a person does not say which book they
    wrote; a search for their name finds it. Teaches to split a question into steps, and to search for what the last
    step gave.

    ## Observation
    First the question, then what the tools say, then "Correct." or "Incorrect."; after a malformed reply a readable
    error.

    ## Action
    A call of `search` or `read`, or the final answer, a name or a year: `<answer>Norbert Quayle</answer>`.
    Case, quotation marks, and words before a name such as "the river" do not matter.

    ## Reward
    `correct` (weight 1): 1 for the right answer. `malformed` (weight -0.1): 1 for a reply that is neither a call nor an
    answer, is broken, or answers a question for a year with something else.

    ## Episode End
    Terminates with the first answer. Truncated after `max_turns` replies.

    ## Arguments
    - `split`: "train" or "test".
    - `difficulty`: "easy" (default): two articles of 34; "medium": two or three of 42; "hard": four or five of
      56; "expert": seven to nine of 108.
    - `max_turns`: 8, 10, 14 and 22 by default.
    - `reset(options={"problem": {"world": ..., "start": ["book", 0], "path": ["author"], "asked": "year"}})`:
      a world is `{"town": [[name, river, year], ...], "person": [[name, town, profession, year, employer], ...],
      "company": [[name, founder, seat, year], ...], "book": [[title, author, publisher, year], ...]}`, with places in
      the other lists.

    ## Version History
    - v0: first version.
    """

    # Who names a random thing of the kind that is asked for (at least 8, 8 and 10 of each) is right in at most
    # 1/8, 1/8 and 1/10; years are harder to guess.
    difficulties = {
        "easy": Difficulty(
            "two articles of 34",
            chance_rate=0.125,
            settings={"sizes": (8, 10, 8, 8), "n_articles": (2, 2), "turns": 8},
        ),
        "medium": Difficulty(
            "two or three of 42",
            chance_rate=0.125,
            settings={"sizes": (10, 14, 8, 10), "n_articles": (2, 3), "turns": 10},
        ),
        "hard": Difficulty(
            "four or five of 56",
            chance_rate=0.1,
            settings={"sizes": (12, 20, 10, 14), "n_articles": (4, 5), "turns": 14},
        ),
        "expert": Difficulty(
            "seven to nine of 108",
            chance_rate=0.08,
            settings={"sizes": (20, 40, 20, 28), "n_articles": (7, 9), "turns": 22},
        ),
    }
    slow_reset_reason = "each search ranks every page, and at the expert level there are many"
    default_difficulty = "easy"
    problem_fields = {"world": dict, "start": list, "path": list, "asked": str}
    instructions = (
        "Answer the question with the encyclopedia, which you can search and read. Everything in it is invented. "
        "Answer with the name or the year, and nothing else. An answer that is a year is written <answer>1874</answer>."
    )
    answer_example = "Norbert Quayle"

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
            self.max_turns = self.settings["turns"]

    def make_tools(self) -> Toolset:
        """Return the encyclopedia."""
        self.library = Library()
        return self.library

    def generate(self) -> dict[str, Any]:
        """Draw a world and a walk through it."""
        world = _draw_world(self.np_random, self.settings["sizes"])
        random = self.np_random.random
        low, high = self.settings["n_articles"]
        while True:
            walk = _draw_walk(world, low + int(random() * (high - low + 1)), random)
            if walk is not None:
                start, path, asked = walk
                return {"world": world, "start": start, "path": path, "asked": asked}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a world that does not hang together, and a question without one answer."""
        try:
            titles = list(articles_of(problem["world"]))
            steps = _steps(problem)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise InvalidActionError(f"its world, start or path is wrong: {error!r}") from error
        if not all(isinstance(title, str) for title in titles):
            raise InvalidActionError("the titles of its articles must be texts")
        n_articles = sum(len(problem["world"][kind]) for kind in _KINDS)
        if len({_normal(title) for title in titles}) < n_articles:
            raise InvalidActionError("two articles of its world have one title")
        if len(set(steps)) < len(steps):
            raise InvalidActionError("its path comes back to an article")

    def begin(self) -> None:
        """Follow the path."""
        self._steps = _steps(self.problem)
        kind, index = self._steps[-1]
        self._answer: str | int = _value(self.problem["world"], kind, index, self.problem["asked"])

    def prompt(self) -> str:
        """Return the question."""
        kind, index = self.problem["start"]
        phrase = _NAMED[kind].format(self.problem["world"][kind][index][0])
        for relation in self.problem["path"]:
            phrase = _RELATIONS[relation][2].format(phrase)
        return _ASKED[self._steps[-1][0], self.problem["asked"]].format(phrase)

    def is_correct(self, answer: str) -> bool:
        """Compare as years or as names."""
        if isinstance(self._answer, str):
            name = _normal(answer)
            if name != _normal(self._answer) and _SENTENCE.search(answer):
                raise InvalidActionError("the answer is a sentence; it must be the name")
            return name == _normal(self._answer)
        year = parse_integer(answer.casefold().removeprefix("in ").removeprefix("the year ").strip(" ."))
        if year is None:
            raise InvalidActionError("the answer is not a year")
        return year == self._answer

    def next_action(self) -> str:
        """Search for the next article and read it; when all are read, answer."""
        world, log = self.problem["world"], self.library.log
        for place, (kind, index) in enumerate(self._steps):
            title = world[kind][index][0]
            if ("read", title) in log:
                continue
            query = title
            if place and self.problem["path"][place - 1] in _BACKWARDS:
                before_kind, before = self._steps[place - 1]
                query = f"{world[before_kind][before][0]} {kind}"
            if ("search", query) in log:
                return format_tool_call("read", title=title)
            return format_tool_call("search", query=query)
        return self.write_answer(self._answer)

    def shortcuts(self) -> Mapping[str, str]:
        """Return what players answer who read only the first article, or only the best of a search for the question."""
        world, asked, articles = self.problem["world"], self.problem["asked"], self.library.articles()
        kind, index = self._steps[0]
        best = self.library.best(self.prompt())[0][0]
        answers = {}
        for name, title in (("the first article", world[kind][index][0]), ("the best result", best)):
            text = articles[title].replace(title, "")
            sort = _RELATIONS[asked][1] if asked in _RELATIONS else "town"
            names = [row[_VALUES.get((sort, asked), 0)] for row in world[sort]]
            found = _YEAR.findall(text) if asked == "year" else [name for name in names if name in text]
            answers[name] = self.write_answer(found[0] if found else "none")
        return answers


# The world: lists of lists, in which a thing's first field is its name and others are places in other lists.

_KINDS = ("town", "person", "company", "book")
_RELATIONS: dict[str, tuple[str, str, str]] = {
    # relation: its start, its end, and its words
    "birthplace": ("person", "town", "the town where {} was born"),
    "employer": ("person", "company", "the company that employs {}"),
    "founder": ("company", "person", "the founder of {}"),
    "seat": ("company", "town", "the town where {} has its seat"),
    "author": ("book", "person", "the author of {}"),
    "publisher": ("book", "company", "the publisher of {}"),
    "book written": ("person", "book", "the book that {} wrote"),
    "company founded": ("person", "company", "the company that {} founded"),
}
_FIELDS = {"birthplace": 1, "employer": 4, "founder": 1, "seat": 2, "author": 1, "publisher": 2}
_BACKWARDS = {"book written": ("book", 1), "company founded": ("company", 1)}
"""Relations that only the article at their end tells: the kind, and its field that has the beginning."""
_TO_TOWNS = ("birthplace", "seat")
_NAMED = {"town": "the town of {}", "person": "{}", "company": "the company {}", "book": 'the book "{}"'}
_VALUES = {
    ("town", "river"): 1,
    ("town", "year"): 2,
    ("person", "year"): 3,
    ("company", "year"): 3,
    ("book", "year"): 3,
}
_ASKED = {
    ("town", "river"): "On which river does {} lie?",
    ("town", "year"): "In which year was {} founded?",
    ("person", "year"): "In which year was {} born?",
    ("person", "birthplace"): "What is the name of the town where {} was born?",
    ("person", "employer"): "What is the name of the company that employs {}?",
    ("company", "year"): "In which year was {} founded?",
    ("company", "founder"): "Who founded {}?",
    ("company", "seat"): "What is the name of the town where {} has its seat?",
    ("book", "year"): "In which year was {} published?",
    ("book", "author"): "Who wrote {}?",
    ("book", "publisher"): "What is the name of the company that published {}?",
}
_FROM: dict[str, list[str]] = {kind: [name for name, (of, _, _) in _RELATIONS.items() if of == kind] for kind in _KINDS}
_ASKED_OF: dict[str, list[str]] = {kind: [asked for of, asked in _ASKED if of == kind] for kind in _KINDS}

_SYLLABLES = ("bar", "dol", "fen", "gar", "hil", "jor", "kal", "lum", "mor", "nev", "pel", "ras", "sil", "tor", "ulv",
              "vin", "wes", "yar", "zim", "cor")  # fmt: skip
_FIRST_ENDS = ("a", "en", "ia", "o")
_LAST_ENDS = ("ack", "eda", "ick", "olan", "ubin", "ast", "ert", "inge")
_TOWN_ENDS = ("bridge", "field", "ford", "ham", "mouth", "stead", "wick", "ton")
_COMPANY_ENDS = ("orn", "ex", "ium", "ova")
_COMPANY_FORMS = ("& Sons", "Works", "Brothers", "Trading")
_RIVER_ENDS = ("e", "is", "ow", "ey")
_ADJECTIVES = ("Amber", "Broken", "Crimson", "Distant", "Empty", "Frozen", "Golden", "Hidden", "Iron", "Last", "Lost",
               "Quiet", "Red", "Silver", "Stolen", "White")  # fmt: skip
_NOUNS = ("Bell", "Clock", "Door", "Garden", "Harvest", "Island", "Lantern", "Mirror", "Orchard", "River", "Road",
          "Shadow", "Song", "Tower", "Winter", "Window")  # fmt: skip
_PROFESSIONS = ("architect", "astronomer", "botanist", "engineer", "geologist", "historian", "painter", "surgeon")


def _draw_world(rng: np.random.Generator, sizes: tuple[int, int, int, int]) -> dict[str, list[list[Any]]]:
    n_towns, n_people, n_companies, n_books = sizes
    draws: Callable[[], float] = iter(rng.random(2 * n_towns + 5 * n_people + 3 * n_companies + 3 * n_books)).__next__

    def below(n: int) -> int:
        return int(draws() * n)

    n = len(_SYLLABLES)
    town_names = _distinct(rng, n_towns, n * len(_TOWN_ENDS))
    rivers = _distinct(rng, n_towns, n * len(_RIVER_ENDS))
    last_names = _distinct(rng, n_people, n * len(_LAST_ENDS))
    companies = _distinct(rng, n_companies, n * len(_COMPANY_ENDS))
    titles = _distinct(rng, n_books, len(_ADJECTIVES) * len(_NOUNS))
    return {
        "town": [
            [_joined(name, _TOWN_ENDS), _joined(river, _RIVER_ENDS), 1100 + below(700)]
            for name, river in zip(town_names, rivers, strict=True)
        ],
        "person": [
            [
                f"{_joined(below(n * len(_FIRST_ENDS)), _FIRST_ENDS)} {_joined(name, _LAST_ENDS)}",
                below(n_towns),
                _PROFESSIONS[below(len(_PROFESSIONS))],
                1850 + below(100),
                below(n_companies),
            ]
            for name in last_names
        ],
        "company": [
            [
                f"{_joined(name, _COMPANY_ENDS)} {_COMPANY_FORMS[name % len(_COMPANY_FORMS)]}",
                below(n_people),
                below(n_towns),
                1870 + below(110),
            ]
            for name in companies
        ],
        "book": [
            [
                f"The {_ADJECTIVES[name // 16]} {_NOUNS[name % 16]}",
                below(n_people),
                below(n_companies),
                1880 + below(110),
            ]
            for name in titles
        ],
    }


def _distinct(rng: np.random.Generator, count: int, n: int) -> list[int]:
    drawn: dict[int, None] = {}
    while len(drawn) < count:
        drawn.update((int(number * n), None) for number in rng.random(count - len(drawn)).tolist())
    return list(drawn)


def _joined(number: int, ends: tuple[str, ...]) -> str:
    return (_SYLLABLES[number // len(ends)] + ends[number % len(ends)]).capitalize()


def _draw_walk(
    world: Mapping[str, list[list[Any]]], n_articles: int, random: Callable[[], float]
) -> tuple[list[Any], list[str], str] | None:
    """Draw a start, relations through that many articles, and what is asked of the last; None if it got stuck."""
    kinds = _KINDS if n_articles == 1 else _KINDS[1:]  # nothing leads on from a town
    kind = kinds[int(random() * len(kinds))]
    step = (kind, int(random() * len(world[kind])))
    steps, path = [step], []
    while len(steps) < n_articles:
        relations = [name for name in _FROM[steps[-1][0]] if len(steps) + 1 == n_articles or name not in _TO_TOWNS]
        relation = relations[int(random() * len(relations))]
        following = _follow(world, steps[-1], relation)
        if following is None or following in steps:
            return None
        steps.append(following)
        path.append(relation)
    asked = _ASKED_OF[steps[-1][0]]
    chosen = asked[int(random() * len(asked))]
    following = _follow(world, steps[-1], chosen) if chosen in _FIELDS else None
    if following in steps or (following is None and chosen in _FIELDS):
        return None
    return list(steps[0]), path, chosen


def _follow(world: Mapping[str, list[list[Any]]], step: tuple[str, int], relation: str) -> tuple[str, int] | None:
    """Return where a relation leads; None if it leads nowhere, or to several."""
    kind, index = step
    of, to, _ = _RELATIONS[relation]
    if of != kind:
        raise ValueError(f"{relation} of a {kind}")
    if relation in _FIELDS:
        return to, world[kind][index][_FIELDS[relation]]
    to, field = _BACKWARDS[relation]
    found = [place for place, row in enumerate(world[to]) if row[field] == index]
    return (to, found[0]) if len(found) == 1 else None


def _steps(problem: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return the articles that a problem's question leads through."""
    kind, index = problem["start"]
    world = problem["world"]
    steps: list[tuple[str, int]] = [(kind, index)]
    for relation in problem["path"]:
        following = _follow(world, steps[-1], relation)
        if following is None:
            raise ValueError(f"{relation} leads to none, or to several")
        steps.append(following)
    for _, index in steps:
        if not isinstance(index, int) or index < 0:
            raise ValueError(f"{index!r} is no place")
    _value(world, *steps[-1], problem["asked"])
    _ASKED[steps[-1][0], problem["asked"]]
    return steps


def _value(world: Mapping[str, list[list[Any]]], kind: str, index: int, asked: str) -> Any:
    """Return what is asked of a thing: a year, a river, or a name."""
    if (kind, asked) in _VALUES:
        return world[kind][index][_VALUES[kind, asked]]
    following = _follow(world, (kind, index), asked)
    assert following is not None  # of those that are asked, none leads backwards
    return world[following[0]][following[1]][0]


def articles_of(world: Mapping[str, list[list[Any]]]) -> dict[str, str]:
    """Return the articles of a world by title."""
    return {title: text for kind in _KINDS for title, text in _ARTICLES[kind](world)}


def _towns(world: Mapping[str, list[list[Any]]]) -> Iterator[tuple[str, str]]:
    for place, (name, river, year) in enumerate(world["town"]):
        if place % 2:
            yield name, f"{name} lies on the banks of the {river}. The town was founded in {year}."
        else:
            yield name, f"{name} is a town on the river {river}. It was founded in {year}."


def _people(world: Mapping[str, list[list[Any]]]) -> Iterator[tuple[str, str]]:
    for place, (name, town, profession, year, company) in enumerate(world["person"]):
        born, employer = world["town"][town][0], world["company"][company][0]
        article = "an" if profession[0] in "aeiou" else "a"
        if place % 2:
            yield name, f"{name} has long been employed by {employer}. Born in {born} in {year}, {name} is {article} " \
                        f"{profession} by training."  # fmt: skip
        else:
            yield name, f"{name} is {article} {profession} who works for {employer}. {name} was born in {year} in " \
                        f"{born}."  # fmt: skip


def _companies(world: Mapping[str, list[list[Any]]]) -> Iterator[tuple[str, str]]:
    for place, (name, person, town, year) in enumerate(world["company"]):
        founder, seat = world["person"][person][0], world["town"][town][0]
        if place % 2:
            yield (
                name,
                f"{name} is a company that goes back to {founder}, who founded it in {year}. Its seat is {seat}.",
            )
        else:
            yield name, f"{name} is a company with its seat in {seat}. It was founded in {year} by {founder}."


def _books(world: Mapping[str, list[list[Any]]]) -> Iterator[tuple[str, str]]:
    for place, (title, person, company, year) in enumerate(world["book"]):
        author, publisher = world["person"][person][0], world["company"][company][0]
        if place % 2:
            yield title, f"{title} is a book that {publisher} published in {year}. It was written by {author}."
        else:
            yield title, f"{title} is a book by {author}. It was published in {year} by {publisher}."


_ARTICLES: dict[str, Callable[[Mapping[str, list[list[Any]]]], Iterator[tuple[str, str]]]] = {
    "town": _towns,
    "person": _people,
    "company": _companies,
    "book": _books,
}
_YEAR = re.compile(r"\b[0-9]{4}\b")
_SENTENCE = re.compile(r"\b(?:is|was|are|were|lies|wrote|founded|let|will|search|read|cannot)\b", re.IGNORECASE)
_BEFORE_NAMES = ("the ", "river ", "town of ", "town ", "company ", "book ")


def _normal(name: str) -> str:
    """Return a name in lower case without quotation marks, a full stop, and words such as "the river"."""
    name = " ".join(name.replace('"', " ").split()).strip(" .'").casefold()
    while (before := next((word for word in _BEFORE_NAMES if name.startswith(word)), None)) is not None:
        name = name.removeprefix(before)
    return name
