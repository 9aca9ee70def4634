"""Full-text search: Okapi BM25 over a few hundred short texts, in plain Python."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

__all__ = ["Bm25", "words_of"]

_WORD = re.compile(r"[a-z0-9]+")
_MAX_QUERY_WORDS = 64


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case: runs of ASCII letters and digits."""
    return _WORD.findall(text.lower())


class Bm25:
    """Ranks texts by how well they fit a query.

    score(q, d) = Σ_w idf(w) f(w, d) (k1 + 1) / (f(w, d) + k1 (1 − b + b |d| / mean |d|)), over the different words w of
    the query, with idf(w) = ln(1 + (N − n(w) + ½) / (n(w) + ½)): f counts w in d, n the texts that have it. Robertson
    and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009), with the idf that is never negative.

    Args:
        texts: The texts to search.
        k1: How quickly a repeated word stops counting.
        b: How much a long text is held against it, from 0 to 1.
    """

    def __init__(self, texts: Sequence[str], *, k1: float = 1.5, b: float = 0.75) -> None:
        counts = [Counter(words_of(text)) for text in texts]
        lengths = [sum(count.values()) for count in counts]
        mean = sum(lengths) / max(len(lengths), 1) or 1.0
        postings: dict[str, list[tuple[int, int]]] = {}
        for index, count in enumerate(counts):
            for word, frequency in count.items():
                postings.setdefault(word, []).append((index, frequency))
        self._weights: dict[str, list[tuple[int, float]]] = {}
        """By word: each text that has it, and what the word adds to its score."""
        for word, found in postings.items():
            idf = math.log(1 + (len(texts) - len(found) + 0.5) / (len(found) + 0.5))
            self._weights[word] = [
                (index, idf * frequency * (k1 + 1) / (frequency + k1 * (1 - b + b * lengths[index] / mean)))
                for index, frequency in found
            ]

    def search(self, query: str, count: int) -> list[tuple[int, float]]:
        """Return the places of the `count` best texts with their scores, best first, and earlier ones first in a tie.

        Texts without a word of the query are left out. Words of the query beyond the first 64 are not looked at.
        """
        scores: dict[int, float] = {}
        for word in dict.fromkeys(words_of(query)[:_MAX_QUERY_WORDS]):
            for index, weight in self._weights.get(word, ()):
                scores[index] = scores.get(index, 0.0) + weight
        return sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:count]
