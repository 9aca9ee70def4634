"""Long texts of no meaning, quickly made: sentences in which other sentences are hidden, and lists of words."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from random import Random as SeededRandom
from typing import Any

import numpy as np

from llm_envs.tasks.language.english import english_words
from llm_envs.tasks.people import PEOPLE

__all__ = ["ADJECTIVES", "NOUNS", "common_words", "haystack", "word_list"]

ADJECTIVES = ("amber", "broad", "chipped", "copper", "dented", "dusty", "faded", "folded", "gilded", "heavy", "ivory",
              "jagged", "knotted", "leaden", "marble", "narrow", "oaken", "painted", "quilted", "rusty", "scarlet",
              "silver", "speckled", "striped", "tarred", "velvet", "walnut", "woven")  # fmt: skip
NOUNS = ("anchor", "barrel", "basket", "bell", "bucket", "cabinet", "candle", "carpet", "chest", "clock", "crate",
         "cupboard", "drawer", "fiddle", "flask", "hammer", "kettle", "ladder", "lantern", "locket", "mirror", "parcel",
         "pitcher", "saddle", "shutter", "stool", "trumpet", "wagon")  # fmt: skip
_VERBS = ("borrowed", "carried", "cleaned", "counted", "found", "hid", "lost", "measured", "mended", "moved", "opened",
          "painted", "polished", "sold", "traded", "wanted", "weighed", "wrapped")  # fmt: skip
_PLACES = ("at the harbor", "behind the mill", "by the river", "in the attic", "in the cellar", "in the yard",
           "near the bridge", "near the well", "on the hill", "on the stairs", "outside the inn", "under the roof",
           "at the market", "beside the gate", "in the long hall", "next to the stove")  # fmt: skip
_TIMES = ("before dawn", "in the spring", "last winter", "on Monday", "on Friday evening", "once a year",
          "that afternoon", "the week before", "after the storm", "during the fair")  # fmt: skip
_N_SENTENCES = 2**14
_PER_PARAGRAPH = 9
"""Sentences of a paragraph, on average."""


def haystack(seed: int, n_characters: int, hidden: list[str], depths: list[float]) -> str:
    """Return a text of sentences drawn at random, with others among them.

    Args:
        seed: What is drawn.
        n_characters: Its length; met within one percent, or 500 characters.
        hidden: Sentences to put into it.
        depths: Where each of them goes, from 0 (the beginning) to 1 (the end).
    """
    pool, mean = _sentences()
    n = max(1, int((n_characters - sum(map(len, hidden))) / mean))
    places = np.random.default_rng(seed).integers(0, len(pool), n)
    texts = pool[places].tolist()
    order = sorted(range(len(hidden)), key=lambda i: (depths[i], i))
    cuts = [0, *(min(n, int(depths[i] * (n + 1))) for i in order), n]
    pieces = ["".join(texts[start:end]) for start, end in pairwise(cuts)]
    for at, i in enumerate(order):
        pieces[at] += f"{hidden[i]} "
    return "".join(pieces).rstrip()


@lru_cache(maxsize=1)
def _sentences() -> tuple[Any, float]:
    """Return sentences, each with the space or the line break behind it, and their mean length."""
    rng = SeededRandom(0)
    texts = []
    for _ in range(_N_SENTENCES):
        text = rng.choice(_FORMS)(rng)
        texts.append(text + ("\n\n" if rng.random() < 1 / _PER_PARAGRAPH else " "))
    return np.array(texts, dtype=object), sum(map(len, texts)) / len(texts)


def _thing(rng: SeededRandom) -> str:
    return f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"


def _upper(text: str) -> str:
    return text[0].upper() + text[1:]


_FORMS = (
    lambda r: f"{r.choice(PEOPLE)} {r.choice(_VERBS)} the {_thing(r)} {r.choice(_PLACES)}.",
    lambda r: f"The {_thing(r)} {r.choice(_PLACES)} was {r.choice(_VERBS)} {r.choice(_TIMES)}.",
    lambda r: f"{_upper(r.choice(_TIMES))} somebody {r.choice(_VERBS)} the {r.choice(NOUNS)} {r.choice(_PLACES)}.",
    lambda r: f"Nobody {r.choice(_PLACES)} knew the {r.choice(NOUNS)} that {r.choice(PEOPLE)} {r.choice(_VERBS)}.",
    lambda r: f"{' and '.join(r.sample(PEOPLE, 2))} talked about the {_thing(r)} {r.choice(_TIMES)}.",
    lambda r: f"The {r.choice(NOUNS)} cost {r.randint(2, 99)} coins, and the {_thing(r)} cost {r.randint(2, 99)}.",
    lambda r: f"Ticket {r.randint(10_000, 99_999)} was for the {r.choice(NOUNS)} {r.choice(_PLACES)}.",
    lambda r: f"{r.choice(PEOPLE)} {r.choice(_VERBS)} it {r.choice(_TIMES)}, and {r.choice(PEOPLE)} was glad.",
)


@lru_cache(maxsize=1)
def common_words() -> tuple[str, ...]:
    """Return English words of 4 to 9 letters, in alphabetical order."""
    return tuple(sorted(word for word in english_words() if 4 <= len(word) <= 9))


@lru_cache(maxsize=1)
def _word_array() -> tuple[Any, float]:
    """Return the words, and the mean of the characters that each takes in a text."""
    words = common_words()
    return np.array(words, dtype=object), sum(map(len, words)) / len(words) + 1


def word_list(seed: int, n_characters: int, counts: dict[str, int], n_rare: int) -> str:
    """Return a text of words in random order. Some occur as often as `counts` tells, and all others more seldom.

    Args:
        seed: What is drawn.
        n_characters: Its length; met within one percent, or 500 characters.
        counts: Words that occur often.
        n_rare: How often any other word occurs, at most.
    """
    rng, (words, mean) = np.random.default_rng(seed), _word_array()
    common = np.repeat(np.array(list(counts), dtype=object), list(counts.values()))
    left = n_characters - sum((len(word) + 1) * count for word, count in counts.items())
    n = max(0, round(left / mean / n_rare))
    rare = words[rng.permutation(len(words))[: n + len(counts)]]
    rare = rare[[word not in counts for word in rare.tolist()]][:n]
    drawn = np.concatenate([common, np.repeat(rare, n_rare)])
    return " ".join(drawn[rng.permutation(len(drawn))].tolist())
