"""`llm/LongRecall-v0`: find what was asked for in a text of up to 128,000 tokens."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

from llm_envs.env import Difficulty, SingleTurnEnv
from llm_envs.errors import InvalidActionError, InvalidConfigError
from llm_envs.spaces import MAX_TEXT_LENGTH
from llm_envs.tasks.draws import Random, between, pick, sample, shuffled
from llm_envs.tasks.language.haystack import ADJECTIVES, NOUNS, common_words, haystack, word_list
from llm_envs.tasks.people import PEOPLE
from llm_envs.tasks.replies import list_items

__all__ = ["KINDS", "LongRecallEnv"]

CHARACTERS_PER_TOKEN = 4
"""Tokenizers take 4 to 5 characters of such text for a token."""
_CONTEXT_TOKENS = (1_000, 200_000)
_MOST_CHARACTERS = MAX_TEXT_LENGTH - 50_000
"""Of a text: the question comes on top."""


class LongRecallEnv(SingleTurnEnv):
    """Find one sentence, several, or what they come to together, in a very long text.

    ## Description
    The kinds of RULER (arXiv 2404.06654). Sentences are hidden at any depth of a long text about nothing: the codes of
    people's things, among them many that share two words with the asked one ("single"; "values": a thing with
    several codes; "queries": several things); or drawers that hold a number, or the same as another drawer ("chain").
    Or the text is a list of words, and the question is for the most frequent ones ("words"). Teaches to attend to
    all of a long context, to tell the right sentence from similar ones, and to follow references through it.

    ## Observation
    The kind of question, the text, and the question. After the reply "Correct.", "Incorrect." or the reason why it is
    malformed.

    ## Action
    The numbers, names or words in the final answer, with commas (or line breaks, or "and") between them,
    `<answer>48213, 90577</answer>`; in the order of the question for "queries", else in any order.
    Thinking in `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 for exactly what was asked for, and nothing else. `malformed` (weight -0.1): 1 for a reply
    without an answer, with broken tags, with an item that is not a number or not a word, or with one of them twice.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train" or "test". No question is in both, whatever the text, the codes and the depths.
    - `difficulty`: "easy" (default): about 4,000 tokens; "medium": 16,000; "hard": 64,000; "expert": 128,000. With the
      length grows how many sentences are nearly the asked one, and how much is asked for.
    - `context_tokens`: the length of the text, from 1,000 to 200,000 tokens, in place of the level's; a token counts as
      4 characters. It is at least as long as what is hidden in it.
    - `reset(options={"problem": {"kind": "single", "facts": [["Ada", "amber", "kettle", 48213]], "asked": [["Ada",
      "amber", "kettle"]], "depths": [0.5], "seed": 1, "n_characters": 4000}})`: the kind, what is hidden, what is asked
      for, where each fact stands (0 to 1), the seed of the text around it, and its length. Facts of a "chain" are
      ["amber kettle", 48213] or ["rusty bell", "amber kettle"], and a number is asked for; those of "words" are
      ["apple", 30], and how many words is asked for.

    ## Version History
    - v0: first version.
    """

    # Who answers without the question has the codes of one of at least 31, 28, 31 and 38 things, or one of 12, 18, 32
    # and 28 chains, and is right in 1.7%, 1.1%, .8% and .9% of all problems at most.
    difficulties = {
        "easy": Difficulty(
            "about 4,000 tokens, up to 3 things asked for",
            chance_rate=0.03,
            settings={"tokens": 4_000, "kinds": ("single", "values", "queries", "chain", "words"), "similar": 60,
                      "asked": 2, "chains": 12, "hops": 2, "words": 3, "often": 16},
        ),
        "medium": Difficulty(
            "about 16,000 tokens, up to 5 things",
            chance_rate=0.02,
            settings={"tokens": 16_000, "kinds": ("single", "values", "queries", "chain", "words"), "similar": 110,
                      "asked": 4, "chains": 18, "hops": 4, "words": 5, "often": 24},
        ),
        "hard": Difficulty(
            "about 64,000 tokens, up to 7 things",
            chance_rate=0.01,
            settings={"tokens": 64_000, "kinds": ("values", "queries", "chain", "words"), "similar": 180,
                      "asked": 6, "chains": 32, "hops": 6, "words": 7, "often": 28},
        ),
        "expert": Difficulty(
            "about 128,000 tokens, up to 10 things",
            chance_rate=0.01,
            expected_hard="All of 6 to 10 things must be found among 300 that are nearly the same. The best model of "
            "RULER's paper finds 94.4% at 128,000 tokens, where fewer are nearly the same; at 93%, .93 ** 10 = 48%.",
            settings={"tokens": 128_000, "kinds": ("values", "queries", "chain", "words"), "similar": 300,
                      "asked": 8, "chains": 28, "hops": 8, "words": 10, "often": 30},
        ),
    }  # fmt: skip
    default_difficulty = "easy"
    problem_fields = {"kind": str, "facts": list, "asked": list, "depths": list, "seed": int, "n_characters": int}
    instructions = (
        "Read the text, then answer the question at its end. Give only the numbers or words of the answer, with commas "
        "between them. An answer of two names is written <answer>steel whistle, clay teapot</answer>."
    )
    answer_example = "48213, 90577"
    slow_reset_reason = "texts of up to half a million characters are put together"

    def __init__(
        self,
        split: str = "train",
        difficulty: str | None = None,
        context_tokens: int | None = None,
        render_mode: str | None = None,
        answer_form: str | None = None,
    ) -> None:
        super().__init__(split, difficulty, render_mode, answer_form)
        low, high = _CONTEXT_TOKENS
        if context_tokens is not None and (type(context_tokens) is not int or not low <= context_tokens <= high):
            raise InvalidConfigError(
                f"LongRecallEnv: context_tokens is {context_tokens!r}; it must be a whole number from {low} to {high}."
            )
        self.context_tokens: int = self.settings["tokens"] if context_tokens is None else context_tokens

    def generate(self) -> dict[str, Any]:
        """Draw a kind, what is hidden and asked for, and where it stands."""
        random = self.np_random.random
        kind = pick(random, self.settings["kinds"])
        facts, asked = KINDS[kind].draw(random, self.settings)
        depths = [] if kind == "words" else self.np_random.random(len(facts)).round(4).tolist()
        return {
            "kind": kind,
            "facts": facts,
            "asked": asked,
            "depths": depths,
            "seed": between(random, 0, 10**9),
            "n_characters": CHARACTERS_PER_TOKEN * self.context_tokens,
        }

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse unknown kinds, facts that do not fit theirs, and questions without an answer."""
        kind, facts, asked = problem["kind"], problem["facts"], problem["asked"]
        if kind not in KINDS:
            raise InvalidActionError(f"its kind is none of {', '.join(KINDS)}")
        if not 1 <= len(facts) <= 1_000 or not asked:
            raise InvalidActionError("it must have facts, at most 1,000, and ask for something")
        if not 0 <= problem["n_characters"] <= _MOST_CHARACTERS or problem["seed"] < 0:
            raise InvalidActionError(f"its n_characters must be from 0 to {_MOST_CHARACTERS}, its seed at least 0")
        depths = problem["depths"]
        if len(depths) != (0 if kind == "words" else len(facts)):
            raise InvalidActionError("it must have a depth for each fact; the kind words has none")
        if not all(type(depth) in (int, float) and 0 <= depth <= 1 for depth in depths):
            raise InvalidActionError("its depths must be numbers from 0 to 1")
        if complaint := KINDS[kind].complaint(facts, asked):
            raise InvalidActionError(complaint)

    def split_key(self, problem: Mapping[str, Any]) -> Any:
        """Return what is asked for: the text around it, and where it stands, do not make another problem."""
        asked = problem["asked"]
        if problem["kind"] == "words":
            asked = _most_frequent(problem["facts"], asked[0])
        return sorted(map(str, asked))

    def prompt(self) -> str:
        """Return the text between what will be asked and the question."""
        problem = self.problem
        kind, n_characters = KINDS[problem["kind"]], problem["n_characters"]
        if problem["kind"] == "words":
            text = word_list(problem["seed"], n_characters, dict(problem["facts"]), self._n_rare())
        else:
            sentences = [kind.sentence(fact) for fact in problem["facts"]]
            text = haystack(problem["seed"], n_characters, sentences, problem["depths"])
        return f"{kind.task}\n\n{text}\n\n{kind.question(problem['asked'])}"

    def solution(self) -> str:
        """Return what is asked for."""
        return ", ".join(KINDS[self.problem["kind"]].answer(self.problem["facts"], self.problem["asked"]))

    def is_correct(self, answer: str) -> bool:
        """Compare what is named with what is asked for."""
        items = [_plain_item(item) for item in list_items(self._with_plain_codes(answer))]
        form, kind = _FORMS[self.problem["kind"]]
        if not items or not all(re.fullmatch(form, item) for item in items):
            raise InvalidActionError(f"the answer must be {kind}, with commas between them")
        right = self.solution().split(", ")
        if self.problem["kind"] == "queries":
            return items == right
        if len(set(items)) < len(items):
            raise InvalidActionError("the answer names something twice")
        return sorted(items) == sorted(right)

    def shortcuts(self) -> Mapping[str, str]:
        """Return what players answer who do not look at the question: about the first thing told, or the commonest."""
        kind, facts, depths = self.problem["kind"], self.problem["facts"], self.problem["depths"]
        if kind == "words":
            return {}
        told = [facts[i] for i in sorted(range(len(facts)), key=depths.__getitem__)]
        if kind == "chain":
            numbers = [fact[1] for fact in told if type(fact[1]) is int]
            return {"the first number": self.write_answer(", ".join(_holders(facts, numbers[:1])))}
        counts = [Counter(fact[place] for fact in facts) for place in range(3)]
        commonest = max(told, key=lambda fact: sum(counts[place][fact[place]] for place in range(3)))
        return {
            name: self.write_answer(", ".join(_codes_asked(facts, [fact[:3]])))
            for name, fact in (("the first thing", told[0]), ("the commonest words", commonest))
        }

    def _with_plain_codes(self, answer: str) -> str:
        """Return an answer without the thousands separators of the text's codes."""
        codes = {str(fact[-1]) for fact in self.problem["facts"]}

        def plain(found: re.Match[str]) -> str:
            code = found[0].replace(",", "")
            return code if code in codes else found[0]

        return _SEPARATED.sub(plain, answer)

    def _n_rare(self) -> int:
        """Return how often a word occurs that is none of the frequent ones: a quarter as often as the last of them."""
        return max(1, min(count for _, count in self.problem["facts"]) // 4)


_SEPARATED = re.compile(r"(?<![\d,])\d{1,3}(?:,\d{3})+(?![\d,]\d)")
_CODE = ("[0-9]+", "numbers")
_FORMS = {
    **{"single": _CODE, "values": _CODE, "queries": _CODE},
    **{"chain": ("[a-z]+ [a-z]+", "names of two words"), "words": ("[a-z]+", "words")},
}
"""Of each kind: the form of an item, and how the error names the items."""
_LABEL = re.compile(r"^(?:[a-z' ]+:\s*(?=\d)|the (?=[a-z]+ [a-z]+$))")


def _plain_item(item: str) -> str:
    """Return an item in small letters, without "the" before a name or a label before a number ("amber kettle: 5")."""
    return _LABEL.sub("", " ".join(item.casefold().split()), count=1)


# Codes: [person, adjective, noun, code].


def _thing(key: Sequence[str]) -> str:
    return f"{key[0]}'s {key[1]} {key[2]}"


def _draw_codes(random: Random, n: int) -> list[int]:
    codes: dict[int, None] = {}
    while len(codes) < n:
        codes[between(random, 10_000, 99_999)] = None
    return list(codes)


def _draw_keys(random: Random, n_asked: int, n_similar: int) -> tuple[list[list[str]], list[list[str]]]:
    """Draw things, and others that share words with them: all of the same few words, so that no thing stands out."""
    n, sizes = n_asked + n_similar, [2, 2, 2]
    while prod(sizes) < n:
        sizes[sizes.index(min(sizes))] += 1
    choices = [
        sample(random, words, size)
        for words, size in zip((PEOPLE, ADJECTIVES, NOUNS), shuffled(random, sizes), strict=True)
    ]
    keys = [list(key) for key in sample(random, list(product(*choices)), n)]
    return keys[:n_asked], keys[n_asked:]


def _draw_single(random: Random, settings: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    return _codes_of(random, 1, 1, settings["similar"])


def _draw_values(random: Random, settings: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """Draw a thing with several codes; some of those like it have several, too."""
    return _codes_of(random, 1, between(random, max(2, settings["asked"] - 2), settings["asked"]), settings["similar"])


def _draw_queries(random: Random, settings: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    return _codes_of(random, settings["asked"], 1, settings["similar"])


def _codes_of(random: Random, n_asked: int, n_values: int, n_similar: int) -> tuple[list[Any], list[Any]]:
    asked, similar = _draw_keys(random, n_asked, n_similar // n_values)
    keys = [key for key in [*asked, *similar] for _ in range(n_values)]
    return [[*key, code] for key, code in zip(keys, _draw_codes(random, len(keys)), strict=True)], asked


def _complain_of_codes(facts: Sequence[Any], asked: Sequence[Any]) -> str:
    if not all(isinstance(fact, list) and list(map(type, fact)) == [str, str, str, int] for fact in facts):
        return "its facts must be [person, adjective, noun, code]"
    if not all(isinstance(key, list) and list(map(type, key)) == [str, str, str] for key in asked):
        return "it must ask for [person, adjective, noun]"
    if not all(re.fullmatch("[A-Za-z]{1,20}", word) for fact in facts for word in fact[:3]):
        return "the words of its facts must be of letters"
    if len({fact[3] for fact in facts}) < len(facts) or min(fact[3] for fact in facts) < 0:
        return "its codes must differ"
    if any(not any(fact[:3] == key for fact in facts) for key in asked):
        return "no fact has what it asks for"
    return ""


def _complain_of_one(facts: Sequence[Any], asked: Sequence[Any]) -> str:
    """Complain if a thing that is asked for has several codes."""
    if complaint := _complain_of_codes(facts, asked):
        return complaint
    several = any(sum(fact[:3] == key for fact in facts) > 1 for key in asked)
    return "what it asks for has several codes" if several else ""


def _complain_of_many(facts: Sequence[Any], asked: Sequence[Any]) -> str:
    return _complain_of_codes(facts, asked) or ("it must ask for one thing" if len(asked) > 1 else "")


def _codes_asked(facts: Sequence[Any], asked: Sequence[Any]) -> list[str]:
    return [str(fact[3]) for key in asked for fact in facts if fact[:3] == key]


# Chains: [drawer, number] or [drawer, drawer].


def _draw_chain(random: Random, settings: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    n, size = settings["chains"], settings["hops"] + 1
    names: dict[str, None] = {}
    while len(names) < n * size:
        names[f"{pick(random, ADJECTIVES)} {pick(random, NOUNS)}"] = None
    drawn, codes = list(names), _draw_codes(random, n)
    facts: list[Any] = []
    for number, code in enumerate(codes):
        chain = drawn[number * size : (number + 1) * size]
        facts.append([chain[0], code])
        for place in range(1, size):  # mostly the one before, so that chains are long
            source = chain[place - 1] if random() < 0.7 else pick(random, chain[:place])
            facts.append([chain[place], source])
    return facts, [codes[0]]


def _complain_of_chain(facts: Sequence[Any], asked: Sequence[Any]) -> str:
    known: set[str] = set()
    for fact in facts:
        if not isinstance(fact, list) or list(map(type, fact)) not in ([str, int], [str, str]):
            return "its facts must be [name, number] or [name, other name]"
        if re.fullmatch("[a-z]{1,20} [a-z]{1,20}", fact[0]) is None or fact[0] in known:
            return "its names must be two words of small letters, each name once"
        if isinstance(fact[1], str) and fact[1] not in known:
            return "a fact refers to none before it"
        known.add(fact[0])
    if list(map(type, asked)) != [int] or asked[0] not in [fact[1] for fact in facts]:
        return "it must ask for one of its numbers"
    return ""


def _chain_sentence(fact: Sequence[Any]) -> str:
    if isinstance(fact[1], int):
        return f"The {fact[0]} holds the number {fact[1]}."
    return f"The {fact[0]} holds the same number as the {fact[1]}."


def _holders(facts: Sequence[Any], asked: Sequence[Any]) -> list[str]:
    found: dict[str, None] = {}
    for name, source in facts:
        if source == asked[0] or source in found:
            found[name] = None
    return list(found)


# Words: [word, how often].


def _draw_words(random: Random, settings: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """Draw the most frequent words, and as many that occur two thirds as often."""
    n, often = settings["words"], settings["often"]
    words = _distinct(random, 2 * n)
    top = [[word, often + between(random, 0, 4)] for word in words[:n]]
    return [*top, *([word, often * 2 // 3] for word in words[n:])], [n]


def _distinct(random: Random, n: int) -> list[str]:
    words: dict[str, None] = {}
    while len(words) < n:
        words[pick(random, common_words())] = None
    return list(words)


def _complain_of_words(facts: Sequence[Any], asked: Sequence[Any]) -> str:
    if not all(isinstance(fact, list) and list(map(type, fact)) == [str, int] for fact in facts):
        return "its facts must be [word, how often]"
    if not all(re.fullmatch("[a-z]{1,20}", word) and 1 <= count <= 1_000 for word, count in facts):
        return "its words must be of small letters, and occur 1 to 1,000 times"
    if len({word for word, _ in facts}) < len(facts):
        return "its words must differ"
    if sum((len(word) + 1) * count for word, count in facts) > _MOST_CHARACTERS:
        return "its words are too many"
    if list(map(type, asked)) != [int] or not 1 <= asked[0] <= len(facts):
        return "it must ask for a number of its words"
    counts = sorted((count for _, count in facts), reverse=True)
    if (
        max(1, counts[-1] // 4) >= counts[asked[0] - 1]
        or counts[asked[0] - 1 : asked[0] + 1].count(counts[asked[0] - 1]) > 1
    ):
        return "its most frequent words must be more frequent than all others"
    return ""


def _most_frequent(facts: Sequence[Any], n: int) -> list[str]:
    return [word for word, _ in sorted(facts, key=lambda fact: -fact[1])[:n]]


class Kind(NamedTuple):
    """A kind of problem: what is drawn, how it is told, and what is asked."""

    draw: Callable[[Random, Mapping[str, Any]], tuple[list[Any], list[Any]]]
    """Returns the facts, and what is asked for."""
    complaint: Callable[[Sequence[Any], Sequence[Any]], str]
    """A complaint about given facts; "" if they are right."""
    task: str
    """The sentences before the text."""
    sentence: Callable[[Sequence[Any]], str]
    question: Callable[[Sequence[Any]], str]
    answer: Callable[[Sequence[Any], Sequence[Any]], list[str]]


_CODES = "Some sentences of this text tell the codes of people's things. You will be asked for"
KINDS: dict[str, Kind] = {
    "single": Kind(
        _draw_single,
        _complain_of_one,
        f"{_CODES} one of them.",
        lambda fact: f"The code of {_thing(fact)} is {fact[3]}.",
        lambda asked: f"What is the code of {_thing(asked[0])}?",
        _codes_asked,
    ),
    "values": Kind(
        _draw_values,
        _complain_of_many,
        f"{_CODES} all codes of one thing.",
        lambda fact: f"A code of {_thing(fact)} is {fact[3]}.",
        lambda asked: f"What are all the codes of {_thing(asked[0])}?",
        _codes_asked,
    ),
    "queries": Kind(
        _draw_queries,
        _complain_of_one,
        f"{_CODES} several of them.",
        lambda fact: f"The code of {_thing(fact)} is {fact[3]}.",
        lambda asked: f"What are the codes of these things, in this order: {', '.join(map(_thing, asked))}?",
        _codes_asked,
    ),
    "chain": Kind(
        _draw_chain,
        _complain_of_chain,
        "Some sentences of this text tell which thing holds which number. You will be asked for all that hold one.",
        _chain_sentence,
        lambda asked: f'Which things hold the number {asked[0]}? Name each by its two words, such as "amber kettle".',
        _holders,
    ),
    "words": Kind(
        _draw_words,
        _complain_of_words,
        "This is a list of words. You will be asked for the most frequent ones.",
        str,
        lambda asked: f"Which {asked[0]} words occur most often in the list?",
        lambda facts, asked: _most_frequent(facts, asked[0]),
    ),
}
